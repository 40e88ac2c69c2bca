"""The partition of OAttention, a commutative monoid whose identity is null."""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _numerics


class Partition(NamedTuple):
  r"""What N heads of T receivers have summed up of their sources.

  The true sums are e^maximum times the stored ones.

  Attributes:
    maximum: The largest exponent of a present visible source; 0 if there is
      none, ``[..., N, T]``.
    mass: :math:`\sum_j p_j e^{s_{ij}}`, relative; 0 just where the support is
      empty, else at least 1, ``[..., N, T]``.
    value: :math:`\sum_j p_j e^{s_{ij}} v_j`, relative, ``[..., N, T, V]``.
  """

  maximum: jax.Array
  mass: jax.Array
  value: jax.Array

  def mean(self) -> jax.Array:
    """The weighted mean of the values, ``[..., N, T, V]``; 0 if empty."""
    return _numerics.safe_divide(self.value, self.mass[..., None])


def identity_like(partition: Partition) -> Partition:
  """The partition of no sources, which is that of null sources."""
  return Partition(*(jnp.zeros_like(part) for part in partition))


def merge(a: Partition, b: Partition) -> Partition:
  """The partition of two disjoint sets of sources.

  Only supported partitions take part in the maximum, so that a null's scores
  never displace it and no infinity arises.
  """
  maximum = jnp.where(
    b.mass == 0,
    a.maximum,
    jnp.where(a.mass == 0, b.maximum, jnp.maximum(a.maximum, b.maximum)),
  )
  maximum = lax.stop_gradient(maximum)
  scales = [
    jnp.exp(jnp.minimum(part.maximum - maximum, _numerics.MAX_EXPONENT))
    for part in (a, b)
  ]
  return Partition(
    maximum,
    scales[0] * a.mass + scales[1] * b.mass,
    scales[0][..., None] * a.value + scales[1][..., None] * b.value,
  )
