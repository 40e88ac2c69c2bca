"""The regressor is one of scikit-learn's, and knows no units."""

import itertools

import jax
import numpy as np
import pytest
from sklearn import base
from sklearn import model_selection
from sklearn import pipeline
from sklearn import preprocessing

from oflax.retrofit.tabpfn_v3 import InContextRegressor
from oflax.retrofit.tabpfn_v3 import regressor as regressor_module
from tests.retrofit import host
from tests.retrofit import oracle


@pytest.fixture
def data():
  x, y = oracle.table(24, 3, 24)
  x[3, 1] = np.nan
  return x, 50 + 9 * y.astype(np.float64)


@pytest.fixture
def regressor(data):
  return InContextRegressor(host.FILE).fit(data[0][:16], data[1][:16])


def test_predictions_are_those_of_the_network(regressor, data):
  x, y = data
  module, variables = host.model()
  train = y[:16]
  z = ((train - train.mean()) / train.std()).astype(np.float32)
  logits = host.program("host")(variables, x, z)
  logits = logits / module.config.softmax_temperature
  mean = regressor.distribution_.mean(logits)
  want = np.asarray(mean, np.float64) * train.std() + train.mean()
  np.testing.assert_allclose(regressor.predict(x[16:]), want, rtol=1e-5)


def test_it_has_the_units_of_its_targets(regressor, data):
  x, y = data
  other = InContextRegressor(host.FILE).fit(x[:16], 3 - 1000 * -y[:16])
  for method in ("predict", "predict_quantiles"):
    got = getattr(other, method)(x[16:])
    want = 3 + 1000 * getattr(regressor, method)(x[16:])
    np.testing.assert_allclose(got, want, rtol=1e-4)
  got = other.log_density(x[16:], 3 + 1000 * y[16:])
  want = regressor.log_density(x[16:], y[16:]) - np.log(1000)
  np.testing.assert_allclose(got, want, atol=1e-3)


@pytest.mark.parametrize("unit", [1e-250, 1e-9, 1e30, 1e250])
def test_it_has_no_units_of_its_columns(regressor, data, unit):
  x, y = data
  want = regressor.predict(x[16:])
  x = unit * (x.astype(np.float64) - [0, 1e6, -1e6])
  other = InContextRegressor(host.FILE).fit(x[:16], y[:16])
  np.testing.assert_allclose(other.predict(x[16:]), want, rtol=1e-5)


def test_cells_beyond_those_of_the_train_rows_are_finite(regressor, data):
  x = data[0][16:].astype(np.float64)
  x[:3] = x[0]
  x[:3, 0] = [1e300, -1e300, 1e30]
  predicted = regressor.predict(x)
  assert np.all(np.isfinite(predicted))
  assert predicted[0] == pytest.approx(predicted[2])  # Both far beyond ±100.
  x[0, 0] = np.inf
  assert regressor.predict(x)[0] != pytest.approx(predicted[0], rel=1e-3)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_it_has_the_units_of_targets_of_any_size(regressor, data, unit):
  x, y = data
  other = InContextRegressor(host.FILE).fit(x[:16], unit * y[:16])
  want = unit * regressor.predict(x[16:])
  np.testing.assert_allclose(other.predict(x[16:]), want, rtol=1e-5)


def test_it_keeps_what_it_was_fitted_to(regressor, data):
  x, y = data[0].copy(), data[1]
  want = regressor.predict(x[16:])
  other = InContextRegressor(host.FILE).fit(x[:16], y[:16])
  x[:16] = 99
  np.testing.assert_array_equal(other.predict(x[16:]), want)


def test_columns_are_known_by_their_names(data):
  pandas = pytest.importorskip("pandas")
  x, y = data
  frame = pandas.DataFrame(x, columns=list("abc"))
  model = InContextRegressor(host.FILE).fit(frame[:16], y[:16])
  assert model.predict(frame[16:]).shape == (8,)
  with pytest.raises(ValueError, match="feature names should match"):
    model.predict(frame[16:][list("cba")])


def test_masked_cells_are_missing(regressor, data):
  x = data[0][16:]
  hidden = np.ma.masked_array(x, mask=x > 0)
  want = regressor.predict(np.where(x > 0, np.nan, x))
  np.testing.assert_array_equal(regressor.predict(hidden), want)


def test_quantiles_increase_about_the_median(regressor, data):
  levels = (0.05, 0.5, 0.95)
  quantiles = regressor.predict_quantiles(data[0][16:], levels)
  assert quantiles.shape == (8, 3)
  assert np.all(np.diff(quantiles, axis=1) > 0)


def test_a_row_is_predicted_alike_in_any_company(regressor, data):
  x = data[0][16:]
  alone = np.concatenate([regressor.predict(row[None]) for row in x])
  np.testing.assert_allclose(regressor.predict(x), alone, rtol=1e-5)
  assert regressor.predict(x[:0]).shape == (0,)
  assert regressor.predict_quantiles(x[:0]).shape == (0, 3)


