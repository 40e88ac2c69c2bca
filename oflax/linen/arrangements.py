"""The order in which a stack of blocks holds its tokens on a mesh."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax.linen import placement


@dataclasses.dataclass(frozen=True)
class Arrangement:
  """Tokens filled up with nulls, and dealt so that every shard has equal work.

  Closure makes both free: nulls change nothing, and positions go along.

  Under causal order the first shard would have little to look at and the last
  one all. So the tokens are cut into two pieces a shard, and shard i has piece
  i from the front and piece i from behind.

  Attributes:
    shards: Into how many parts the tokens are cut; 0: leave them.
    dealt: Whether two pieces go to each shard.
  """

  shards: int
  dealt: bool = False

  def arrange(
    self, carriers: jax.Array, mask: Any, positions: Any, segments: Any
  ) -> tuple[Any, ...]:
    """What a stack of blocks takes, in this order."""
    if not self.shards:
      return carriers, mask, positions, segments
    tokens = carriers.shape[:-1]
    if mask is not None:
      mask = jnp.asarray(mask)
      for axis in (mask.ndim - 2, mask.ndim - 1):
        mask = mask if mask.shape[axis] == 1 else self._along(mask, axis)
    per_token = [
      None if x is None else self._along(
        _checks.per_token(name, x, tokens), len(tokens) - 1
      )
      for name, x in (("positions", positions), ("segments", segments))
    ]  # fmt: skip
    return self._along(carriers, len(tokens) - 1), mask, *per_token

  def restore(self, carriers: jax.Array, count: int) -> jax.Array:
    """The first `count` carriers of the input order, ``[..., n, d]``."""
    if not self.shards:
      return carriers
    if self.dealt:
      carriers = self._taken(
        carriers, carriers.ndim - 2, np.argsort(self._deal)
      )
    return carriers[..., :count, :]

  def _along(self, x: jax.Array, axis: int) -> jax.Array:
    x = placement.filled(x, axis, self.shards * (2 if self.dealt else 1))
    return self._taken(x, axis, self._deal) if self.dealt else x

  @property
  def _deal(self) -> np.ndarray:
    """The pieces in the order in which the shards hold them."""
    front = np.arange(self.shards)
    return np.stack([front, 2 * self.shards - 1 - front], axis=1).ravel()

  def _taken(self, x: jax.Array, axis: int, pieces: np.ndarray) -> jax.Array:
    shape = x.shape
    cut = (len(pieces), shape[axis] // len(pieces))
    x = x.reshape(*shape[:axis], *cut, *shape[axis + 1 :])
    return jnp.take(x, pieces, axis=axis).reshape(shape)


def of_context(count: int, *, causal: bool, closed: bool) -> Arrangement:
  """The arrangement of so many tokens on the mesh of the context.

  What is not closed would see the nulls: it is left as it is where the mesh
  does not divide it.
  """
  shards = placement.shards_of("length")
  pieces = shards * (2 if causal else 1)
  if shards == 1 or not (closed or count % pieces == 0):
    return Arrangement(0)
  return Arrangement(shards, causal)
