"""First lines and bodies of the docstrings of Python's standard library."""

import ast
from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import inspect
import pathlib
import sys
import sysconfig
import warnings
import zlib

import numpy as np

# Long enough to be told from others, by words.
FIRST_WORDS = 4
BODY_WORDS = 12
# Every so manieth module is held out for calibration.
HELD_OUT = 5
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "__pycache__"}
_DOCUMENTED = (
  ast.Module,
  ast.ClassDef,
  ast.FunctionDef,
  ast.AsyncFunctionDef,
)


@dataclasses.dataclass(frozen=True)
class Pair:
  """A docstring.

  Attributes:
    module: The file it is in, such as "json/decoder.py".
    first: Its first line.
    body: What comes after it.
  """

  module: str
  first: str
  body: str


def collect(
  on_module: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Pair], list[Pair]]:
  """The pairs to evaluate on, and those held out for calibration.

  The two are of different modules, told apart by the module's name, whatever
  the version of Python. A first line or body that was there before is left
  out: it would have no one right answer.

  Args:
    on_module: Called with the number of modules done and in all.

  Returns:
    Both in the order of the files.
  """
  root = pathlib.Path(sysconfig.get_path("stdlib"))
  paths = sorted(_sources(root))
  evaluated: list[Pair] = []
  held_out: list[Pair] = []
  seen: set[str] = set()
  for done, path in enumerate(paths, start=1):
    module = path.relative_to(root).as_posix()
    kept = held_out if _is_held_out(module) else evaluated
    for first, body in pairs_in(path.read_text("utf-8", errors="replace")):
      if first not in seen and body not in seen:
        kept.append(Pair(module, first, body))
      seen |= {first, body}
    on_module(done, len(paths))
  return evaluated, held_out


def pairs_in(source: str) -> Iterator[tuple[str, str]]:
  r"""The first lines and bodies of the docstrings in a source.

  Args:
    source: Of a module; nothing is yielded if it does not parse.

  Yields:
    First line and body, where both are long enough.

  Example:
    >>> body = "and so on " * 5
    >>> list(pairs_in(f"'''One two three four.\n\n{body}'''"))[0][0]
    'One two three four.'

  Reference: None.
  """
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # Old sources have old escapes.
      tree = ast.parse(source)
  except (SyntaxError, ValueError):
    return
  for node in ast.walk(tree):
    if not isinstance(node, _DOCUMENTED):
      continue
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    first, _, body = text.partition("\n")
    first, body = first.strip(), body.strip()
    if len(first.split()) >= FIRST_WORDS and len(body.split()) >= BODY_WORDS:
      yield first, body


def choose(pairs: list[Pair], count: int, seed: int) -> list[Pair]:
  """Some of the pairs, by a seed.

  Raises:
    ValueError: There are fewer than `count`.
  """
  if count > len(pairs):
    raise ValueError(f"count must be at most {len(pairs)}, got {count!r}.")
  order = np.random.default_rng(seed).permutation(len(pairs))
  return [pairs[i] for i in order[:count]]


def _sources(root: pathlib.Path) -> Iterator[pathlib.Path]:
  """The files of the standard library, without tests and installed packages."""
  for path in root.rglob("*.py"):
    parts = path.relative_to(root).parts
    top = parts[0].removesuffix(".py")
    if top in sys.stdlib_module_names and not _SKIPPED & set(parts):
      yield path


def _is_held_out(module: str) -> bool:
  return zlib.crc32(module.encode()) % HELD_OUT == 0
