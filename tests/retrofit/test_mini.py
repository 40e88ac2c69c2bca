"""The shipped v3-mini: where it comes from, what it can, that it is closed."""

import csv

import jax
import numpy as np
import pytest

from oflax.retrofit.tabpfn_v3 import InContextRegressor
from oflax.retrofit.tabpfn_v3 import files
from oflax.retrofit.tabpfn_v3 import load
from oflax.retrofit.tabpfn_v3 import loading
from oflax.studies import retrofit_curve
from oflax.studies.retrofit_cases import predict

N, M, C = 20, 6, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N + M, C)).astype(np.float32)
TARGET = X @ RNG.normal(size=C) + 0.1 * RNG.normal(size=N + M)
Y = (TARGET[:N] - TARGET[:N].mean()) / TARGET[:N].std()
Y = Y.astype(np.float32)


@pytest.fixture(scope="module")
def full():
  return load(variant="full")


def test_its_file_says_how_it_was_made():
  assert loading.MINI.stat().st_size < 4_000_000
  notes = files.read(loading.MINI).entries["pretraining"]
  assert set(notes) == {"seed", "steps", "commit", "jax"}
  with loading.MINI.with_suffix(".csv").open() as log:
    rows = list(csv.DictReader(log))
  assert int(rows[-1]["step"]) == notes["steps"]


def test_its_thresholds_are_in_the_file(full):
  tau = jax.tree.leaves(full[1]["calibration"])
  assert all(0 < float(value) != 1 for value in tau)


def test_it_learns_in_context():
  random = np.random.default_rng(1)
  x = random.normal(size=(150, 3))
  y = x @ [1.0, -2.0, 0.5] + np.abs(x[:, 0])
  regressor = InContextRegressor().fit(x[:100], y[:100])
  assert regressor.score(x[100:], y[100:]) > 0.9


PLACES = {
  "appended": ([*range(N), *range(N + 4, N + 4 + M)], [*range(C)]),
  "interleaved": (
    [i + i // 6 for i in range(N)] + [N + 4 + i for i in range(M)],
    [0, 2, 3, 5, 6],
  ),
}


@pytest.mark.parametrize("place", PLACES)
def test_null_rows_and_columns_change_no_prediction(full, place):
  rows, columns = PLACES[place]
  want = predict(*full, X, Y)
  x = np.full((N + 4 + M, C + 2), 7, np.float32)
  x[np.ix_(rows, columns)] = X
  y = np.full(N + 4, 7, np.float32)
  y[rows[:N]] = Y
  present = np.zeros(N + 4 + M, bool), np.zeros(C + 2, bool)
  present[0][rows] = present[1][columns] = True
  got = predict(*full, x, y, row_present=present[0], column_present=present[1])
  np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_nearly_null_rows_stay_so_up_to_a_thirtieth_of_the_threshold(full):
  basin, threshold = retrofit_curve.null_basin(*full, "full")
  assert basin > threshold / 30
