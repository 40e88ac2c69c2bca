"""The retrofit study: its errors, its curve, and what deletions do."""

import dataclasses
import json

import numpy as np
import pytest

from oflax.retrofit.tabpfn_v3 import calibrated
from oflax.studies import retrofit_curve
from oflax.studies import retrofit_missing
from oflax.studies import retrofit_report
from oflax.studies.retrofit_cases import batches
from oflax.studies.retrofit_cases import predict
from oflax.studies.tables import Split
from tests.retrofit import host


def split(seed, train=12, test=5, columns=4):
  random = np.random.default_rng(seed)
  x = random.normal(size=(train + test, columns))
  x[2, 1] = x[train + 1, 0] = np.nan
  y = 10 + 3 * np.nan_to_num(x[:, 0]) + random.normal(size=len(x))
  return Split("made", seed, x[:train], y[:train], x[train:], y[train:])


@pytest.fixture(scope="module")
def made():
  return batches([split(seed) for seed in (0, 1)])


@pytest.fixture(scope="module")
def full():
  module, variables = host.model()
  module = module.clone(variant="full")
  return module, calibrated(module, variables)


@pytest.fixture(scope="module")
def deletions(full, made):
  return retrofit_missing.missing(*full, made, shares=(0.5,))


def test_a_batch_is_the_splits_in_units_of_their_train_targets(made):
  [batch] = made
  assert batch.x.shape == (2, 112, 4)
  assert batch.judged.sum() == 5
  np.testing.assert_allclose(batch.y.mean(1), 0, atol=1e-6)
  np.testing.assert_allclose(batch.y.std(1), 1, atol=1e-6)
  one = split(1)
  restored = batch.target[1, :5] * one.y_train.std() + one.y_train.mean()
  np.testing.assert_allclose(restored, one.y_test, rtol=1e-5)


def test_rows_that_fill_up_a_batch_are_not_judged(made):
  [batch] = made
  predicted = np.where(batch.judged, batch.target + 2, 1e9)
  np.testing.assert_allclose(batch.errors(predicted), 2, rtol=1e-6)


def test_predictions_do_not_depend_on_the_filling(full, made):
  [batch] = made
  other = batch.x.copy()
  other[:, batch.num_train + 5 :] = 7
  first = predict(*full, batch.x, batch.y)[:, :5]
  second = predict(*full, other, batch.y)[:, :5]
  np.testing.assert_allclose(first, second, atol=1e-5)


def test_a_smaller_alpha_changes_less(full, made):
  passes = []
  cases, points = retrofit_curve.curve(
    *full, made, alphas=(1e-9, 1e-1), on_pass=lambda: passes.append(1)
  )
  assert len(passes) == retrofit_curve.num_passes(1, 2)
  assert len(cases) == 2 * 2 * 2
  by = {(point.variant, point.alpha): point for point in points}
  for variant in retrofit_curve.VARIANTS:
    assert abs(by[variant, 1e-9].change) < 1e-5
    assert abs(by[variant, 1e-1].change) > 1e-4
  assert by["attention", 1e-1].basin < by["full", 1e-1].basin
  # √τ grows as √α does.
  grown = by["full", 1e-1].threshold / by["full", 1e-9].threshold
  assert grown == pytest.approx(1e4, rel=1e-3)


def test_thresholds_of_another_alpha_are_those_measured_for_it(full):
  scaled = retrofit_curve.at_alpha(full[1], 0.05)["calibration"]
  measured = calibrated(*full, 0.05)["calibration"]
  for site, tau in measured["block_0"].items():
    np.testing.assert_allclose(scaled["block_0"][site]["tau"], tau["tau"], 1e-5)


def test_the_interval_of_a_change_holds_it():
  random = np.random.default_rng(0)
  cases = [
    retrofit_curve.Case("t", i, "full", 1e-3, h := 0.5 + random.random(), h * f)
    for i, f in enumerate(1 + 0.01 * random.normal(size=18))
  ]
  change, low, high = retrofit_curve.change_of_mean(cases)
  assert low < change < high
  total = sum(c.error for c in cases) / sum(c.host for c in cases) - 1
  assert change == pytest.approx(total)


def test_null_tokens_are_dropped_rows_and_columns(deletions):
  claimed = [row for row in deletions if row.handling == "full, null tokens"]
  assert [row.kind for row in claimed] == ["rows", "columns"]
  assert max(row.against_dropping for row in claimed) < 1e-5


def test_each_handling_of_each_kind_is_told(deletions):
  for kind, handlings in retrofit_missing.HANDLINGS.items():
    mine = [row.handling for row in deletions if row.kind == kind]
    assert mine == list(handlings)


def test_what_is_absent_may_hold_anything(full, made):
  [batch] = made
  deletion = retrofit_missing.Deletion.draw(batch, "rows", 0.5)
  run = retrofit_missing._Runner(*full, lambda: None)
  want = run("full, null tokens", batch, deletion)
  gone = ~deletion.rows
  other = dataclasses.replace(
    batch,
    x=np.where(gone[..., None], np.float32(1e6), batch.x),
    y=np.where(gone[:, : batch.num_train], np.float32(1e6), batch.y),
  )
  got = run("full, null tokens", other, deletion)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("kind", retrofit_missing.KINDS)
def test_a_deletion_takes_as_many_of_each_sample(made, kind):
  [batch] = made
  deletion = retrofit_missing.Deletion.draw(batch, kind, 0.5)
  gone = {
    "rows": ~deletion.rows,
    "columns": ~deletion.columns,
    "cells": ~deletion.cells.reshape(2, -1),
  }
  for name, pattern in gone.items():
    count = round(0.5 * {"rows": 12, "columns": 4, "cells": 448}[name])
    assert pattern.sum(1).tolist() == [count * (name == kind)] * 2
  assert not gone["rows"][:, batch.num_train :].any()


def test_something_is_always_left(made):
  [batch] = made
  for kind in ("rows", "columns"):
    deletion = retrofit_missing.Deletion.draw(batch, kind, 1.0)
    assert deletion.rows[:, : batch.num_train].any(1).all()
    assert deletion.columns.any(1).all()


def test_without_its_indicator_a_missing_cell_is_its_mean(full, made):
  [batch] = made
  module, variables = full
  module = module.clone(variant="host")
  silent = retrofit_missing.without_indicators(module, variables)
  got = predict(module, silent, batch.x, batch.y)
  filled = retrofit_missing.mean_imputed(batch.x, batch.num_train)
  want = predict(module, variables, filled, batch.y)
  np.testing.assert_allclose(got, want, atol=2e-5)
  told = predict(module, variables, batch.x, batch.y)
  assert np.abs(told - want).max() > 1e-3


def test_a_column_without_a_train_cell_is_0():
  x = np.full((1, 3, 2), np.nan, np.float32)
  x[0, 0, 1], x[0, 2, 0] = 4, 9
  filled = retrofit_missing.mean_imputed(x, num_train=2)
  assert filled[0].tolist() == [[0, 4], [0, 4], [9, 4]]


def test_it_writes_numbers_and_figures(full, made, deletions, tmp_path):
  cases, points = retrofit_curve.curve(*full, made, alphas=(1e-3,))
  result = retrofit_report.Retrofit("made", cases, points, deletions)
  retrofit_report.write(tmp_path, result)
  assert {f.name for f in tmp_path.iterdir()} == set(retrofit_report.FILES)
  content = json.loads((tmp_path / "retrofit.json").read_text())
  assert len(content["cases"]) == 4
  assert content["missing"][0]["against_dropping"] is None
