"""What ``oflax ablate`` prints and writes."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import json
import pathlib

from rich import console
from rich import progress

from oflax.retrofit import tabpfn_v3
from oflax.studies import ablation
from oflax.studies import ablation_plots
from oflax.studies import stacks

FILES = {
  "ablation.json": "every number",
  "ablation.png": "norms of null rows, and changes of present rows",
}


def _v3_mini() -> stacks.Stack:
  return stacks.v3_stack(*tabpfn_v3.load(None, "full"))


HOSTS: dict[str, Callable[[], stacks.Stack]] = {
  "LayerNorm host": stacks.layer_norm_stack,
  "v3-mini": _v3_mini,
  "MiniLM": stacks.minilm_stack,
}


def run(
  folder: pathlib.Path, hosts: Sequence[str] = tuple(HOSTS)
) -> list[ablation.Row]:
  """Runs the study with a progress bar, prints its tables, writes its files.

  A host whose package is not installed is left out, and that is said.

  Args:
    folder: For the files; made if it is not there.
    hosts: Which of `HOSTS`.

  Returns:
    The rows of all hosts.
  """
  rows: list[ablation.Row] = []
  screen = console.Console()
  with progress.Progress(console=screen) as bar:
    task = bar.add_task("hosts", total=len(hosts))
    for name in hosts:
      bar.update(task, description=name)
      try:
        rows += ablation.ablate(HOSTS[name]())
      except ImportError as error:
        screen.print(f"{name} is left out: {error}")
      bar.update(task, advance=1)
  write(folder, rows)
  screen.print(ablation.details(rows))
  screen.print(ablation.verdicts(rows))
  print(f"Written to {folder}:")
  for file, content in FILES.items():
    print(f"  {file:16} {content}")
  return rows


def write(folder: pathlib.Path, rows: Sequence[ablation.Row]) -> None:
  """Writes the numbers and the figure."""
  folder.mkdir(parents=True, exist_ok=True)
  numbers = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
  (folder / "ablation.json").write_text(numbers)
  ablation_plots.plot(rows, folder / "ablation.png")
