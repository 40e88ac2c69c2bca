"""What the options of several commands mean, and what commands share."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import pathlib
from typing import Annotated
from typing import Any

import typer

RUNS = pathlib.Path("runs")


def at_least(minimum: int) -> Callable[[Any], Any]:
  def check(value: int | None) -> int | None:
    if value is not None and value < minimum:
      raise typer.BadParameter(f"must be at least {minimum}, got {value}.")
    return value

  return check


Seed = Annotated[
  int, typer.Option(callback=at_least(0), help="Of everything random.")
]
Steps = Annotated[
  int,
  typer.Option(callback=at_least(1), help="Optimizer steps of a training."),
]
Resume = Annotated[
  bool, typer.Option("--resume", help="Go on with the run in the directory.")
]
Directory = Annotated[
  pathlib.Path | None,
  typer.Option(file_okay=False, help="Run folder.", show_default="runs/…"),
]

Output = Annotated[
  pathlib.Path, typer.Option(file_okay=False, help="For what it writes.")
]

Checkpoint = Annotated[
  pathlib.Path | None,
  typer.Option(
    exists=True,
    dir_okay=False,
    help="Weights of a TabPFN v3.",
    show_default="the shipped v3-mini",
  ),
]

MiniLM = Annotated[bool, typer.Option("--minilm", help="Study MiniLM, too.")]


def cut_cpu(devices: int) -> None:
  """Makes the CPU look like so many devices, if none is in use yet."""
  import jax

  with contextlib.suppress(RuntimeError):
    jax.config.update("jax_num_cpu_devices", devices)


def open_run(
  folder: pathlib.Path, settings: dict[str, Any], resume: bool
) -> None:
  from oflax.studies import digits_report

  try:
    digits_report.open_folder(folder, settings, resume=resume)
  except ValueError as error:
    raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def told() -> Iterator[None]:
  """What is wrong with a file, or not installed, in a line."""
  try:
    yield
  except (ImportError, ValueError) as error:
    raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def stoppable(folder: pathlib.Path) -> Iterator[None]:
  """Ctrl-C ends the command with a word on how to go on."""
  try:
    yield
  except KeyboardInterrupt:
    typer.echo(
      f"Stopped; what was done is kept in {folder}. Run the same command with"
      " --resume to go on.",
      err=True,
    )
    raise typer.Exit(130) from None
