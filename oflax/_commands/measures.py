"""Commands that try the laws, and measure times."""

import contextlib
import pathlib
from typing import Annotated
from typing import Any

import typer

from oflax._commands import options


def laws(
  trials: Annotated[
    int, typer.Option(callback=options.at_least(1), help="At least, in all.")
  ] = 20_000,
  seed: options.Seed = 0,
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
      callback=options.at_least(1),
      help="Try what is cut over so many; a CPU is made to look like them.",
    ),
  ] = 1,
) -> None:
  """Try every law on everything; exit with 1 if one is violated."""
  import jax
  from rich import progress

  from oflax.studies import contract

  if devices > 1:
    options.cut_cpu(devices)
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
    int,
    typer.Option(callback=options.at_least(1), help="About, for each group."),
  ] = 20,
  directory: Annotated[
    pathlib.Path,
    typer.Option(file_okay=False, help="For benchmarks.md, .png and .json."),
  ] = options.RUNS / "bench",
  resume: options.Resume = False,
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


def _device(name: str | None) -> Any:
  import jax

  try:
    return jax.devices(name)[0]
  except RuntimeError as error:
    raise typer.BadParameter(f"--device {name}: {error}") from None
