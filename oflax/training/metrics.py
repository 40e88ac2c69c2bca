"""The metrics of a run, as rows of a CSV file."""

from collections.abc import Mapping
import csv
import os
import pathlib
from typing import Any


class MetricsLog:
  """Appends one row a logged step to a CSV file.

  The numbers are written with nine digits, which round-trip float32, and
  without times of day: a resumed run writes the file of an unbroken one.

  Args:
    path: Of the file.
    step: Keep the rows up to this step; those after it are to come again.
  """

  def __init__(self, path: str | os.PathLike[str], *, step: int = 0):
    self._path = pathlib.Path(path)
    lines = self._lines_until(step)
    self._header = lines[0] if lines else None
    # Replaced in one go: a kill in between leaves the old file or the new.
    draft = self._path.with_suffix(".tmp")
    draft.write_text("".join(lines))
    os.replace(draft, self._path)

  def write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Appends the row of a step.

    Args:
      step: Above those written before.
      metrics: Scalars, of the same names in every row.

    Raises:
      ValueError: The names differ from those of the file.
    """
    header = ",".join(["step", *metrics]) + "\n"
    if self._header not in (None, header):
      raise ValueError(
        f"metrics must be {self._header.strip()!r} as in {self._path}, got"
        f" {header.strip()!r}."
      )
    values = [f"{float(value):.9g}" for value in metrics.values()]
    row = ",".join([str(step), *values]) + "\n"
    with self._path.open("a") as file:
      file.write(row if self._header else header + row)
    self._header = header

  def _lines_until(self, step: int) -> list[str]:
    if step == 0 or not self._path.exists():
      return []
    lines = self._path.read_text().splitlines(keepends=True)
    # The last line may be torn; the first one is the header.
    whole = [line for line in lines if line.endswith("\n")]
    rows = [row for row in whole[1:] if int(row.split(",")[0]) <= step]
    return whole[:1] + rows if rows else []


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, float]]:
  """The rows that a `MetricsLog` wrote: name to number, "step" among them."""
  with open(path) as file:
    rows = csv.DictReader(file)
    return [{name: float(x) for name, x in row.items()} for row in rows]
