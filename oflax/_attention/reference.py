"""OAttention as it is defined, with all scores at hand.

Heads come before tokens here, and the sources last, as the products want.
"""

import math

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from oflax import _numerics
from oflax._attention.operands import Operands
from oflax._attention.partition import Partition
from oflax._attention.sources import Sources

# What a checkpoint has to keep of a partition, lest it be computed again. It
# takes no more memory than the values do.
KEPT = "oflax partition"


def attend(
  operands: Operands, sources: Sources | None = None
) -> tuple[jax.Array, jax.Array]:
  """The gated mean of the values, and its support, for each head.

  Returns:
    ``[B, T, N, V]`` and boolean ``[B, T, N]``.
  """
  return finished(operands, summed(operands, sources))


def finished(
  operands: Operands, total: Partition
) -> tuple[jax.Array, jax.Array]:
  """As `attend`, from what `summed` returns for all sources."""
  return operands.gated(total.mean()), total.mass != 0


def summed(operands: Operands, sources: Sources | None = None) -> Partition:
  """The partition of the sources, with the receivers first.

  Returns:
    Maximum and mass ``[B, T, N]``, value ``[B, T, N, V]``.
  """
  if sources is None:
    sources = Sources.of(operands)
  bias, visible = additive(operands)
  result = partition(
    scaled_query(operands, sources.key.dtype),
    sources.key,
    sources.value,
    operands.source_presence,
    visible,
    bias,
    precision=operands.precision,
    shifted_key=sources.shifted_key,
    kept=_kept(operands, sources.key.dtype),
    maximum=operands.maximum,
  )
  return Partition(*(jnp.moveaxis(part, 1, 2) for part in result))


def weights(operands: Operands) -> jax.Array:
  """The weights of all pairs, ``[B, N, T, S]``."""
  sources = Sources.of(operands)
  bias, visible = additive(operands)
  e, _, mass = energies(
    scaled_query(operands, sources.key.dtype),
    sources.key,
    operands.source_presence,
    visible,
    bias,
    operands.precision,
    sources.shifted_key,
  )
  return _numerics.safe_divide(e * mass, jnp.sum(e * mass, -1, keepdims=True))


def partition(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  source_presence: jax.Array,
  visible: jax.Array | None,
  bias: jax.Array | None,
  *,
  precision: lax.PrecisionLike = None,
  shifted_key: jax.Array | None = None,
  kept: jax.Array | None = None,
  maximum: jax.Array | None = None,
) -> Partition:
  """The partition of all sources, of values ``[..., N, V, S]`` times mass.

  `kept` are the dropout factors of the weights, 0 or 1 / (1 − rate); `maximum`
  is as in `energies`.
  """
  e, maximum, mass = energies(
    q, k, source_presence, visible, bias, precision, shifted_key, maximum
  )
  total = jnp.einsum(
    "...nts,...s->...nt", e, mass[..., 0, 0, :], precision=precision
  )
  if kept is not None:
    e = e * kept
  value = _product("gts,gvs->gtv", e, v, precision)
  total, value = checkpoint_name((total, value), KEPT)
  return Partition(maximum, total, value)


