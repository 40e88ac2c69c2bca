"""From a table of numbers to the numbers in its cell tokens.

Everything here weighs rows by whether they are there, and counts columns among
those that are there: dropping absent ones first changes nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np

from oflax import _presence
from oflax.retrofit.tabpfn_v3.config import V3Config

# What a cell that is no number says of itself.
NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY = -2.0, 2.0, 4.0
LIMIT = 100.0
EPSILON = float(np.finfo(np.float32).eps)


def cell_features(
  x: jax.Array,
  train_weight: jax.Array,
  column_present: jax.Array | None,
  config: V3Config,
) -> jax.Array:
  """What enters the token of every cell.

  Args:
    x: The table, a column a row of it: ``[..., C, R]``, train rows first.
    train_weight: ``[..., N]``: 1 for train rows that are there, else 0.
    column_present: Boolean ``[..., C]``; None: all.
    config: Says how many columns share a token.

  Returns:
    ``[..., C, R, F]``: the standardised values of a few columns after its own,
    then what kind of number they were.
  """
  parts = [standardized(x, train_weight)]
  if config.use_nan_indicators:
    parts.append(indicators(x))
  offsets = [2**i for i in range(config.feature_group_size)]
  return jnp.stack(
    [_ahead(p, offset, column_present) for p in parts for offset in offsets],
    axis=-1,
  )


def indicators(x: jax.Array) -> jax.Array:
  """0 for numbers, and else a code of what stands in their place."""
  infinite = jnp.where(x > 0, POSITIVE_INFINITY, NEGATIVE_INFINITY)
  code = jnp.where(jnp.isnan(x), NAN, infinite)
  return jnp.where(jnp.isfinite(x), 0.0, code).astype(x.dtype)


def standardized(x: jax.Array, train_weight: jax.Array) -> jax.Array:
  """Columns in units of the train rows' deviation from their mean.

  Cells that are no number take the mean of the train rows that are.

  Args:
    x: ``[..., C, R]``.
    train_weight: ``[..., N]``, 0 or 1.

  Returns:
    ``[..., C, R]``, finite, within ±100; computed in float32 or wider.
  """
  dtype = x.dtype
  x = x.astype(jnp.promote_types(dtype, jnp.float32))
  weight = train_weight[..., None, :].astype(x.dtype)
  finite = jnp.isfinite(x)
  known = finite[..., : weight.shape[-1]] & (weight > 0)
  # Counted from a cell of its own, a constant column is exactly 0 whatever the
  # order of summation: an ulp of it would else be blown up to size 1.
  x = jnp.where(finite, x - _smallest(x, known), 0)
  mean = _sum(x, known) / jnp.maximum(_sum(jnp.ones_like(x), known), 1)
  x = jnp.where(finite, x, mean)

  rows = jnp.sum(weight, axis=-1, keepdims=True)
  x = x - _sum(x, weight) / jnp.maximum(rows, 1)
  variance = _sum(jnp.square(x), weight) / jnp.maximum(rows - 1, 1)
  varies = (rows > 1) & (variance > 0)
  deviation = jnp.where(varies, jnp.sqrt(jnp.where(varies, variance, 1)), 1)
  return jnp.clip(x / (deviation + EPSILON), -LIMIT, LIMIT).astype(dtype)


def known_targets(y: jax.Array, train_weight: jax.Array) -> jax.Array:
  """Targets ``[..., N]``; what is no number takes the mean of the others."""
  known = jnp.isfinite(y) & (train_weight > 0)
  count = jnp.sum(known, axis=-1, keepdims=True)
  total = jnp.sum(jnp.where(known, y, 0), axis=-1, keepdims=True)
  return jnp.where(known, y, total / jnp.maximum(count, 1))


def _smallest(x: jax.Array, known: jax.Array) -> jax.Array:
  """The smallest known train cell of each column, 0 if there is none."""
  largest = jnp.finfo(x.dtype).max
  train = jnp.where(known, x[..., : known.shape[-1]], largest)
  least = jnp.min(train, axis=-1, keepdims=True)
  return jnp.where(jnp.any(known, axis=-1, keepdims=True), least, 0)


def _sum(x: jax.Array, weight: jax.Array) -> jax.Array:
  """Over train rows that count, ``[..., C, 1]``: others may hold anything."""
  weight = jnp.broadcast_to(weight, (*x.shape[:-1], weight.shape[-1]))
  train = jnp.where(weight > 0, x[..., : weight.shape[-1]], 0)
  return jnp.sum(train, axis=-1, keepdims=True)


def _ahead(
  cells: jax.Array, offset: int, column_present: jax.Array | None
) -> jax.Array:
  """To each column the one `offset` after it, in a circle of those present."""
  if column_present is None:
    return jnp.roll(cells, -offset, axis=-2)
  rank = _presence.presence_rank(column_present)
  count = jnp.sum(column_present, axis=-1, keepdims=True, dtype=jnp.int32)
  order = jnp.argsort(~column_present, axis=-1, stable=True)
  wanted = (rank + offset) % jnp.maximum(count, 1)
  source = jnp.take_along_axis(order, wanted, axis=-1)
  return jnp.take_along_axis(cells, source[..., None], axis=-2)
