"""The comparison on tables is fair, counts right, and is written and read."""

import dataclasses
import json

from matplotlib import pyplot as plt
import numpy as np
import pytest

from oflax.studies import tables
from oflax.studies import tables_compare
from oflax.studies import tables_report
from oflax.studies import tables_scores
from oflax.studies.tables_compare import Case


def case(table, seed, ours, ridge, forest):
  errors = {"in context": ours, "ridge": ridge, "random forest": forest}
  return Case(table, seed, train=100, test=50, columns=3, errors=errors)


CASES = [
  case("iris", 0, 0.2, 0.4, 0.2),
  case("iris", 1, 0.2, 0.2, 0.4),
  case("wine", 0, 0.9, 0.3, 0.1),
]


@pytest.fixture
def with_missing(monkeypatch):
  """Every table has a column without a value, and one that lacks some."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(130, 3))
  y = 100 + 20 * x[:, 0] + rng.normal(size=130)
  x[:, 1] = np.nan
  x[::3, 2] = np.nan

  def load(name):
    return tables.Table(name, x, y, ("a", "b", "c"), "target", "none")

  monkeypatch.setattr(tables, "load", load)
  return x, y


class Told:
  """Predicts the first feature, and remembers what it was given."""

  def __init__(self, given):
    self.given = given

  def fit(self, x, y):
    self.given.append((x, y))
    return self

  def predict(self, x):
    return 100 + 20 * x[:, 0]


def test_all_learn_from_the_same_rows_and_ours_sees_what_is_missing(
  with_missing,
):
  given, seen = [], []
  cases = tables_compare.compare(
    {"in context": lambda: Told(given)},
    ["p", "q"],
    seeds=(0, 1),
    on_case=seen.append,
  )
  assert seen == [case.table for case in cases] == ["p", "p", "q", "q"]
  assert [case.seed for case in cases] == [0, 1, 0, 1]
  assert [(case.train, case.test, case.columns) for case in cases] == [
    (100, 30, 3)
  ] * 4
  split = tables.split(tables.load("p"), 1)
  x, y = given[1]
  np.testing.assert_array_equal(x, split.x_train)
  assert np.isnan(x).any()
  np.testing.assert_array_equal(y, split.y_train)
  assert list(cases[0].errors) == ["in context", *tables_compare.baselines()]
  residual = split.y_test - 100 - 20 * split.x_test[:, 0]
  want = np.sqrt(np.mean(residual**2)) / np.std(split.y_train)
  np.testing.assert_allclose(cases[1].errors["in context"], want)
  assert cases[1].errors["ridge"] == pytest.approx(want, rel=0.2)
  assert cases[0].errors == cases[2].errors  # The same table by another name.


def test_a_divergent_regressor_is_refused(with_missing):
  class Diverged(Told):
    def predict(self, x):
      return np.full(len(x), np.nan)

  with pytest.raises(ValueError, match=r"'p', seed 0, .* got 30 that are not"):
    tables_compare.compare({"ours": lambda: Diverged([])}, ["p"], seeds=[0])


def test_components_stand_beside_the_columns_and_have_variance_1():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(50, 4))
  x[:, 1] = x[:, 0] + 1e-2 * x[:, 1]
  x[:, 3] = 2 * x[:, 0]  # Exactly: it adds no direction.
  shown = tables_compare.with_components("passthrough").fit_transform(x)
  np.testing.assert_array_equal(shown[:, :4], x)
  np.testing.assert_allclose(np.cov(shown[:, 4:].T), np.eye(3), atol=1e-9)
  x[7, 2] = np.nan
  shown = tables_compare.with_components("passthrough").fit_transform(x)
  np.testing.assert_array_equal(shown[:, :4], x)
  assert np.isfinite(shown[:, 4:]).all()


def test_means_and_ratios_are_those_of_the_cases():
  ours, ridge, _ = tables_scores.means(CASES)
  assert ours.regressor == "in context"
  assert ours.arithmetic == pytest.approx(1.3 / 3)
  assert ridge.geometric == pytest.approx((0.4 * 0.2 * 0.3) ** (1 / 3))
  ridge, forest = tables_scores.ratios(CASES)
  assert (ridge.baseline, ridge.better, ridge.cases) == ("ridge", 1, 3)
  assert ridge.mean == pytest.approx((0.5 * 1 * 3) ** (1 / 3))
  # Tables are resampled whole: all of one, or all of the other, is likely.
  assert (ridge.low, ridge.high) == pytest.approx((0.5**0.5, 3))
  assert (forest.low, forest.high) == pytest.approx((0.5**0.5, 9))
  assert {ratio.subject for ratio in (ridge, forest)} == {"in context"}
  for summary in (tables_scores.means, tables_scores.ratios):
    with pytest.raises(ValueError, match=r"cases must .* got \[\]"):
      summary([])


def test_in_context_regressors_are_not_compared_with_each_other(tmp_path):
  both = [
    dataclasses.replace(
      case, errors={"in context": 0.2, "any other": 0.1, "ridge": 0.4}
    )
    for case in CASES
  ]
  pairs = [(r.subject, r.baseline, r.mean) for r in tables_scores.ratios(both)]
  assert pairs == [
    ("in context", "ridge", pytest.approx(0.5)),
    ("any other", "ridge", pytest.approx(0.25)),
  ]
  sizes = []
  for cases in (CASES, both):
    tables_report.plot(cases, tmp_path / "ratios.png")
    sizes.append(plt.imread(tmp_path / "ratios.png").shape[1])
  assert sizes[1] > 1.5 * sizes[0]  # A panel for each.


def test_it_prints_a_row_for_each_case_and_the_ratios(capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", "100")
  tables_report.show(CASES)
  printed = capsys.readouterr().out
  for expected in ("iris", "0.900", "arithmetic mean", "0.433", "1 of 3"):
    assert expected in printed
  assert printed.count("iris") == 2
  assert printed.count("Ratios on") == 1


def test_ratios_of_the_planned_tables_stand_beside_those_of_all(
  tmp_path, capsys, monkeypatch
):
  monkeypatch.setenv("COLUMNS", "100")
  worst = {"in context": 9, "ridge": 1, "random forest": 1}
  more = dataclasses.replace(CASES[0], table=tables.LATER[0], errors=worst)
  tables_report.show([*CASES, more])
  tables_report.write([*CASES, more], tmp_path / "all.json")
  written = json.loads((tmp_path / "all.json").read_text())
  printed = capsys.readouterr().out
  for count, key in ((3, "ratios"), (2, "ratios of planned tables")):
    ridge = written[key][0]
    assert (ridge["baseline"], ridge["cases"]) == ("ridge", count + 1)
    assert f"Ratios on {count} tables" in printed
    assert f"{ridge['mean']:.3f}" in printed


def test_the_standard_ones_are_run_alone_with_progress(
  with_missing, capsys, monkeypatch
):
  monkeypatch.setenv("COLUMNS", "100")
  cases = tables_report.run({}, names=["p"], seeds=[0])
  assert set(cases[0].errors) == set(tables_compare.baselines())
  assert tables_scores.ratios(cases) == []
  printed = capsys.readouterr().out
  assert "100%" in printed
  assert "geometric mean" in printed
  assert f"{cases[0].errors['kNN']:.3f}" in printed


def test_cases_are_written_and_read(tmp_path):
  path = tmp_path / "tables.json"
  tables_report.write(CASES, path)
  assert tables_report.read(path) == CASES


def test_the_plot_has_a_row_for_each_table(tmp_path):
  path = tmp_path / "tables.png"
  tables_report.plot(CASES, path)
  assert path.stat().st_size > 10_000
  alone = [dataclasses.replace(CASES[0], errors={"ridge": 0.3})]
  with pytest.raises(ValueError, match=r"in-context .* \['ridge'\]"):
    tables_report.plot(alone, path)
