"""OAttention among shards: the sources go round, the partitions merge.

Every device keeps its receivers, and passes the sources it has seen on to the
next one, until they are home again. It holds its own share of them and another
of the same size, whatever the number of devices: the backward pass sends them
round once more, and their gradients with them.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from oflax import _checks
from oflax._attention import blocked
from oflax._attention import partition
from oflax._attention import reference
from oflax._attention.operands import Operands
from oflax._attention.partition import Partition
from oflax._numerics import AxisName

IMPLEMENTATIONS = (None, "reference", "blocked")
# Receivers, times heads, for which sources go round at once: what is under way,
# with its gradients, is then a small part of a share.
AT_ONCE = 2**13


def attend(
  operands: Operands, implementation: Any, axis_name: AxisName
) -> tuple[jax.Array, jax.Array]:
  """As `reference.attend`, with the sources of all shards."""
  if not isinstance(implementation, blocked.BlockSizes):
    _checks.check_choice(
      "implementation with axis_name", implementation, IMPLEMENTATIONS
    )
  ring = _Ring(axis_name, implementation)
  key, operands = (
    operands.dropout_key,
    dataclasses.replace(
      operands,
      dropout_key=None,
      scale=jnp.asarray(operands.scale, operands.dtype),
    ),
  )
  operands = _varying(operands, (operands, lax.axis_index(axis_name)))

  def of_heads(number: Any, part: Operands) -> tuple[jax.Array, jax.Array]:
    place = () if part.broadcast_dropout else (number,)
    key_here = None if key is None else blocked.folded(key, place)
    part = dataclasses.replace(part, dropout_key=key_here)
    total = Partition(
      *checkpoint_name(_total(ring, *_Sources.split(part)), reference.KEPT)
    )
    return reference.finished(part, total)

  at_once = max(1, AT_ONCE // max(1, operands.sizes[2]))
  return blocked.map_heads(of_heads, at_once, operands)


class _Sources(NamedTuple):
  """What travels: the sources of a shard and all that is said of them."""

  key: jax.Array
  value: jax.Array
  presence: jax.Array
  positions: jax.Array | None
  segments: jax.Array | None

  @classmethod
  def split(cls, operands: Operands) -> tuple[Operands, "_Sources"]:
    """The operands without their sources, and these."""
    seen = operands.visibility
    sides = seen.positions, seen.segments
    sources = cls(
      operands.key,
      operands.value,
      operands.source_presence,
      *(None if pair is None else pair[1] for pair in sides),
    )
    nothing: dict[str, Any] = dict.fromkeys(cls._fields)
    return cls(**nothing).joined(operands), sources

  def joined(self, operands: Operands) -> Operands:
    """The operands with these sources."""
    seen = operands.visibility

    def pair(sides: Any, sources: Any) -> Any:
      return None if sides is None else (sides[0], sources)

    return dataclasses.replace(
      operands,
      key=self.key,
      value=self.value,
      source_presence=self.presence,
      visibility=dataclasses.replace(
        seen,
        positions=pair(seen.positions, self.positions),
        segments=pair(seen.segments, self.segments),
      ),
    )


@dataclasses.dataclass(frozen=True)
class _Ring:
  """The devices along an axis, and what each does with sources it is sent."""

  axis_name: AxisName
  implementation: Any

  def scan(
    self, step: Callable[..., tuple[Any, Any]], kept: Any, passed: Any
  ) -> tuple[Any, Any]:
    """Runs ``(kept, passed, owner) -> (kept, passed)`` for every shard."""
    size, here = lax.axis_size(self.axis_name), lax.axis_index(self.axis_name)
    onwards = [(i, (i + 1) % size) for i in range(size)]

    def one(carry: Any, turn: jax.Array) -> tuple[Any, None]:
      kept, passed = step(*carry, (here - turn) % size)
      passed = lax.ppermute(passed, self.axis_name, onwards)
      return (kept, passed), None

    (kept, passed), _ = lax.scan(one, (kept, passed), jnp.arange(size))
    return kept, passed

  def facing(
    self, here: Operands, sources: _Sources, owner: jax.Array
  ) -> Operands:
    """The receivers here before the sources of another shard."""
    count = sources.key.shape[1]

    def columns(x: jax.Array) -> jax.Array:
      if x.shape[-1] == 1:
        return x
      return lax.dynamic_slice_in_dim(x, owner * count, count, -1)

    key = here.dropout_key
    if key is not None:
      key = blocked.folded(key, (lax.axis_index(self.axis_name), owner))
    masks = jax.tree.map(columns, here.visibility.masks)
    here = dataclasses.replace(
      here,
      visibility=dataclasses.replace(here.visibility, masks=masks),
      bias=jax.tree.map(columns, here.bias),
      dropout_key=key,
    )
    return sources.joined(here)

  def summed(self, operands: Operands) -> Partition:
    """The partition of the sources at hand, receivers first."""
    sizes = self.implementation
    if not isinstance(sizes, blocked.BlockSizes):
      at_once = blocked.block_sizes(operands).hold(operands)
      if sizes == "reference" or (sizes is None and at_once):
        return reference.summed(operands)
      sizes = blocked.small_block_sizes(operands)
    total: Partition = blocked.attend(operands, sizes, reference.summed)
    return total


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _total(ring: _Ring, here: Operands, sources: _Sources) -> Partition:
  """The partition of all sources of the ring, receivers first."""

  def step(total: Partition, sources: _Sources, owner: jax.Array) -> Any:
    part = ring.summed(ring.facing(here, sources, owner))
    return partition.merge(total, part), sources

  dtype = sources.joined(here).dtype
  mass = jnp.zeros(here.query.shape[:3], dtype)
  value = jnp.zeros((*mass.shape, sources.value.shape[-1]), dtype)
  nothing = _varying(Partition(mass, mass, value), here.query)
  total, _ = ring.scan(step, nothing, sources)
  return total


def _total_forward(
  ring: _Ring, here: Operands, sources: _Sources
) -> tuple[Partition, Any]:
  total = _total(ring, here, sources)
  return total, (here, sources, total.maximum)


def _total_backward(ring: _Ring, kept: Any, cotangent: Partition) -> Any:
  """Sends the sources round again, and the gradients of each with it.

  The sums are of terms that know the maximum of all sources, so that every
  shard's gradients are its own affair.
  """
  here, sources, maximum = kept
  maximum = jnp.moveaxis(lax.stop_gradient(maximum), 2, 1)[..., None]
  here = dataclasses.replace(here, maximum=maximum)

  def step(gradients: Operands, passed: Any, owner: jax.Array) -> Any:
    def sums(here: Operands, sources: _Sources) -> Any:
      part = ring.summed(ring.facing(here, sources, owner))
      return part.mass, part.value

    sources, of_sources = passed
    _, pull = jax.vjp(sums, here, sources)
    more = _real(pull((cotangent.mass, cotangent.value)))
    gradients, of_sources = jax.tree.map(jnp.add, (gradients, of_sources), more)
    return gradients, (sources, of_sources)

  zeros = jax.tree.map(jnp.zeros_like, _real((here, sources)))
  zeros = _varying(zeros, here.query)
  gradients, (_, of_sources) = ring.scan(step, zeros[0], (sources, zeros[1]))
  return dataclasses.replace(gradients, maximum=None), of_sources


def _varying(tree: Any, like: Any) -> Any:
  """The arrays, of the type that varies where any of `like` does.

  What `jax.shard_map` knows to be the same on all devices is of another type
  than what comes out of the ring: neither loop nor derivative would take it.
  """
  nothing = [jnp.sum(jnp.ravel(x)[:0]) for x in jax.tree.leaves(like)]
  zero = jnp.zeros(())
  for x in nothing:
    zero += lax.stop_gradient(x).astype(zero.dtype)

  def one(x: jax.Array) -> jax.Array:
    if x.dtype == jnp.bool_:
      return x | (zero != 0)
    return x + zero.astype(x.dtype)

  return jax.tree.map(one, tree)


def _real(tree: Any) -> Any:
  """The tree without what has no derivative."""
  return jax.tree.map(
    lambda x: x if jnp.issubdtype(x.dtype, jnp.inexact) else None, tree
  )


_total.defvjp(_total_forward, _total_backward)
