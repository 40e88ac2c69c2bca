"""Commands that train, and what their runs are good for."""

import contextlib
import enum
import os
import pathlib
from typing import Annotated
from typing import Any

import typer

from oflax._commands import options

STEPS = 1200
PRETRAIN_STEPS = 15_000
TEXT_STEPS = 1000


class Task(enum.StrEnum):
  """What there is to train on."""

  DIGITS = "digits"
  TEXT = "text"


class Variant(enum.StrEnum):
  """The three subjects of a study."""

  HOST = "host"
  ATTENTION = "attention"
  FULL = "full"


def train(
  task: Annotated[
    Task, typer.Argument(help="Images, or the sources of Python.")
  ] = Task.DIGITS,
  variant: Annotated[
    Variant,
    typer.Option(help="Closed in full, in its attention, or not at all."),
  ] = Variant.FULL,
  seed: options.Seed = 0,
  steps: Annotated[
    int | None,
    typer.Option(
      callback=options.at_least(1),
      help="Optimizer steps.",
      show_default="1200; text: 1000",
    ),
  ] = None,
  resume: options.Resume = False,
  directory: options.Directory = None,
  coordinator: Annotated[
    str | None,
    typer.Option(help="HOST:PORT of process 0, to train in several processes."),
  ] = None,
  num_processes: Annotated[
    int | None, typer.Option(help="How many processes there are.")
  ] = None,
  process_id: Annotated[
    int | None, typer.Option(help="Which one this is, from 0.")
  ] = None,
) -> None:
  """Train on digits, and check the laws; or a language model on text.

  Digits may be learnt by several processes: each runs this command, with a
  folder that all of them see.
  """
  from oflax.studies import digits_report
  from oflax.studies import text_report

  report, usual = {
    Task.DIGITS: (digits_report, STEPS),
    Task.TEXT: (text_report, TEXT_STEPS),
  }[task]
  folder = directory or options.RUNS / f"{task}-{variant}-{seed}"
  settings: dict[str, Any] = {
    "variant": variant.value,
    "seed": seed,
    "steps": steps or usual,
  }
  if coordinator and task is not Task.DIGITS:
    raise typer.BadParameter(f"several processes learn digits, not {task}.")
  together = _together(coordinator, num_processes, process_id)
  if not process_id:
    options.open_run(folder, settings, resume)
  with options.stoppable(folder), together:
    report.run(folder, resume=resume, **settings)


def generate(
  prompt: Annotated[str, typer.Argument(help="What the text begins with.")],
  length: Annotated[
    int, typer.Option(callback=options.at_least(1), help="Bytes to add.")
  ] = 200,
  temperature: Annotated[
    float, typer.Option(min=0, help="0: the likeliest byte always.")
  ] = 0.7,
  top_p: Annotated[
    float, typer.Option(min=1e-6, max=1, help="Probability to draw from.")
  ] = 1.0,
  seed: options.Seed = 0,
  directory: Annotated[
    pathlib.Path,
    typer.Option(file_okay=False, help="Of a run of oflax train text."),
  ] = options.RUNS / "text-full-0",
) -> None:
  """Go on with a text, by a model from oflax train text."""
  from oflax.studies import text_report

  with options.told():
    state = text_report.restored(directory)
    [text] = text_report.generated(
      state, [prompt], length, temperature=temperature, top_p=top_p, seed=seed
    )
  print(text)


def compare_digits(
  seed: options.Seed = 0,
  steps: options.Steps = STEPS,
  resume: options.Resume = False,
  directory: options.Directory = None,
) -> None:
  """Compare full with the masked host on digits, out of five folds."""
  from oflax.studies import digits_compare

  folder = directory or options.RUNS / f"compare-digits-{seed}"
  settings = {"seed": seed, "steps": steps}
  options.open_run(folder, settings, resume)
  with options.stoppable(folder):
    print(digits_compare.compare(folder, **settings))


def compare_text(
  steps: options.Steps = TEXT_STEPS,
  directory: options.Output = options.RUNS / "compare-text",
) -> None:
  """Compare full with the ordinary transformer on text, with three seeds."""
  from oflax.studies import text_compare

  options.open_run(directory, {"steps": steps}, resume=directory.exists())
  with options.stoppable(directory):
    print(text_compare.compare(directory, steps=steps))


def pretrain(
  seed: options.Seed = 0,
  steps: options.Steps = PRETRAIN_STEPS,
  resume: options.Resume = False,
  directory: options.Directory = None,
) -> None:
  """Pretrain v3-mini, a small TabPFN v3, on random tables."""
  from oflax.studies import pretrain_report

  options.cut_cpu(os.cpu_count() or 1)
  folder = directory or options.RUNS / f"v3-mini-{seed}"
  settings = {"seed": seed, "steps": steps}
  options.open_run(folder, settings, resume)
  with options.stoppable(folder):
    pretrain_report.run(folder, resume=resume, **settings)


def _together(
  coordinator: str | None, num_processes: int | None, process_id: int | None
) -> contextlib.AbstractContextManager[None]:
  """The other processes of a training, if there are any."""
  options = (
    ("--coordinator", coordinator),
    ("--num-processes", num_processes),
    ("--process-id", process_id),
  )
  missing = [name for name, value in options if value is None]
  if len(missing) == len(options):
    return contextlib.nullcontext()
  if coordinator is None or num_processes is None or process_id is None:
    raise typer.BadParameter(
      f"several processes need {' and '.join(missing)}, too."
    )
  from oflax.training import processes

  try:
    processes.check(coordinator, num_processes, process_id)
  except ValueError as error:
    raise typer.BadParameter(str(error)) from None
  return processes.joined(
    coordinator,
    num_processes,
    process_id,
    how_to_go_on="start all processes again with --resume to go on",
  )
