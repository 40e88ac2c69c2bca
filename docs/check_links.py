"""Checks the links inside of a built site: ``check_links.py build/site``.

Every link and picture must lead to a file of the site, and every anchor to an
element of its page. Links to elsewhere are not followed.
"""

from html import parser
import pathlib
import sys
from urllib import parse


class Page(parser.HTMLParser):
  """What a page links to, and what in it can be linked to."""

  def __init__(self, path: pathlib.Path):
    super().__init__()
    self.links: list[str] = []
    self.anchors = {"", "top"}
    self.feed(path.read_text())

  def handle_starttag(
    self, tag: str, attrs: list[tuple[str, str | None]]
  ) -> None:
    for name, value in attrs:
      if value is None:
        continue
      if name == "id" or (tag, name) == ("a", "name"):
        self.anchors.add(value)
      elif name in ("href", "src"):
        self.links.append(value)


def broken(folder: pathlib.Path) -> list[str]:
  """The links that lead nowhere, each with its page."""
  pages = {
    path.resolve(): Page(path)
    for path in folder.rglob("*.html")
    # A theme's templates are no pages.
    if "_static" not in path.parts
  }
  found = []
  for path, page in pages.items():
    for link in page.links:
      parts = parse.urlsplit(link)
      if parts.scheme or parts.netloc:
        continue
      target = path
      if parts.path:
        target = (path.parent / parse.unquote(parts.path)).resolve()
      anchor = parse.unquote(parts.fragment)
      known = pages.get(target)
      if not target.exists() or (known and anchor not in known.anchors):
        found.append(f"{path.relative_to(folder.resolve())}: {link}")
  if not pages:
    found.append(f"{folder} holds no page")
  return found


if __name__ == "__main__":
  lines = broken(pathlib.Path(sys.argv[1]))
  print("\n".join(lines) or "all links inside of the site lead somewhere")
  sys.exit(bool(lines))
