"""The command ``oflax``."""

import typer

from oflax._commands import measures
from oflax._commands import studies
from oflax._commands import trainings

app = typer.Typer(
  help="oflax: a token that is a zero vector does not exist.",
  no_args_is_help=True,
  add_completion=False,
)
for command in (
  trainings.train,
  trainings.generate,
  trainings.compare_digits,
  trainings.compare_text,
  trainings.pretrain,
  studies.compare_tables,
  studies.ablate,
  studies.retrofit,
  studies.reproduce,
  studies.pictures,
  measures.laws,
  measures.bench,
):
  app.command()(command)


if __name__ == "__main__":
  app()