def test_one_permutation_is_the_network_to_the_bit(regressor, data):
  module, variables = host.model()
  padding = np.zeros((regressor_module.FEWEST_ROWS - 8, 3), np.float32)
  rest = regressor._within_range(data[0][16:].astype(np.float64))
  table = np.concatenate([regressor.x_, rest, padding])
  logits = regressor_module._apply(module, variables, table, regressor.y_)
  want = logits[:8] / module.config.softmax_temperature
  np.testing.assert_array_equal(regressor.predict_logits(data[0][16:]), want)


def test_permutations_average_probabilities(data):
  x, y = data
  model = InContextRegressor(host.model(), permutations=6)
  model.fit(x[:16], y[:16])
  orders = regressor_module.column_orders(3, 6)
  assert orders[0] == (0, 1, 2)
  mass, means, density = [], [], []
  for order in map(list, orders):
    alone = InContextRegressor(host.model()).fit(x[:16][:, order], y[:16])
    rest = x[16:][:, order]
    mass.append(jax.nn.softmax(alone.predict_logits(rest)))
    means.append(alone.predict(rest))
    density.append(np.exp(alone.log_density(rest, y[16:])))
  assert np.ptp([m[0] for m in means]) > 1e-3
  logits = model.predict_logits(x[16:])
  np.testing.assert_allclose(np.exp(logits), np.mean(mass, 0), atol=1e-6)
  np.testing.assert_allclose(
    model.predict(x[16:]), np.mean(means, 0), rtol=1e-5
  )
  got = model.log_density(x[16:], y[16:])
  np.testing.assert_allclose(got, np.log(np.mean(density, 0)), atol=1e-4)
  quantiles = model.predict_quantiles(x[16:])
  assert np.all(np.diff(quantiles, axis=1) > 0)


def test_of_few_columns_there_are_few_orders():
  orders = regressor_module.column_orders(3, 6)
  assert sorted(orders) == sorted(itertools.permutations(range(3)))
  assert regressor_module.column_orders(3, 99) == orders
  more = regressor_module.column_orders(9, 8)
  assert len(set(more)) == 8
  assert regressor_module.column_orders(9, 4) == more[:4]
  assert regressor_module.column_orders(1, 4) == [(0,)]


def test_all_orders_together_forget_the_order(data):
  x, y = data
  model = InContextRegressor(host.model(), permutations=6)
  want = model.fit(x[:16], y[:16]).predict(x[16:])
  got = model.fit(x[:16, [2, 0, 1]], y[:16]).predict(x[16:, [2, 0, 1]])
  np.testing.assert_allclose(got, want, rtol=1e-5)


def test_it_works_with_the_tools_of_scikit_learn(data):
  model = InContextRegressor(host.model(), softmax_temperature=1.0)
  again = base.clone(model)
  assert again.get_params()["softmax_temperature"] == 1.0
  steps = pipeline.make_pipeline(preprocessing.StandardScaler(), again)
  scores = model_selection.cross_val_score(steps, *data, cv=2)
  assert np.all(np.isfinite(scores))
  assert base.is_regressor(model)


def test_constant_targets_and_one_row_are_predicted(data):
  x, _ = data
  for rows in (1, 3, 16):
    # The mean of three times 0.1 is not 0.1.
    model = InContextRegressor(host.FILE).fit(x[:rows], np.full(rows, 0.1))
    assert (model.mean_, model.scale_) == (0.1, 1)
    assert np.all(np.isfinite(model.predict(x[16:])))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda m, x, y: m.fit(x, y[:3]), r"y must be \[N\].*got shape \(3,\)"),
    (lambda m, x, y: m.fit(x[0], y), r"X must be .*got shape \(3,\)"),
    (lambda m, x, y: m.fit(x, y * np.nan), "y must be finite, got 24"),
    (lambda m, x, y: m.predict(x[:, :2]), "2 features, .* expecting 3"),
    (lambda m, x, y: m.fit(x + 1j, y), "X must be real .* got complex"),
    (
      lambda m, x, y: InContextRegressor(5).fit(x, y),
      "model must be a file, or a pair .*, got 5",
    ),
    (
      lambda m, x, y: m.predict_quantiles(x, 0.5),
      r"levels must be \[q\], got shape \(\)",
    ),
    (
      lambda m, x, y: m.set_params(softmax_temperature=0.0).predict(x),
      r"softmax_temperature must be positive .* got 0\.0",
    ),
    (
      lambda m, x, y: m.predict_quantiles(x, [1.0]),
      r"levels must be in \(0, 1\), got 1\.0",
    ),
    (
      lambda m, x, y: m.set_params(softmax_temperature=0.0).fit(x, y),
      r"softmax_temperature must be positive .* got 0\.0",
    ),
    (
      lambda m, x, y: m.set_params(permutations=0).fit(x, y),
      "permutations must be a whole number of at least 1, got 0",
    ),
    (
      lambda m, x, y: InContextRegressor(host.FILE).predict(x),
      "is not fitted yet",
    ),
  ],
)
def test_wrong_input_is_named_with_its_value(regressor, data, call, message):
  with pytest.raises(ValueError, match=message):
    call(regressor, *data)
