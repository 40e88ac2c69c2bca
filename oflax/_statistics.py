"""Sums over tokens, each weighed by its presence."""

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _checks
from oflax import _numerics
from oflax._numerics import AxisName


def o_standardize(
  values: jax.Array,
  presence: jax.Array,
  *,
  epsilon: float = 1e-6,
  axis_name: AxisName | None = None,
) -> jax.Array:
  r"""Standardises every feature over the tokens, each by its presence.

  .. math:: \mu = \frac{\sum_i p_i x_i}{\sum_i p_i}, \quad
     \sigma^2 = \frac{\sum_i p_i (x_i - \mu)^2}{\sum_i p_i}, \quad
     y_i = p_i \frac{x_i - \mu}{\sqrt{\sigma^2 + \epsilon}}

  Args:
    values: ``[..., n, d]``; statistics run over axis -2.
    presence: ``[..., n]`` or ``[n]``.
    epsilon: Positive, in units of the variance.
    axis_name: Mapped axis over which the tokens are split; statistics are of
      all.

  Returns:
    ``[..., n, d]`` in the dtype of `values`; 0 if no token is present.

  Raises:
    ValueError: `epsilon` is not positive, or the shapes do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> x = jnp.array([[-3.0], [-1.0], [0.0]])
    >>> o_standardize(x, jnp.array([1.0, 1.0, 0.0])).round(3).tolist()
    [[-1.0], [1.0], [0.0]]

  Reference: docs/concepts.md, OStandardize.
  """
  _checks.check_positive("epsilon", epsilon)
  values, p = _checks.carriers_and_presence("values", values, presence)
  x = _numerics.quarantine(values, p).astype(_numerics.wide_dtype(values, p))
  weights = _numerics.shares(p, -1, axis_name)[..., None]
  centred = x - _weighted_mean(x, weights, axis_name)
  unit = _numerics.square_unit(centred, -2, axis_name)
  centred = centred / unit
  variance = _numerics.total(weights * jnp.square(centred), -2, axis_name)
  scaled = centred * _numerics.inverse_root(variance, epsilon, unit)
  # With nothing present the mean is no statistic: no derivative through it.
  present = _numerics.largest((p != 0).astype(p.dtype), -1, axis_name)
  gated = _numerics.gate(scaled, p)
  return jnp.where(present[..., None] == 0, 0, gated).astype(values.dtype)


def o_pool(
  values: jax.Array,
  presence: jax.Array,
  *,
  axis_name: AxisName | None = None,
) -> jax.Array:
  r"""The mean over the tokens, each by its presence.

  .. math:: \sum_i p_i x_i / \sum_i p_i

  Args:
    values: ``[..., n, d]``; the mean runs over axis -2.
    presence: ``[..., n]`` or ``[n]``.
    axis_name: Mapped axis over which the tokens are split; the mean is of all.

  Returns:
    ``[..., d]`` in the dtype of `values`; 0 if no token is present.

  Raises:
    ValueError: The shapes do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> o_pool(jnp.array([[1.0], [3.0], [0.0]]), jnp.array([1, 1, 0])).tolist()
    [2.0]

  Reference: docs/concepts.md, OPool.
  """
  values, p = _checks.carriers_and_presence("values", values, presence)
  x = _numerics.quarantine(values, p).astype(_numerics.wide_dtype(values, p))
  weights = _numerics.shares(p, -1, axis_name)[..., None]
  mean = _weighted_mean(x, weights, axis_name)
  return jnp.squeeze(mean, -2).astype(values.dtype)


def present_mean(
  losses: jax.Array,
  presence: jax.Array,
  *,
  axis_name: AxisName | None = None,
) -> jax.Array:
  r"""The mean loss of the present tokens, over all axes.

  .. math:: \sum_i p_i \ell_i / \sum_i p_i

  No gradient flows through p: a model could lower its loss by shrinking the
  tokens it finds hard.

  Args:
    losses: One loss a token, ``[..., n]``.
    presence: ``[..., n]`` or ``[n]``.
    axis_name: Mapped axis over which the losses are split, by tokens or by
      samples, or several; the mean is of all.

  Returns:
    A float32 (or wider) scalar; 0 with zero gradient if nothing is present.

  Raises:
    ValueError: The shapes do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> present_mean(jnp.array([1.0, 3.0, 9.0]), jnp.array([1, 1, 0]))
    Array(2., dtype=float32)

  Reference: docs/concepts.md, presence.
  """
  losses = jnp.asarray(losses)
  _checks.check_floating("losses", losses)
  p = _checks.presence_of("presence", presence, losses.shape)
  p = lax.stop_gradient(p)
  losses = _numerics.quarantine(losses, p)
  weights = _numerics.shares(p, None, axis_name)
  losses = losses.astype(_numerics.wide_dtype(losses, p))
  return jnp.squeeze(_numerics.total(weights * losses, None, axis_name))


def _weighted_mean(
  x: jax.Array, weights: jax.Array, axis_name: AxisName | None
) -> jax.Array:
  """Σ w x over axis -2, kept; corrected once, so that a constant is exact."""
  mean = _numerics.total(weights * x, -2, axis_name)
  return mean + _numerics.total(weights * (x - mean), -2, axis_name)
