"""The slots in which decoding keeps the keys and values of tokens seen.

A slot that holds nothing is a null source: it needs no mask.
"""

import math
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
from jax import lax
from jax.experimental import checkify
import jax.numpy as jnp

from oflax import _presence

COLLECTION = "cache"


class Cache(NamedTuple):
  """L slots for each row of a batch; only present tokens take one.

  Attributes:
    key: ``[..., K, L, H]``, heads first, as the products of a single token
      want them; slots not written may hold anything.
    value: ``[..., K, L, V]``.
    presence: ``[..., L]``.
    position: ``[..., L]``, int32.
    index: Tokens written so far, ``[...]``, int32: a row's next slot.
  """

  key: jax.Array
  value: jax.Array
  presence: jax.Array
  position: jax.Array
  index: jax.Array  # type: ignore[assignment]  # What tuples do is not wanted.

  @classmethod
  def of(
    cls,
    key: jax.Array,
    value: jax.Array,
    presence: jax.Array,
    position: jax.Array,
  ) -> "Cache":
    """A cache of tokens, with keys and values as projected, tokens first."""
    key, value = (jnp.swapaxes(x, -3, -2) for x in (key, value))
    return cls(key, value, presence, position, jnp.int32(presence.shape[-1]))

  @classmethod
  def empty(
    cls,
    batch: tuple[int, ...],
    length: int,
    key: tuple[int, ...],
    value: tuple[int, ...],
    dtype: jnp.dtype,
  ) -> "Cache":
    """A cache of nothing, for heads and features of keys and of values."""
    return cls(
      jnp.zeros((*batch, key[0], length, key[1]), dtype),
      jnp.zeros((*batch, value[0], length, value[1]), dtype),
      jnp.zeros((*batch, length), jnp.float32),
      jnp.zeros((*batch, length), jnp.int32),
      jnp.zeros(batch, jnp.int32),
    )

  @property
  def length(self) -> int:
    """The number of slots L."""
    return int(self.presence.shape[-1])

  def written(self) -> jax.Array:
    """Which slots hold a token, ``[..., L]``."""
    shape = self.presence.shape
    slot = lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
    return slot < self.index[..., None]

  def sources(self) -> "Cache":
    """The cache with the presence of slots not written at 0."""
    return self._replace(presence=jnp.where(self.written(), self.presence, 0))

  def append(self, new: "Cache", *, ring: bool) -> "Cache":
    """Writes new tokens, the present ones, after those of each row.

    Args:
      new: T of them, as a cache; its index does not matter.
      ring: Whether the oldest slots are written over when all are full.

    Returns:
      The cache after them. Without a ring, what finds no slot is dropped, and
      `check` says so.
    """
    present = new.presence != 0
    rank = _presence.presence_rank(new.presence)
    count = jnp.sum(present, axis=-1, dtype=jnp.int32)
    slot = self.index[..., None] + rank
    if ring:
      # Of more tokens than slots only the last are kept: no slot twice.
      present &= rank >= count[..., None] - self.length
      slot %= self.length
    slot = jnp.where(present, slot, self.length)
    put = [_put(x, slot, y) for x, y in zip(self[:-1], new[:-1], strict=True)]
    return Cache._make([*put, self.index + count])

  def followed_by(self, new: "Cache") -> "Cache":
    """The slots of the cache and after them all new tokens, to look at."""
    joined = [
      jnp.concatenate([x, y.astype(x.dtype)], axis=_slot_axis(x, self.index))
      for x, y in zip(self.sources()[:-1], new[:-1], strict=True)
    ]
    return Cache._make([*joined, self.index])

  def check(self) -> jax.Array:
    """Which rows were given more tokens than slots, ``[...]``.

    An error eagerly, and under checkify.

    Raises:
      ValueError: A row is full.
    """
    full = self.index > self.length
    if not isinstance(full, jax.core.Tracer):
      if bool(jnp.any(full)):
        raise ValueError(
          f"cache must have room for {int(jnp.max(self.index))} tokens, got"
          f" max_length={self.length}."
        )
    else:
      checkify.debug_check(
        ~jnp.any(full),
        "cache must have room for {count} tokens, got max_length={length}.",
        count=jnp.max(self.index),
        length=jnp.asarray(self.length),
      )
    return full


def stored(module: nn.Module) -> Cache | None:
  """What a module has in its cache; None if there is none yet."""
  if not module.has_variable(COLLECTION, "index"):
    return None
  return Cache._make(module.get_variable(COLLECTION, n) for n in Cache._fields)


def ranks_after(presence: jax.Array, seen: jax.Array) -> jax.Array:
  """Presence ranks ``[..., n]`` of tokens that follow on ``[...]`` others."""
  rank = _presence.presence_rank(presence) + seen[..., None]
  # Before the first of these a null has the rank of the last one seen.
  early = jnp.cumsum(presence != 0, axis=-1) == 0
  return jnp.maximum(rank - early, 0)


def extend(
  module: nn.Module, cached: Cache | None, new: Cache, left: int | None
) -> tuple[Cache, jax.Array | None]:
  """Adds tokens to the cache of a module.

  Args:
    module: Of the cache.
    cached: What is in it. None, at initialisation: new tokens only say how many
      slots there are.
    new: T tokens.
    left: How far back they look; None: to the first, which takes a slot each.

  Returns:
    The sources that new tokens look at, and which rows had no room left, or
    None where there always is.
  """
  if cached is None:
    nobody = jnp.zeros(new.presence.shape[:-1], jnp.int32)
    _keep(module, Cache._make([*map(jnp.zeros_like, new[:-1]), nobody]))
    return new, None
  # With fewer slots than a token looks back at, none may be written over.
  ring = left is not None and cached.length >= left
  after = cached.append(new, ring=ring)
  _keep(module, after)
  if not ring or left is None:
    return after.sources(), after.check()
  if after.length >= left + new.length:
    return after.sources(), None
  # The first new token looks at slots that the last one is written to.
  return cached.followed_by(new), None


def _keep(module: nn.Module, cache: Cache) -> None:
  for name, value in cache._asdict().items():
    module.put_variable(COLLECTION, name, value)


def _slot_axis(x: jax.Array, index: jax.Array) -> int:
  """The axis of the slots: that after the batch, or after the heads."""
  return index.ndim + (x.ndim > index.ndim + 1)


def _put(slots: jax.Array, slot: jax.Array, new: jax.Array) -> jax.Array:
  """Writes T new tokens to ``slot``, ``[..., T]``; beyond L, nowhere."""
  batch = slot.shape[:-1]
  rows = math.prod(batch)
  slots, new = (x.reshape(rows, *x.shape[len(batch) :]) for x in (slots, new))
  row = lax.broadcasted_iota(jnp.int32, (len(slots), slot.shape[-1]), 0)
  slot = slot.reshape(row.shape)
  if slots.ndim > 2:  # Heads first; indices apart from each other put T first.
    place: Any = (row, slice(None), slot)
    new = jnp.swapaxes(new, 1, 2)
  else:
    place = (row, slot)
  put = slots.at[place].set(new.astype(slots.dtype), mode="drop")
  return put.reshape(*batch, *put.shape[1:])
