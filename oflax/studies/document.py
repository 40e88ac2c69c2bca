"""A report written twice: as Markdown, and as one HTML file on its own."""

import base64
from collections.abc import Iterable
import html
import pathlib

from rich import table as tables

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 0.85rem; margin: 1rem 0; }
.wide { overflow-x: auto; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
th, td { border-bottom: 1px solid #8884; padding: 0.3rem 0.7rem;
  text-align: left; vertical-align: top; }
td { font-variant-numeric: tabular-nums; }
img { max-width: 100%; }
figcaption { font-size: 0.85rem; }
"""


class Document:
  """Headings, paragraphs, tables and figures in a row.

  Attributes:
    title: Of the whole.

  Example:
    >>> document = Document("Results")
    >>> document.heading("First")
    >>> document.paragraph("All is well.")
    >>> print(document.markdown())
    # Results
    <BLANKLINE>
    ## First
    <BLANKLINE>
    All is well.
    <BLANKLINE>

  Reference: CommonMark, with the tables of GitHub.
  """

  def __init__(self, title: str):
    self.title = title
    self._markdown = [f"# {title}"]
    self._html = [f"<h1>{html.escape(title)}</h1>"]

  def heading(self, text: str) -> None:
    """Begins a section."""
    self._markdown.append(f"## {text}")
    self._html.append(f"<h2>{html.escape(text)}</h2>")

  def paragraph(self, text: str) -> None:
    """Adds plain text."""
    self._markdown.append(text)
    self._html.append(f"<p>{html.escape(text)}</p>")

  def bullets(self, texts: Iterable[str]) -> None:
    """Adds a list of plain texts."""
    texts = list(texts)
    self._markdown.append("\n".join(f"- {text}" for text in texts))
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    self._html.append(f"<ul>{items}</ul>")

  def table(self, printed: tables.Table) -> None:
    """Adds a table as it is printed: its title, its header, its rows."""
    header = [str(column.header) for column in printed.columns]
    columns = [[str(cell) for cell in c.cells] for c in printed.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    title = str(printed.title or "")
    lines = [header, ["---"] * len(header), *rows]
    lines = [[cell.replace("|", "\\|") for cell in row] for row in lines]
    text = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    self._markdown.append(f"**{title}**\n\n{text}" if title else text)
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    body = "".join(_html_row(row, "td") for row in rows)
    self._html.append(
      f'<div class="wide"><table>{caption}{_html_row(header, "th")}{body}'
      "</table></div>"
    )

  def figure(self, path: pathlib.Path, caption: str) -> None:
    """Adds a PNG file: by name in Markdown, as a whole in HTML."""
    self._markdown.append(f"![{caption}]({path.name})")
    data = base64.b64encode(path.read_bytes()).decode()
    text = html.escape(caption)
    self._html.append(
      f'<figure><img alt="{text}" src="data:image/png;base64,{data}">'
      f"<figcaption>{text}</figcaption></figure>"
    )

  def markdown(self) -> str:
    """The whole as Markdown; figures lie beside it."""
    return "\n\n".join(self._markdown) + "\n"

  def html(self) -> str:
    """The whole as one HTML page that needs no other file."""
    return (
      '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
      '<meta name="viewport" content="width=device-width">'
      f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head>"
      "<body>\n" + "\n".join(self._html) + "\n</body></html>\n"
    )


def _html_row(cells: Iterable[str], tag: str) -> str:
  inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
  return f"<tr>{inner}</tr>"
