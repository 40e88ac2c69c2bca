"""The tables are there, real, and split without overlap."""

import importlib.util

import numpy as np
import pytest

from oflax.studies import tables
from oflax.studies import tables_files

# Rows, columns, missing cells.
EXPECTED = {
  "diabetes": (442, 10, 0),
  "wine": (178, 12, 0),
  "breast-cancer": (569, 10, 0),
  "iris": (150, 3, 0),
  "penguins": (342, 7, 9),
  "cars": (406, 7, 14),
  "barley": (120, 3, 0),
  "seattle-weather": (1461, 6, 0),
  "sf-temps": (8759, 2, 0),
  "auto-mpg": (392, 7, 0),
  "grunfeld": (220, 4, 0),
  "randhie": (20190, 9, 0),
  "engel": (235, 1, 0),
  "fair": (6366, 8, 0),
  "star98": (303, 12, 0),
  "macrodata": (203, 12, 0),
  "anes96": (944, 9, 0),
  "modechoice": (840, 6, 0),
  "fertility": (204, 4, 36),
  "hitters": (263, 19, 0),
  "college": (777, 17, 0),
  "bikeshare": (8645, 11, 0),
  "wage": (3000, 8, 0),
}


def loaded(name):
  try:
    return tables.load(name)
  except ImportError as error:
    pytest.skip(str(error))


def test_the_list_is_fixed():
  assert (*tables.NAMES, *tables.OPTIONAL) == tuple(EXPECTED)
  assert set(tables.MATCHED) < set(tables.NAMES)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_table_has_its_shape_and_does_not_give_its_target_away(name):
  table = loaded(name)
  rows, columns, missing = EXPECTED[name]
  assert table.x.shape == (rows, columns)
  assert table.x.dtype == table.y.dtype == np.float64
  assert np.sum(np.isnan(table.x)) == missing
  assert not np.any(np.isinf(table.x))
  assert table.y.shape == (rows,)
  assert np.all(np.isfinite(table.y))
  assert len(set(table.columns) - {table.target}) == columns
  for column in table.x.T:
    known = np.isfinite(column)
    correlation = np.corrcoef(column[known], table.y[known])[0, 1]
    assert np.abs(correlation) < 0.995


def test_a_split_has_different_rows_chosen_by_its_seed():
  table = loaded("wine")
  whole = {(*x, y) for x, y in zip(table.x, table.y, strict=True)}
  split = tables.split(table, 3, train=100, test=30)
  x = np.concatenate([split.x_train, split.x_test])
  y = np.concatenate([split.y_train, split.y_test])
  assert len({(*a, b) for a, b in zip(x, y, strict=True)} & whole) == 130
  again, other = (tables.split(table, s, test=30) for s in (3, 4))
  np.testing.assert_array_equal(split.x_test, again.x_test)
  assert not np.array_equal(split.y_test, other.y_test)
  assert len(tables.split(table, 0).y_test) == 78


def test_the_retrofit_study_has_eighteen_cases():
  for name in tables.MATCHED:
    loaded(name)
  cases = list(tables.matched())
  assert len({(case.table, case.seed) for case in cases}) == 18
  assert all(len(case.y_train) == 100 for case in cases)


def test_files_of_any_kind_become_numbers(tmp_path, monkeypatch):
  (tmp_path / "__init__.py").write_text("raise AssertionError('imported')")
  (tmp_path / "a.json").write_text('[{"n": 2, "t": "b"}, {"n": null, "t": 3}]')
  (tmp_path / "b.csv").write_text("1;x\n2;NA\n")
  spec = importlib.util.spec_from_file_location(
    "kept", tmp_path / "__init__.py", submodule_search_locations=[str(tmp_path)]
  )
  monkeypatch.setattr(importlib.util, "find_spec", {"kept": spec}.get)
  got = tables_files.read("kept", "a.json")
  np.testing.assert_array_equal(got["n"], [2, np.nan])
  np.testing.assert_array_equal(got["t"], [1, 0])
  got = tables_files.read("kept", "b.csv", delimiter=";", header=("p", "q"))
  np.testing.assert_array_equal(got["p"], [1, 2])
  np.testing.assert_array_equal(got["q"], [0, np.nan])
  with pytest.raises(FileNotFoundError, match=r"of the package kept.*'c.csv'"):
    tables_files.read("kept", "c.csv")


@pytest.mark.parametrize(
  ("name", "command"),
  [
    ("wine", "pip install scikit-learn"),
    ("fair", "pip install statsmodels"),
    ("wage", "pip install --no-deps ISLP"),
  ],
)
def test_a_package_that_is_missing_is_named(name, command, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
  with pytest.raises(ImportError, match=f"not installed: {command}$"):
    tables.load(name)


def test_wrong_input_is_named_with_its_value():
  with pytest.raises(ValueError, match=r"name must be one of .*got 'boston'"):
    tables.load("boston")
  iris = loaded("iris")
  with pytest.raises(ValueError, match=r"train must be .* 150 rows .* got 150"):
    tables.split(iris, 0, train=150)
  with pytest.raises(ValueError, match=r"test must be .* at least 1, got 0"):
    tables.split(iris, 0, test=0)
