"""Commands that study pretrained models, and draw what was found."""

import pathlib
from typing import Annotated

import typer

from oflax._commands import options


def compare_tables(
  checkpoint: options.Checkpoint = None,
  directory: options.Output = options.RUNS / "compare-tables",
) -> None:
  """Compare v3-mini with standard regressors on real tables."""
  from oflax.studies import tables_report

  with options.told():
    tables_report.compare(directory, checkpoint)


def ablate(directory: options.Output = options.RUNS / "ablation") -> None:
  """Put null rows into three hosts, and look at them block by block."""
  from oflax.studies import ablation_report

  ablation_report.run(directory)


def retrofit(
  checkpoint: options.Checkpoint = None,
  minilm: options.MiniLM = False,
  directory: options.Output = options.RUNS / "retrofit",
) -> None:
  """Close a pretrained regressor without training, on real tables."""
  from oflax.studies import minilm as sentences
  from oflax.studies import retrofit_report

  with options.told():
    retrofit_report.run(directory, checkpoint)
    if minilm:
      sentences.run()


def reproduce(
  checkpoint: options.Checkpoint = None,
  minilm: options.MiniLM = False,
  directory: options.Output = options.RUNS / "report",
) -> None:
  """Run the studies of the paper, and report its claims beside them."""
  from oflax.studies import reproduce as studies

  with options.told():
    studies.run(directory, checkpoint=checkpoint, with_minilm=minilm)


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
  directory: options.Output = pathlib.Path("docs/pictures"),
) -> None:
  """Draw the pictures of the documentation."""
  from oflax.studies import pictures as drawn

  with options.told():
    drawn.run(directory, drawn.Sources(benchmarks, ablation, retrofit), only)
