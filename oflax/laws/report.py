"""A report on laws: a table in a terminal, HTML in a notebook."""

from collections.abc import Iterable
import dataclasses
import html

NOT_PROMISED = "not promised"


@dataclasses.dataclass(frozen=True)
class Row:
  """What was seen of one law.

  Attributes:
    law: Its name.
    trials: How often it was tried; 0 for what is not promised.
    violations: How often it did not hold.
    deviation: The largest deviation seen, relative to max(1, largest value).
    allowed: The largest deviation that rounding explains; 0: exact.
  """

  law: str
  trials: int
  violations: int
  deviation: float
  allowed: float

  def cells(self) -> tuple[str, ...]:
    if not self.trials:
      return self.law, NOT_PROMISED, "", "", ""
    allowed = f"{self.allowed:.1e}" if self.allowed else "exact"
    deviation = f"{self.deviation:.1e}" if self.deviation else "0"
    return (
      self.law,
      f"{self.trials:,}",
      f"{self.violations:,}",
      deviation,
      allowed,
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Report:
  """Rows of laws. Shown as a table, in a notebook as HTML."""

  rows: tuple[Row, ...]

  HEADER = ("law", "trials", "violations", "largest deviation", "allowed")

  @property
  def passed(self) -> bool:
    """Whether no law was violated."""
    return not any(row.violations for row in self.rows)

  def __repr__(self) -> str:
    table = [self.HEADER, *(row.cells() for row in self.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for cells in table:
      first = cells[0].ljust(widths[0])
      rest = (c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))
      lines.append("  ".join((first, *rest)).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)

  def _repr_html_(self) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
      inner = "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells)
      return f"<tr>{inner}</tr>"

    body = "".join(line(row.cells(), "td") for row in self.rows)
    return f"<table>{line(self.HEADER, 'th')}{body}</table>"
