"""What ``oflax retrofit`` prints and writes."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import pathlib
from typing import Any

from rich import console
from rich import progress

from oflax.retrofit import tabpfn_v3
from oflax.studies import retrofit_curve
from oflax.studies import retrofit_missing
from oflax.studies import retrofit_plots
from oflax.studies import tables
from oflax.studies.retrofit_cases import batches

FILES = {
  "retrofit.json": "every number",
  "retrofit.png": "change of the error, and null basin, against α",
  "missing.png": "change of the error when data are missing",
}


@dataclasses.dataclass(frozen=True)
class Retrofit:
  """The results of the study.

  Attributes:
    host: Name of the weights.
    cases: Of every α.
    points: The curve over α.
    missing: Of the deletions.
  """

  host: str
  cases: Sequence[retrofit_curve.Case]
  points: Sequence[retrofit_curve.Point]
  missing: Sequence[retrofit_missing.Row]


def run(
  folder: pathlib.Path, checkpoint: pathlib.Path | None = None
) -> Retrofit:
  """Runs the study with a progress bar, prints its tables, writes its files.

  Args:
    folder: For the files; made if it is not there.
    checkpoint: Weights of a TabPFN v3; None: the shipped v3-mini.

  Returns:
    The results.
  """
  module, variables = tabpfn_v3.load(checkpoint, "full")
  name = "v3-mini" if checkpoint is None else checkpoint.name
  cases = batches(tables.matched())
  count = len(cases)
  with progress.Progress() as bar:
    task = bar.add_task(
      f"{name}: curve over α",
      total=retrofit_curve.num_passes(count)
      + retrofit_missing.num_passes(count),
    )

    def advance() -> None:
      bar.update(task, advance=1)

    found, points = retrofit_curve.curve(
      module, variables, cases, on_pass=advance
    )
    bar.update(task, description=f"{name}: missing data")
    missing = retrofit_missing.missing(
      module, variables, cases, on_pass=advance
    )
  result = Retrofit(name, found, points, missing)
  write(folder, result)
  for table in (
    retrofit_curve.case_table(found),
    retrofit_curve.table(points),
    retrofit_missing.table(missing),
  ):
    console.Console().print(table)
  print(f"Written to {folder}:")
  for file, content in FILES.items():
    print(f"  {file:16} {content}")
  return result


def write(folder: pathlib.Path, result: Retrofit) -> None:
  """Writes the numbers and the figures."""
  folder.mkdir(parents=True, exist_ok=True)
  numbers = json.dumps(_finite(dataclasses.asdict(result)), indent=1)
  (folder / "retrofit.json").write_text(numbers)
  retrofit_plots.plot_curve(
    result.cases, result.points, folder / "retrofit.png"
  )
  retrofit_plots.plot_missing(result.missing, folder / "missing.png")


def _finite(tree: Any) -> Any:
  """The tree with None for NaN, which JSON does not have."""
  if isinstance(tree, Mapping):
    return {name: _finite(value) for name, value in tree.items()}
  if isinstance(tree, list | tuple):
    return [_finite(value) for value in tree]
  return None if tree != tree else tree