def energies(
  q: jax.Array,
  k: jax.Array,
  source_presence: jax.Array,
  visible: jax.Array | None,
  bias: jax.Array | None,
  precision: lax.PrecisionLike,
  shifted_key: jax.Array | None = None,
  maximum: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  r"""The exponentials of the scores, relative to the largest present one.

  .. math:: E_{ij} = \exp(\min(s_{ij} + \log p^\circ_j - m_i, 60))

  for visible sources and 0 for others. Nulls are not in the maximum
  :math:`m_i`, lest they push all present weights to 0; hence the minimum.

  Args:
    q: Scaled queries, ``[..., N, T, H]``.
    k: ``[..., N, H, S]``.
    source_presence: ``[..., 1, 1, S]``.
    visible: Boolean, broadcastable to ``[..., N, T, S]``.
    bias: Added to the scores, broadcastable likewise, without −inf.
    precision: Of the products.
    shifted_key: The key with log p as one more feature, to have the product
      add it: a sum costs a pass over the scores.
    maximum: Where that of more sources is known, ``[..., N, T, 1]``.

  Returns:
    E ``[..., N, T, S]``, the maximum ``[..., N, T]`` and the mass of each
    source, to be taken with its value, ``[..., 1, 1, S]``.
  """
  mass, log_presence = _numerics.split_mass(source_presence)
  if shifted_key is None:
    s = _product("gth,ghs->gts", q, k, precision) + log_presence
  else:
    s = _shifted(q, k, shifted_key)
  return *relative(s, source_presence, visible, bias, maximum), mass


def relative(
  s: jax.Array,
  source_presence: jax.Array,
  visible: jax.Array | None,
  bias: jax.Array | None,
  maximum: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """`energies` without the mass, from scores and log p, ``[..., N, T, S]``."""
  if bias is not None:
    s = s + bias
  lowest = jnp.finfo(s.dtype).min
  if visible is not None:
    s = jnp.where(visible, s, lowest)
  # The weights do not depend on the maximum, so neither do their derivatives.
  top = maximum
  if top is None:
    top = _largest(lax.stop_gradient(s), source_presence != 0)
    top = checkpoint_name(jnp.where(top > lowest, top, 0), KEPT)
  return _numerics.bounded_exp(s - top), jnp.squeeze(top, -1)


def _largest(s: jax.Array, present: jax.Array) -> jax.Array:
  """The largest score of a present source; the lowest number if none is."""
  lowest = jnp.finfo(s.dtype).min

  def of_all(s: jax.Array) -> jax.Array:
    return jnp.max(s, axis=-1, keepdims=True, initial=lowest)

  def of_present(s: jax.Array) -> jax.Array:
    return of_all(jnp.where(present, s, lowest))

  # To look at the scores as they are spares a pass over them.
  return lax.cond(jnp.all(present), of_all, of_present, s)


@jax.custom_jvp
def _shifted(q: jax.Array, k: jax.Array, shifted_key: jax.Array) -> jax.Array:
  """The scores with log p, a constant: derivatives are those of q · k."""
  q = jnp.concatenate([q, jnp.ones_like(q[..., :1])], axis=-1)
  # log p must not be rounded, whatever the default precision is.
  return _product("gth,ghs->gts", q, shifted_key, lax.Precision.HIGHEST)


@_shifted.defjvp
def _shifted_jvp(
  primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
  (q, k, _), (dq, dk, _) = primals, tangents
  tangent = _product("gth,ghs->gts", dq, k, None)
  return _shifted(*primals), tangent + _product("gth,ghs->gts", q, dk, None)


def _product(
  spec: str, a: jax.Array, b: jax.Array, precision: lax.PrecisionLike
) -> jax.Array:
  """An einsum whose leading axes are made one, g: XLA handles that best."""
  lead = a.shape[:-2]
  a, b = (x.reshape(math.prod(lead), *x.shape[-2:]) for x in (a, b))
  c = jnp.einsum(spec, a, b, precision=precision)
  return c.reshape(*lead, *c.shape[-2:])


def additive(
  operands: Operands,
) -> tuple[jax.Array | None, jax.Array | None]:
  """The bias that is computed on, and the relation.

  No non-finite bias of an invisible pair or an absent token is computed on.
  """
  bias, visible = operands.bias, operands.visibility.relation()
  if bias is None or visible is None:
    return bias, visible
  absent = (operands.receiver_presence == 0) | (operands.source_presence == 0)
  bias = jnp.where((visible & ~absent) | jnp.isfinite(bias), bias, 0)
  # The lowest number of all says that a pair is invisible; half of it is left
  # to those who mask with a finite bias.
  return jnp.maximum(bias, jnp.finfo(bias.dtype).min / 2), visible


def scaled_query(operands: Operands, dtype: jnp.dtype) -> jax.Array:
  """Heads first, ``[B, N, T, H]``."""
  query = jnp.moveaxis(operands.finite_query().astype(dtype), 2, 1)
  return query * operands.scale


def _kept(operands: Operands, dtype: jnp.dtype) -> jax.Array | None:
  """The factor of every weight under dropout, or None without it."""
  rate, key = operands.dropout_rate, operands.dropout_key
  if rate == 0 or key is None:
    return None
  batch, heads, *pairs = operands.sizes
  shape = (1, 1) if operands.broadcast_dropout else (batch, heads)
  kept = jax.random.bernoulli(key, 1 - rate, (*shape, *pairs))
  return jnp.where(kept, 1 / (1 - rate), 0).astype(dtype)
