"""The prior: tables to learn from are random, finite, and standardised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.studies import prior

SHAPE = {"tables": 40, "rows": 32, "columns": 5}


def draw(seed=0, train=24, **shape):
  key = jax.random.key(seed, impl="rbg")
  return prior.draw(key, **{**SHAPE, **shape}, train=train)


@pytest.fixture(scope="module")
def batch():
  return draw()


def test_shapes_are_those_asked_for(batch):
  x, y, y_test = batch
  assert (x.shape, y.shape, y_test.shape) == ((40, 32, 5), (40, 24), (40, 8))
  assert {a.dtype for a in batch} == {jnp.float32.dtype}


def test_targets_are_finite_and_bounded(batch):
  _, y, y_test = batch
  assert np.all(np.isfinite(y))
  assert np.max(np.abs(y_test)) <= prior.LIMIT


def test_train_rows_alone_standardise_the_targets(batch):
  _, y, y_test = batch
  np.testing.assert_allclose(np.mean(y, axis=1), 0, atol=1e-4)
  np.testing.assert_allclose(np.std(y, axis=1), 1, atol=1e-3)
  assert np.max(np.abs(np.mean(y_test, axis=1))) > 0.1
  # The same rows, split elsewhere: another mean, the same up to that.
  x, fewer, more = draw(train=16)
  np.testing.assert_array_equal(x, batch[0])
  for a, b in zip(y[:, :16], fewer, strict=True):
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(1, abs=1e-4)
  assert more.shape == (40, 16)


def test_only_cells_are_missing_and_of_some_columns(batch):
  x = np.asarray(batch[0])
  assert not np.any(np.isinf(x))
  share = np.mean(np.isnan(x), axis=1)
  assert 0.05 < np.mean(share > 0) < 0.4
  assert np.max(share) < 0.6


def test_columns_are_of_many_kinds(batch):
  x = np.asarray(batch[0]).swapaxes(1, 2).reshape(-1, 32)
  levels = [len(np.unique(column[~np.isnan(column)])) for column in x]
  assert min(levels) <= 2
  assert max(levels) >= 28
  assert len(set(levels)) > 10


def test_a_key_makes_one_batch_and_another_key_another(batch):
  for again, first in zip(draw(), batch, strict=True):
    np.testing.assert_array_equal(again, first)
  x, y, _ = draw(seed=1)
  assert not np.any(np.all(np.isclose(y, batch[1]), axis=1))
  assert len(np.unique(np.asarray(y)[:, 0])) > 30
  assert not np.array_equal(x, batch[0], equal_nan=True)


def test_targets_can_be_learnt(batch):
  """Least squares on the columns explains the test rows, in the median."""
  x, y, y_test = (np.asarray(a, np.float64) for a in batch)
  x = np.nan_to_num(x - np.nanmean(x, axis=1, keepdims=True))
  x = np.clip(x / (np.std(x, axis=1, keepdims=True) + 1e-6), -4, 4)
  train, test = x[:, :24], x[:, 24:]
  gram = np.einsum("brc,brd->bcd", train, train) + 2 * np.eye(5)
  moment = np.einsum("brc,br->bc", train, y)
  weights = np.linalg.solve(gram, moment[..., None])[..., 0]
  error = np.mean((np.einsum("brc,bc->br", test, weights) - y_test) ** 2, 1)
  assert 0.2 < np.median(error / np.mean(y_test**2, axis=1)) < 0.95


def test_memory_grows_as_the_table_does():
  """No intermediate holds a pair of rows, or a row of a pair of columns."""

  def largest(rows, columns):
    traced = jax.make_jaxpr(
      lambda key: prior.draw(
        key, tables=1, rows=rows, columns=columns, train=rows // 2
      )
    )(jax.random.key(0))
    return max(_sizes(traced.jaxpr))

  assert largest(512, 32) <= 16 * largest(128, 8)


def test_train_rows_must_fit():
  with pytest.raises(ValueError, match=r"rows=32, got 32"):
    draw(train=32)
  with pytest.raises(ValueError, match=r"at least 2"):
    draw(train=1)


def _sizes(jaxpr):
  for equation in jaxpr.eqns:
    yield from (v.aval.size for v in equation.outvars)
    for inner in jax.tree.leaves(
      list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
    ):
      inner = getattr(inner, "jaxpr", inner)
      if hasattr(inner, "eqns"):
        yield from _sizes(inner)
