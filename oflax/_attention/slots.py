"""OAttention of a few receivers to the slots of a cache, where they are."""

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _numerics
from oflax._attention import reference
from oflax._attention.operands import Operands

# More receivers and heads that share a slot make it pay to move the slots.
FEW = 16


def fits(operands: Operands) -> bool:
  """Whether slots are better left where they are."""
  _, heads, receivers, sources = operands.sizes
  shared = heads // operands.key.shape[2]
  few = receivers * shared <= FEW and sources > receivers
  return few and not operands.dropout_rate


def attend(operands: Operands) -> tuple[jax.Array, jax.Array]:
  """As `reference.attend`, on slots that are stored heads first.

  A pass over them for what is not finite in empty ones costs as much as all the
  rest. So nobody looks, and what comes of it is seen in the result. Finite or
  not, they count for exactly 0: both ways to the result give the same bits.
  """
  key, value = operands.key, operands.value

  def of_finite() -> tuple[jax.Array, jax.Array]:
    return _sums(operands, *operands.finite_sources())

  total, summed = _sums(operands, key, value)
  finite = jnp.all(jnp.isfinite(summed)) & jnp.all(jnp.isfinite(total))
  total, summed = lax.cond(finite, lambda: (total, summed), of_finite)
  mean = _numerics.safe_divide(summed, total[..., None])
  outputs = operands.gated(jnp.moveaxis(mean, 1, 2))
  return outputs, jnp.moveaxis(total != 0, 1, 2)


def _sums(
  operands: Operands, key: jax.Array, value: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Σ p e^s, ``[B, N, T]``, and Σ p e^s v, ``[B, N, T, V]``, relative.

  The N / K heads that share slots are as more receivers of K heads.
  """
  batch, heads, receivers, sources = operands.sizes
  key, value = (
    jnp.moveaxis(x.astype(operands.dtype), 2, 1) for x in (key, value)
  )
  kv_heads = key.shape[1]
  together = (batch, kv_heads, heads // kv_heads * receivers)
  query = reference.scaled_query(operands, operands.dtype)
  query = query.reshape(*together, query.shape[-1])
  precision = operands.precision
  s = jnp.einsum("bkth,bksh->bkts", query, key, precision=precision)
  s = s.reshape(batch, heads, receivers, sources)
  present = operands.source_presence != 0
  # Whatever key an empty slot holds, its score is a number.
  s = jnp.where(present | jnp.isfinite(s), s, 0)
  mass, log_presence = _numerics.split_mass(operands.source_presence)
  bias, visible = reference.additive(operands)
  e, _ = reference.relative(
    s + log_presence, operands.source_presence, visible, bias
  )
  e *= mass
  summed = jnp.einsum(
    "bkts,bksv->bktv",
    e.reshape(*together, sources),
    value,
    precision=precision,
  )
  total = jnp.sum(e, axis=-1)
  return total, summed.reshape(*total.shape, value.shape[-1])
