"""The bar distribution is one: it integrates to 1, and its parts agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.retrofit.tabpfn_v3 import BarDistribution
from oflax.retrofit.tabpfn_v3 import default_borders

BARS = BarDistribution(jnp.array([-2.0, -1.0, 0.5, 1.0, 3.0]))
LOGITS = jnp.array([[0.3, -1.0, 2.0, 0.5], [1.5, 0.0, -3.0, 1.0]])
# Beyond the borders too: the tails are there.
GRID = jnp.linspace(-12, 24, 72001)
STEP = 36 / 72000


def density(logits):
  every = jnp.broadcast_to(logits, (GRID.size, logits.size))
  return np.exp(np.asarray(BARS.log_density(every, GRID), np.float64))


@pytest.mark.parametrize("i", [0, 1])
def test_the_density_integrates_to_1_and_has_the_mean(i):
  p = density(LOGITS[i])
  assert np.sum(p) * STEP == pytest.approx(1, abs=1e-3)
  mean = float(BARS.mean(LOGITS)[i])
  assert np.sum(p * GRID) * STEP == pytest.approx(mean, abs=2e-3)


def test_quantiles_have_their_levels_below_them():
  levels = jnp.array([0.001, 0.02, 0.3, 0.5, 0.9, 0.999])
  quantiles = BARS.quantiles(LOGITS, levels)
  assert quantiles.shape == (2, 6)
  for logits, row in zip(LOGITS, quantiles, strict=True):
    p = density(logits)
    below = [np.sum(p[np.asarray(GRID <= q)]) * STEP for q in row]
    np.testing.assert_allclose(below, levels, atol=1e-3)


def test_it_passes_through_transformations():
  want = BARS.mean(LOGITS)
  got = jax.jit(jax.vmap(lambda bars, x: bars.mean(x), (None, 0)))(BARS, LOGITS)
  np.testing.assert_allclose(got, want, rtol=1e-6)
  gradient = jax.grad(lambda x: jnp.sum(BARS.log_density(x, want)))(LOGITS)
  assert bool(jnp.all(jnp.isfinite(gradient)))


def test_borders_of_numpy_are_those_of_jax():
  bars = BarDistribution(default_borders(3))
  logits, levels = jnp.zeros(3), jnp.array([0.1, 0.5])
  assert float(bars.mean(logits)) == 0
  quantiles = jax.jit(bars.quantiles)(logits, levels)
  np.testing.assert_allclose(quantiles, bars.quantiles(logits, levels))
  assert bars.quantiles(jnp.zeros((0, 3)), levels).shape == (0, 2)


def test_default_borders_are_symmetric_and_increase():
  for buckets in (2, 7, 100, 5000):
    borders = default_borders(buckets)
    assert borders.shape == (buckets + 1,)
    assert np.all(np.diff(borders) > 0)
    np.testing.assert_allclose(borders, -borders[::-1], atol=1e-5)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: BarDistribution(jnp.zeros(2)), r"borders must be .*got shape \(2"),
    (lambda: BarDistribution(jnp.zeros(4)), "borders must .* increase, got"),
    (
      lambda: BarDistribution(jnp.array([0.0, 1.0, jnp.inf])),
      r"borders must be finite .* inf\]",
    ),
    (lambda: BARS.mean(jnp.zeros(3)), r"logits must be .* got shape \(3,\)"),
    (lambda: BARS.log_density(LOGITS, 0.0), r"y must have shape \(2,\).*\(\)"),
    (lambda: BARS.quantiles(LOGITS, 0.5), r"levels must be \[q\].*\(\)"),
    (lambda: default_borders(1), "num_buckets must be .*got 1"),
  ],
)
def test_wrong_input_is_named_with_its_value(call, message):
  with pytest.raises(ValueError, match=message):
    call()
