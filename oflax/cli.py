"""The command ``oflax``."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import enum
import os
import pathlib
from typing import Annotated
from typing import Any

import typer

RUNS = pathlib.Path("runs")
STEPS = 1200
PRETRAIN_STEPS = 8000
TEXT_STEPS = 1000

app = typer.Typer(
  help="oflax: a token that is a zero vector does not exist.",
  no_args_is_help=True,
  add_completion=False,
)


class Task(enum.StrEnum):
  """What there is to train on."""

  DIGITS = "digits"
  TEXT = "text"


class Variant(enum.StrEnum):
  """The three subjects of a study."""

  HOST = "host"
  ATTENTION = "attention"
  FULL = "full"


def _at_least(minimum: int) -> Callable[[Any], Any]:
  def check(value: int | None) -> int | None:
    if value is not None and value < minimum:
      raise typer.BadParameter(f"must be at least {minimum}, got {value}.")
    return value

  return check


Seed = Annotated[
  int, typer.Option(callback=_at_least(0), help="Of everything random.")
]
Steps = Annotated[
  int,
  typer.Option(callback=_at_least(1), help="Optimizer steps of a training."),
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

# Every command imports what it needs, so that --help is quick.


@app.command()
def train(
  task: Annotated[
    Task, typer.Argument(help="Images, or the sources of Python.")
  ] = Task.DIGITS,
  variant: Annotated[
    Variant,
    typer.Option(help="Closed in full, in its attention, or not at all."),
  ] = Variant.FULL,
  seed: Seed = 0,
  steps: Annotated[
    int | None,
    typer.Option(
      callback=_at_least(1),
      help="Optimizer steps.",
      show_default="1200; text: 1000",
    ),
  ] = None,
  resume: Resume = False,
  directory: Directory = None,
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
  folder = directory or RUNS / f"{task}-{variant}-{seed}"
  settings: dict[str, Any] = {
    "variant": variant.value,
    "seed": seed,
    "steps": steps or usual,
  }
  if coordinator and task is not Task.DIGITS:
    raise typer.BadParameter(f"several processes learn digits, not {task}.")
  together = _together(coordinator, num_processes, process_id)
  if not process_id:
    _open(folder, settings, resume)
  with _stoppable(folder), together:
    report.run(folder, resume=resume, **settings)


@app.command()
def generate(
  prompt: Annotated[str, typer.Argument(help="What the text begins with.")],
  length: Annotated[
    int, typer.Option(callback=_at_least(1), help="Bytes to add.")
  ] = 200,
  temperature: Annotated[
    float, typer.Option(min=0, help="0: the likeliest byte always.")
  ] = 0.7,
  top_p: Annotated[
    float, typer.Option(min=1e-6, max=1, help="Probability to draw from.")
  ] = 1.0,
  seed: Seed = 0,
  directory: Annotated[
    pathlib.Path,
    typer.Option(file_okay=False, help="Of a run of oflax train text."),
  ] = RUNS / "text-full-0",
) -> None:
  """Go on with a text, by a model from oflax train text."""
  from oflax.studies import text_report

  with _told():
    state = text_report.restored(directory)
    [text] = text_report.generated(
      state, [prompt], length, temperature=temperature, top_p=top_p, seed=seed
    )
  print(text)


@app.command()
def compare_digits(
  seed: Seed = 0,
  steps: Steps = STEPS,
  resume: Resume = False,
  directory: Directory = None,
) -> None:
  """Compare full with the masked host on digits, out of five folds."""
  from oflax.studies import digits_compare

  folder = directory or RUNS / f"compare-digits-{seed}"
  settings = {"seed": seed, "steps": steps}
  _open(folder, settings, resume)
  with _stoppable(folder):
    print(digits_compare.compare(folder, **settings))


@app.command()
def compare_text(
  steps: Steps = TEXT_STEPS,
  directory: Output = RUNS / "compare-text",
) -> None:
  """Compare full with the ordinary transformer on text, with three seeds."""
  from oflax.studies import text_compare

  _open(directory, {"steps": steps}, resume=directory.exists())
  with _stoppable(directory):
    print(text_compare.compare(directory, steps=steps))


@app.command()
def pretrain(
  seed: Seed = 0,
  steps: Steps = PRETRAIN_STEPS,
  resume: Resume = False,
  directory: Directory = None,
) -> None:
  """Pretrain v3-mini, a small TabPFN v3, on random tables."""
  from oflax.studies import pretrain_report

  _cut_cpu(os.cpu_count() or 1)
  folder = directory or RUNS / f"v3-mini-{seed}"
  settings = {"seed": seed, "steps": steps}
  _open(folder, settings, resume)
  with _stoppable(folder):
    pretrain_report.run(folder, resume=resume, **settings)


@app.command()
def compare_tables(
  checkpoint: Checkpoint = None,
  directory: Output = RUNS / "compare-tables",
) -> None:
  """Compare v3-mini with standard regressors on real tables."""
  from oflax.studies import tables_report

  with _told():
    tables_report.compare(directory, checkpoint)


@app.command()
def ablate(directory: Output = RUNS / "ablation") -> None:
  """Put null rows into three hosts, and look at them block by block."""
  from oflax.studies import ablation_report

  ablation_report.run(directory)


@app.command()
def retrofit(
  checkpoint: Checkpoint = None,
  minilm: MiniLM = False,
  directory: Output = RUNS / "retrofit",
) -> None:
  """Close a pretrained regressor without training, on real tables."""
  from oflax.studies import minilm as sentences
  from oflax.studies import retrofit_report

  with _told():
    retrofit_report.run(directory, checkpoint)
    if minilm:
      sentences.run()


@app.command()
def reproduce(
  checkpoint: Checkpoint = None,
  minilm: MiniLM = False,
  directory: Output = RUNS / "report",
) -> None:
  """Run the studies of the paper, and report its claims beside them."""
  from oflax.studies import reproduce as studies

  with _told():
    studies.run(directory, checkpoint=checkpoint, with_minilm=minilm)


@app.command()
def pictures(
  benchmarks: Annotated[
    pathlib.Path, typer.Option(dir_okay=False, help="Of oflax bench.")
  ] = pathlib.Path("docs/benchmarks.json"),
  ablation: Annotated[
    pathlib.Path | None,
    typer.Option(
      exists=True,
      dir_okay=False,
      help="ablation.json of oflax ablate.",
      show_default="computed in small",
    ),
  ] = None,
  retrofit: Annotated[
    pathlib.Path | None,
    typer.Option(
      exists=True,
      dir_okay=False,
      help="retrofit.json of oflax retrofit.",
      show_default="computed in small",
    ),
  ] = None,
  only: Annotated[
    str, typer.Option(help="Only pictures with this text in their names.")
  ] = "",
  directory: Output = pathlib.Path("docs/pictures"),
) -> None:
  """Draw the pictures of the documentation."""
  from oflax.studies import pictures as drawn

  with _told():
    drawn.run(directory, drawn.Sources(benchmarks, ablation, retrofit), only)


@app.command()
def laws(
  trials: Annotated[
    int, typer.Option(callback=_at_least(1), help="At least, in all.")
  ] = 20_000,
  seed: Seed = 0,
  device: Annotated[
    str | None,
    typer.Option(help="cpu, gpu or tpu.", show_default="the best there is"),
  ] = None,
  only: Annotated[
    str, typer.Option(help="Only programs with this text in their names.")
  ] = "",
  devices: Annotated[
    int,
    typer.Option(
      callback=_at_least(1),
      help="Try what is cut over so many; a CPU is made to look like them.",
    ),
  ] = 1,
) -> None:
  """Try every law on everything; exit with 1 if one is violated."""
  import jax
  from rich import progress

  from oflax.studies import contract

  if devices > 1:
    _cut_cpu(devices)
  chosen = _device(device)
  count = sum(only in program.name for program in contract.programs())
  # A default device would hold what is to be cut over all of them.
  place = jax.default_device(chosen) if devices == 1 else None
  with progress.Progress() as bar, place or contextlib.nullcontext():
    task = bar.add_task("programs", total=count if devices == 1 else None)

    def on_program(name: str) -> None:
      bar.update(task, advance=1, description=name)

    try:
      result = contract.run(
        trials, seed, only=only, on_program=on_program, devices=devices
      )
    except ValueError as error:
      raise typer.BadParameter(str(error)) from None
  print(f"{devices} × {chosen.device_kind}, JAX {jax.__version__}")
  print(result)
  if not result.report.passed:
    raise typer.Exit(1)


@app.command()
def bench(
  only: Annotated[
    str,
    typer.Argument(
      help="Only groups with this text in their names, as decode.",
      show_default="all",
    ),
  ] = "",
  device: Annotated[str, typer.Option(help="cpu or gpu.")] = "cpu",
  seconds: Annotated[
    int, typer.Option(callback=_at_least(1), help="About, for each group.")
  ] = 20,
  directory: Annotated[
    pathlib.Path,
    typer.Option(file_okay=False, help="For benchmarks.md, .png and .json."),
  ] = RUNS / "bench",
  resume: Resume = False,
) -> None:
  """Measure attention and a model beside what people use today."""
  import jax
  from rich import progress

  from oflax.studies import bench_report

  chosen = _device(device)
  gpu = chosen.platform == "gpu"
  count = sum(only in name for name, _ in bench_report.groups(gpu))
  with progress.Progress() as bar, jax.default_device(chosen):
    task = bar.add_task("groups", total=count)
    group = ""

    def on_group(name: str) -> None:
      nonlocal group
      group = name
      bar.update(task, advance=1, description=name)

    def on_subject(name: str) -> None:
      bar.update(task, description=f"{group}: {name}")

    try:
      page = bench_report.run(
        directory,
        gpu=gpu,
        seconds=seconds,
        only=only,
        resume=resume,
        on_group=on_group,
        on_subject=on_subject,
      )
    except ValueError as error:
      raise typer.BadParameter(str(error)) from None
  print(page)
  print(f"Written to {directory}: benchmarks.md, .png, .json.")


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


def _cut_cpu(devices: int) -> None:
  """Makes the CPU look like so many devices, if none is in use yet."""
  import jax

  with contextlib.suppress(RuntimeError):
    jax.config.update("jax_num_cpu_devices", devices)


def _device(name: str | None) -> Any:
  import jax

  try:
    return jax.devices(name)[0]
  except RuntimeError as error:
    raise typer.BadParameter(f"--device {name}: {error}") from None


def _open(folder: pathlib.Path, settings: dict[str, Any], resume: bool) -> None:
  from oflax.studies import digits_report

  try:
    digits_report.open_folder(folder, settings, resume=resume)
  except ValueError as error:
    raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def _told() -> Iterator[None]:
  """What is wrong with a file, or not installed, in a line."""
  try:
    yield
  except (ImportError, ValueError) as error:
    raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def _stoppable(folder: pathlib.Path) -> Iterator[None]:
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


if __name__ == "__main__":
  app()
