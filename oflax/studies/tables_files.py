"""Data files inside installed packages, read as columns of numbers.

The files are found without importing their packages, so nothing of what those
packages need has to be installed beside them.
"""

from collections.abc import Sequence
import csv
import datetime
import gzip
import importlib.util
import json
import math
import pathlib

import numpy as np

Columns = dict[str, np.ndarray]
# What pip is told to install, where that is not the name of the module.
_PIP = {"sklearn": "scikit-learn", "ISLP": "--no-deps ISLP"}
_MISSING = frozenset({"", "NA", "NaN", "nan"})


def read(
  package: str,
  path: str,
  *,
  delimiter: str = ",",
  header: Sequence[str] = (),
) -> Columns:
  """The columns of a data file, all of them numbers as `numbers` says.

  Args:
    package: The module that has the file, such as "statsmodels".
    path: Of the file in it: CSV, CSV in gzip, or a JSON list of records. For
      "sklearn": the name of one of its loaders, such as "load_wine".
    delimiter: Between the cells of CSV.
    header: Names of the columns, for a CSV file without.

  Returns:
    Name to float64 ``[rows]``, in the order of the file.

  Raises:
    ImportError: The package is not installed.
    FileNotFoundError: It has no such file.

  Example:
    >>> list(read("sklearn", "load_iris"))[-2:]
    ['petal width (cm)', 'target']

  Reference: None.
  """
  root = _root(package)
  if package == "sklearn":
    return _of_loader(path)
  file = root / path
  if not file.is_file():
    raise FileNotFoundError(
      f"path must be a file of the package {package}, and the version at"
      f" {root} has no {path!r}."
    )
  if file.suffix == ".json":
    records = json.loads(file.read_text("utf-8"))
    rows = [list(records[0]), *(list(r.values()) for r in records)]
  else:
    rows = [list(header)] if header else []
    rows += _of_csv(file, delimiter)
  columns: Columns = {}
  for name, *cells in zip(*rows, strict=True):
    texts = ["" if cell is None else str(cell) for cell in cells]
    columns |= numbers(name.strip("'"), texts)
  return columns


def numbers(name: str, texts: Sequence[str]) -> Columns:
  """The cells of one column of a file as numbers.

  Numbers are themselves. A date becomes three columns: year, day of the year,
  hour. Any other text becomes a code: its index in the sorted list of the
  column's texts. What is missing, "" or "NA", is NaN.

  Args:
    name: Of the column.
    texts: Its cells.

  Returns:
    One column, or three for dates.

  Example:
    >>> numbers("size", ["3", "NA"])
    {'size': array([ 3., nan])}
    >>> numbers("ground", ["sand", "loam", "", "sand"])
    {'ground': array([ 1.,  0., nan,  1.])}
    >>> {k: v.item() for k, v in numbers("at", ["2010/02/01 07:00"]).items()}
    {'at (year)': 2010.0, 'at (day)': 32.0, 'at (hour)': 7.0}

  Reference: None.
  """
  known = sorted(set(texts) - _MISSING)

  def column(values: Sequence[float]) -> np.ndarray:
    of = dict(zip(known, values, strict=True))
    return np.array([of.get(text, math.nan) for text in texts], np.float64)

  try:
    return {name: column([float(text) for text in known])}
  except ValueError:
    pass
  try:
    dates = [_date(text) for text in known]
  except ValueError:
    return {name: column(range(len(known)))}
  return {
    f"{name} (year)": column([date.year for date in dates]),
    f"{name} (day)": column([date.timetuple().tm_yday for date in dates]),
    f"{name} (hour)": column([date.hour for date in dates]),
  }


def _root(package: str) -> pathlib.Path:
  """The folder of a package, which is not imported."""
  spec = importlib.util.find_spec(package)
  if spec is None or not spec.submodule_search_locations:
    command = f"pip install {_PIP.get(package, package)}"
    raise ImportError(
      f"The tables need the package {package}, which is not installed:"
      f" {command}",
      name=package,
    )
  return pathlib.Path(spec.submodule_search_locations[0])


def _of_loader(name: str) -> Columns:
  from sklearn import datasets

  bunch = getattr(datasets, name)()
  names = map(str, bunch.feature_names)
  columns = dict(zip(names, bunch.data.T, strict=True))
  return columns | {"target": np.asarray(bunch.target, np.float64)}


def _of_csv(file: pathlib.Path, delimiter: str) -> list[list[str]]:
  opened = gzip.open if file.suffix == ".gz" else open
  with opened(file, "rt", encoding="utf-8", newline="") as lines:
    return list(csv.reader(lines, delimiter=delimiter))


def _date(text: str) -> datetime.datetime:
  return datetime.datetime.fromisoformat(text.replace("/", "-"))
