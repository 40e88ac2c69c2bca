"""What the comparison on real tables prints and writes.

``python -m oflax.studies.tables_report`` prints what the standard regressors
reach: the bar for the in-context one.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
from typing import Any

from matplotlib import pyplot as plt
from matplotlib import ticker
import numpy as np
from rich import console
from rich import progress
from rich import table as rich_tables
import sklearn

from oflax.retrofit import tabpfn_v3
from oflax.studies import figures
from oflax.studies import tables
from oflax.studies import tables_compare
from oflax.studies import tables_scores
from oflax.studies.tables_compare import Case

PathLike = str | os.PathLike[str]
_TICKS = (0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0)


# Orders of the columns that the in-context regressor averages over.
PERMUTATIONS = 4
FILES = {
  "tables.json": "every number",
  "tables.png": "ratios of errors, table by table",
}


def compare(
  folder: pathlib.Path, checkpoint: pathlib.Path | None = None
) -> list[Case]:
  """Compares a TabPFN v3 with standard regressors; prints, and writes files.

  Args:
    folder: For the files; made if it is not there.
    checkpoint: Its weights; None: the shipped v3-mini.

  Returns:
    The cases.
  """
  model = tabpfn_v3.load(checkpoint)

  def in_context() -> tabpfn_v3.InContextRegressor:
    return tabpfn_v3.InContextRegressor(model, permutations=PERMUTATIONS)

  cases = run(
    {
      tables_compare.IN_CONTEXT: in_context,
      tables_compare.WITH_COMPONENTS: lambda: tables_compare.with_components(
        in_context()
      ),
    }
  )
  folder.mkdir(parents=True, exist_ok=True)
  write(cases, folder / "tables.json")
  plot(cases, folder / "tables.png")
  print(f"Written to {folder}:")
  for file, content in FILES.items():
    print(f"  {file:16} {content}")
  return cases


def run(
  factories: Mapping[str, Callable[[], Any]],
  names: Sequence[str] | None = None,
  seeds: Sequence[int] = tables.SEEDS,
) -> list[Case]:
  """The whole comparison, with a progress bar; prints its tables.

  Args:
    factories: Of in-context regressors, as for `tables_compare.compare`; none:
      the standard ones alone.
    names: Of the tables; None: all that are installed.
    seeds: Of the splits.

  Returns:
    The cases.
  """
  names = tables.installed() if names is None else names
  with progress.Progress() as bar:
    task = bar.add_task("reading", total=len(names) * len(seeds))

    def on_case(name: str) -> None:
      bar.update(task, advance=1, description=name)

    cases = tables_compare.compare(factories, names, seeds, on_case)
  show(cases)
  return cases


def show(cases: Sequence[Case]) -> None:
  """Prints the errors, and the ratios if there are any.

  Those of all tables, and of the ones that the comparison was planned with.
  """
  printer = console.Console()
  printer.print(errors_table(cases))
  if tables_scores.ratios(cases):
    printer.print(ratios_table(cases))
    if 0 < len(planned(cases)) < len(cases):
      printer.print(ratios_table(planned(cases)))


def planned(cases: Sequence[Case]) -> list[Case]:
  """The cases of `tables.PLANNED`."""
  return [case for case in cases if case.table in tables.PLANNED]


def errors_table(cases: Sequence[Case]) -> rich_tables.Table:
  """A row for each case, the smallest error bold; then the means."""
  subjects = list(cases[0].errors)
  result = rich_tables.Table(
    title="RMSE / standard deviation of the training targets"
  )
  result.add_column("table")
  for name in ("seed", "rows", "columns", *subjects):
    result.add_column(name, justify="right")
  for case in cases:
    least = min(case.errors.values())
    result.add_row(
      case.table,
      str(case.seed),
      f"{case.train} + {case.test}",
      str(case.columns),
      *(_number(case.errors[s], case.errors[s] == least) for s in subjects),
      end_section=case is cases[-1],
    )
  found = tables_scores.means(cases)
  for kind in ("arithmetic", "geometric"):
    values = [getattr(mean, kind) for mean in found]
    cells = [_number(value, value == min(values)) for value in values]
    result.add_row(f"{kind} mean", "", "", "", *cells)
  return result


def ratios_table(cases: Sequence[Case]) -> rich_tables.Table:
  """Each in-context regressor against each standard one."""
  count = len({case.table for case in cases})
  result = rich_tables.Table(
    "RMSE",
    "over that of",
    "geometric mean",
    "95 % interval",
    "better",
    title=f"Ratios on {count} tables; the interval is a bootstrap over them",
  )
  for ratio in tables_scores.ratios(cases):
    result.add_row(
      ratio.subject,
      ratio.baseline,
      f"{ratio.mean:.3f}",
      f"{ratio.low:.3f} to {ratio.high:.3f}",
      f"{ratio.better} of {ratio.cases}",
    )
  return result


def write(cases: Sequence[Case], path: PathLike) -> None:
  """Writes cases, means, ratios and versions as JSON.

  Args:
    cases: As `tables_compare.compare` returns them.
    path: Of the file.
  """
  content = {
    "versions": {"numpy": np.__version__, "scikit-learn": sklearn.__version__},
    "means": [dataclasses.asdict(m) for m in tables_scores.means(cases)],
    "ratios": _ratios(cases),
    "ratios of planned tables": _ratios(planned(cases)),
    "cases": [dataclasses.asdict(case) for case in cases],
  }
  pathlib.Path(path).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _ratios(cases: Sequence[Case]) -> list[dict[str, Any]]:
  found = tables_scores.ratios(cases) if cases else []
  return [dataclasses.asdict(ratio) for ratio in found]


def read(path: PathLike) -> list[Case]:
  """The cases that `write` wrote."""
  content = json.loads(pathlib.Path(path).read_text("utf-8"))
  return [Case(**case) for case in content["cases"]]


@figures.style()
def plot(cases: Sequence[Case], path: PathLike) -> None:
  """The ratios of every table, a small dot for each seed.

  Args:
    cases: With an in-context regressor.
    path: Of the figure.

  Raises:
    ValueError: No in-context regressor was there.
  """
  found = tables_scores.ratios(cases)
  if not found:
    raise ValueError(
      "cases must have errors of an in-context regressor, got those of"
      f" {list(cases[0].errors)}."
    )
  subjects = list(dict.fromkeys(ratio.subject for ratio in found))
  names = list(dict.fromkeys(case.table for case in cases))
  figure, panels = plt.subplots(
    ncols=len(subjects),
    figsize=(1 + 5 * len(subjects), 0.32 * len(names) + 1.8),
    sharex=True,
    sharey=True,
    squeeze=False,
    layout="constrained",
  )
  for subject, axes in zip(subjects, panels[0], strict=True):
    _panel(axes, cases, [r for r in found if r.subject == subject])
    _finish(axes, subject, names)
  figures.save(figure, path)


def _panel(
  axes: plt.Axes,
  cases: Sequence[Case],
  found: Sequence[tables_scores.Ratio],
) -> None:
  """The ratios of one in-context regressor, a colour for each baseline."""
  names = dict.fromkeys(case.table for case in cases)
  for i, ratio in enumerate(found):
    colour, shift = f"C{i}", 0.22 * (i - (len(found) - 1) / 2)
    interval = f"{ratio.low:.2f} to {ratio.high:.2f}"
    label = f"{ratio.baseline}\n{ratio.mean:.2f} ({interval})"
    for row, name in enumerate(names):
      values = np.array(
        [
          case.errors[ratio.subject] / case.errors[ratio.baseline]
          for case in cases
          if case.table == name
        ]
      )
      height = np.full(len(values), row + shift)
      axes.plot(values, height, ".", color=colour, alpha=0.4, markersize=4)
      mean = np.exp(np.mean(np.log(values)))
      axes.plot(mean, row + shift, "o", color=colour, label=label, markersize=5)
      label = ""


def _finish(axes: plt.Axes, subject: str, names: Sequence[str]) -> None:
  axes.axvline(1, color=figures.INK, linewidth=1)
  axes.set_yticks(range(len(names)), names)
  axes.set(
    xscale="log",
    xlabel=f"RMSE {subject} over that of",
    ylim=(len(names) - 0.5, -0.5),
  )
  axes.xaxis.set_major_locator(ticker.FixedLocator(_TICKS))
  axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
  axes.xaxis.set_minor_locator(ticker.NullLocator())
  figures.lighten(axes)
  axes.legend(
    title="geometric mean (95 % interval)",
    loc="lower center",
    bbox_to_anchor=(0.5, 1),
    ncols=3,
    fontsize=8,
    title_fontsize=8,
  )


def _number(value: float, best: bool) -> str:
  return f"[bold]{value:.3f}[/bold]" if best else f"{value:.3f}"


if __name__ == "__main__":
  run({})
