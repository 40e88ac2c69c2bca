"""Every block of Python in the pages and in the README runs as it stands, and
notebooks are kept without what they print."""

import importlib.util
import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
  ROOT / "README.md",
  *sorted(path for path in (ROOT / "docs").glob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page):
  return BLOCK.findall(page.read_text())


def missing(block):
  """The packages that a block imports, and that are not here."""
  names = re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)
  return [name for name in names if importlib.util.find_spec(name) is None]


@pytest.mark.parametrize(
  "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_the_code_of_a_page_runs(page):
  scope = {}
  for number, block in enumerate(blocks(page), 1):
    if not missing(block):
      exec(compile(block, f"{page.name}, block {number}", "exec"), scope)


def test_pages_have_code():
  assert sum(len(blocks(page)) for page in PAGES) > 20


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs(path):
  notebook = json.loads(path.read_text())
  for cell in notebook["cells"]:
    assert not cell.get("outputs")
    assert not cell.get("execution_count")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_what_you_will_see_and_ends_with_an_exercise(path):
  cells = json.loads(path.read_text())["cells"]
  assert "**What you will see.**" in "".join(cells[0]["source"])
  assert "".join(cells[-1]["source"]).startswith("## Exercise")
