"""Real regression tables, from packages that pip installs."""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import importlib.util
import re

import numpy as np

from oflax import _checks
from oflax.studies import tables_files
from oflax.studies.tables_sources import SOURCES

SEEDS = (0, 1, 2)
# Those of ISLP, whose requirements are heavy: pip install --no-deps ISLP
OPTIONAL = ("hitters", "college", "bikeshare", "wage")
NAMES = tuple(name for name in SOURCES if name not in OPTIONAL)
# The comparison as it was planned. The others came before it was run, to have
# enough tables without ISLP.
LATER = (
  "barley",
  "seattle-weather",
  "sf-temps",
  "anes96",
  "modechoice",
  "fertility",
)
PLANNED = tuple(name for name in SOURCES if name not in LATER)
# The tables of the retrofit study.
MATCHED = ("diabetes", "wine", "auto-mpg", "penguins", "cars", "grunfeld")


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
  """A table to predict one column of.

  Attributes:
    name: Of the table.
    x: Features, float64 ``[rows, C]``, NaN where missing.
    y: Targets, float64 ``[rows]``, finite.
    columns: Names of the C features.
    target: Name of what is predicted.
    source: The package and the file in it.
  """

  name: str
  x: np.ndarray
  y: np.ndarray
  columns: tuple[str, ...]
  target: str
  source: str


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """Rows of a table to learn from, and others to be judged on.

  Attributes:
    table: The name of the table.
    seed: Of the choice of rows.
    x_train: ``[N, C]``.
    y_train: ``[N]``.
    x_test: ``[M, C]``.
    y_test: ``[M]``.
  """

  table: str
  seed: int
  x_train: np.ndarray
  y_train: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray


def installed() -> tuple[str, ...]:
  """The names of the tables whose packages are there."""
  return tuple(
    name
    for name, source in SOURCES.items()
    if importlib.util.find_spec(source.package)
  )


def load(name: str) -> Table:
  """One of the tables, as it is in its package.

  Texts are codes and dates are numbers, as `tables_files.numbers` says. Rows
  without a target are left out, and so are constant columns.

  Args:
    name: One of `NAMES` or of `OPTIONAL`.

  Returns:
    The table.

  Raises:
    ValueError: There is no such table.
    ImportError: Its package is not installed; says how to install it.

  Example:
    >>> table = load("diabetes")
    >>> table.x.shape, table.columns[:3]
    ((442, 10), ('age', 'sex', 'bmi'))

  Reference: None.
  """
  _checks.check_choice("name", name, tuple(SOURCES))
  source = SOURCES[name]
  columns = tables_files.read(
    source.package,
    source.path,
    delimiter=source.delimiter,
    header=source.header,
  )
  compute = source.compute or (lambda c: c[source.target])
  y = compute(columns)
  known = np.isfinite(y)
  features = {
    column: values[known]
    for column, values in columns.items()
    if column not in (source.target, *source.drop)
    and re.fullmatch(source.keep, column)
    and len(np.unique(values[known])) > 1
  }
  return Table(
    name,
    np.stack(list(features.values()), axis=1),
    y[known],
    tuple(features),
    source.target,
    f"{source.package}: {source.path}",
  )


def split(table: Table, seed: int, train: int = 100, test: int = 100) -> Split:
  """Different rows of a table, by a seed.

  Args:
    table: To choose rows of.
    seed: Of the choice.
    train: Rows to learn from; at least 1.
    test: Rows to be judged on, at most: fewer where no more are left.

  Returns:
    The rows.

  Raises:
    ValueError: There is no row left to be judged on.

  Example:
    >>> half = split(load("wine"), seed=0)
    >>> half.x_train.shape, half.x_test.shape
    ((100, 12), (78, 12))

  Reference: None.
  """
  _checks.check_at_least("train", train, 1)
  _checks.check_at_least("test", test, 1)
  if train >= len(table.y):
    raise ValueError(
      f"train must be less than the {len(table.y)} rows of {table.name!r}, got"
      f" {train!r}."
    )
  order = np.random.default_rng(seed).permutation(len(table.y))
  learnt, judged = order[:train], order[train : train + test]
  return Split(
    table.name,
    seed,
    table.x[learnt],
    table.y[learnt],
    table.x[judged],
    table.y[judged],
  )


def splits(
  names: Sequence[str] = NAMES, seeds: Sequence[int] = SEEDS
) -> Iterator[Split]:
  """Every table with every seed, 100 rows to learn from.

  Args:
    names: Of the tables.
    seeds: Of the splits.

  Yields:
    The splits, table by table; each table is read once.

  Raises:
    ValueError: There is no such table.
    ImportError: A package is not installed.

  Example:
    >>> [(each.table, each.seed) for each in splits(["iris"], [3, 4])]
    [('iris', 3), ('iris', 4)]

  Reference: None.
  """
  for name in names:
    table = load(name)
    for seed in seeds:
      yield split(table, seed)


def matched(seeds: Sequence[int] = SEEDS) -> Iterator[Split]:
  """The cases of the retrofit study: its six tables with every seed."""
  return splits(MATCHED, seeds)
