"""OAttention as it is defined, with all scores at hand.

Heads come first here, ``[..., N, tokens, features]``, as the products want.
"""

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _numerics
from oflax._attention.partition import Partition


def energies(
  q: jax.Array,
  k: jax.Array,
  source_presence: jax.Array,
  visible: jax.Array | None,
  bias: jax.Array | None,
  precision: lax.PrecisionLike,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  r"""The exponentials of the scores, relative to the largest present one.

  .. math:: E_{ij} = \exp(\min(s_{ij} + \log p^\circ_j - m_i, 80))

  for visible sources and 0 for others. Nulls are not in the maximum
  :math:`m_i`, lest they push all present weights to 0; hence the minimum.

  Args:
    q: Scaled queries, ``[..., N, T, H]``.
    k: ``[..., N, S, H]``.
    source_presence: ``[..., S]``.
    visible: Boolean, broadcastable to ``[..., N, T, S]``.
    bias: Added to the scores, broadcastable likewise, without −inf.
    precision: Of the products.

  Returns:
    E ``[..., N, T, S]``, the maximum ``[..., N, T]`` and the mass of each
    source, to be taken with its value, ``[..., S]``.
  """
  mass, log_presence = _numerics.split_mass(source_presence)
  s = jnp.einsum("...th,...sh->...ts", q, k, precision=precision)
  if bias is not None:
    s = s + bias
  s = s + log_presence[..., None, None, :]

  present = (source_presence != 0)[..., None, None, :]
  candidates = present if visible is None else present & visible
  supported = jnp.any(candidates, axis=-1, keepdims=True)
  everyone = True if visible is None else visible
  competing = candidates | (everyone & ~supported)
  lowest = jnp.finfo(s.dtype).min
  top = jnp.max(
    jnp.where(competing, s, lowest), axis=-1, keepdims=True, initial=lowest
  )
  top = jnp.where(jnp.any(competing, axis=-1, keepdims=True), top, 0)
  # The weights do not depend on the maximum, so neither do their derivatives.
  top = lax.stop_gradient(top)
  e = jnp.exp(jnp.minimum(s - top, _numerics.MAX_EXPONENT))
  e = e if visible is None else jnp.where(visible, e, 0)
  return e, jnp.squeeze(top, -1), mass


def partition(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  source_presence: jax.Array,
  visible: jax.Array | None,
  bias: jax.Array | None,
  *,
  precision: lax.PrecisionLike = None,
  kept: jax.Array | None = None,
) -> Partition:
  """The partition of all sources, of values ``[..., N, S, V]``.

  `kept` are the dropout factors of the weights, 0 or 1 / (1 − rate).
  """
  e, maximum, mass = energies(q, k, source_presence, visible, bias, precision)
  weight = mass[..., None, :, None]
  if kept is None:
    # A column of ones beside the values sums up the mass in the same product.
    columns = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1) * weight
    sums = jnp.einsum("...ts,...sv->...tv", e, columns, precision=precision)
    return Partition(maximum, sums[..., -1], sums[..., :-1])
  total = jnp.einsum("...nts,...s->...nt", e, mass, precision=precision)
  value = jnp.einsum(
    "...ts,...sv->...tv", e * kept, v * weight, precision=precision
  )
  return Partition(maximum, total, value)
