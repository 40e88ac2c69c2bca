"""Keys and values as the products of attention take them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from oflax import _numerics
from oflax._attention.operands import Operands


class Sources(NamedTuple):
  """Heads first, as many as the query has, in float32 or wider.

  The sources come last: so the products, those of the backward pass above all,
  are fastest on CPU.

  Attributes:
    key: ``[B, N, H, S]``.
    value: ``[B, N, V, S]``, times the mass of each source.
    shifted_key: The key with log p as one more feature, a constant; or None.
  """

  key: jax.Array
  value: jax.Array
  shifted_key: jax.Array | None

  @classmethod
  def of(cls, operands: Operands) -> "Sources":
    """The sources of `operands`."""
    heads = operands.sizes[1]
    key, value = (
      _moved(x.astype(operands.dtype), heads) for x in operands.finite_sources()
    )
    mass, log_presence = _numerics.split_mass(operands.source_presence)
    shifted_key = None
    if operands.precision is None and jax.default_backend() == "cpu":
      row = jnp.broadcast_to(log_presence, (*key.shape[:2], 1, key.shape[-1]))
      shifted_key = jnp.concatenate([key, row.astype(key.dtype)], axis=-2)
    return cls(key, value * mass, shifted_key)


def _moved(x: jax.Array, heads: int) -> jax.Array:
  """``[B, S, K, features]`` as ``[B, heads, features, S]``.

  Each of the K heads several times in a row, as a broadcast: `jnp.repeat` has a
  slow derivative.
  """
  x = jnp.moveaxis(x, 1, 3)
  batch, kv_heads, *rest = x.shape
  shape = (batch, kv_heads, heads // kv_heads, *rest)
  return jnp.broadcast_to(x[:, :, None], shape).reshape(batch, heads, *rest)
