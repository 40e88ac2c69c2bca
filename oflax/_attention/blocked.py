"""OAttention in blocks, each the reference: memory grows with the tokens only.

The backward pass computes each block again, all but its sums.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _checks
from oflax._attention import reference
from oflax._attention.operands import Operands

# Axes of everything that a block is cut from, or 1 in their place.
BATCH, HEADS, RECEIVERS = range(3)
# How many parts of the sources a block may be without, one by one.
PARTS = 8


class BlockSizes(NamedTuple):
  """How much a block of attention holds; less where there is less.

  Pass it as `implementation` of `oflax.o_attention` to choose for yourself.

  Attributes:
    batch: Samples.
    heads: Heads.
    receivers: Receivers; a block holds all sources that they may see.

  Example:
    >>> import jax.numpy as jnp
    >>> import oflax
    >>> x, p = jnp.zeros((5, 2, 4)), jnp.ones(5)
    >>> sizes = oflax.BlockSizes(heads=2, receivers=2)
    >>> oflax.o_attention(x, x, x, p, p, implementation=sizes).shape
    (5, 2, 4)

  Reference: DESIGN §5, blocked.
  """

  batch: int = 1
  heads: int = 1
  receivers: int = 256

  def hold(self, operands: Operands) -> bool:
    """Whether one block holds all."""
    return all(a >= b for a, b in zip(self, operands.sizes[:3], strict=True))


def block_sizes(operands: Operands) -> BlockSizes:
  """The one place that chooses: blocks whose scores fit into caches."""
  batch, heads, receivers, sources = operands.sizes
  scores = 2**20 if jax.default_backend() == "cpu" else 2**24
  rows = min(receivers, 512 if sources <= 1024 else 256)
  per_head = max(1, rows * sources)
  # Samples first: to cut both them and the heads moves everything twice.
  samples = _divisor(batch, scores // per_head)
  # One product of two matrices leaves a core idle more often than two do.
  at_least = 2 if samples == 1 else 1
  some = max(scores // (samples * per_head), at_least)
  return BlockSizes(samples, _divisor(heads, some), rows)


def attend(
  operands: Operands, sizes: BlockSizes
) -> tuple[jax.Array, jax.Array]:
  """As `reference.attend`, block by block."""
  for name, size in sizes._asdict().items():
    _checks.check_at_least(f"BlockSizes.{name}", size, 1)
  if 0 in operands.sizes:
    return reference.attend(operands)
  run = functools.partial(_block, operands.dropout_key)
  for axis, size in reversed(list(enumerate(sizes))):
    run = functools.partial(_map_blocks, run, axis, size)
  return run(_Cut.of(operands.ready()))


class _Cut(NamedTuple):
  """Operands to cut blocks from: axes B, N and T first, or 1 in their place.

  Keys and values have the sources last, ``[B, N, 1, features, S]``: so the
  products of the backward pass are fast on CPU.
  """

  others: Operands
  key: jax.Array
  value: jax.Array
  shifted_key: jax.Array | None
  place: tuple[jax.Array, ...]

  @classmethod
  def of(cls, operands: Operands) -> "_Cut":
    shifted_key = operands.shifted_key
    taken = ("key", "value", "shifted_key", "dropout_key")
    without: dict[str, Any] = dict.fromkeys(taken)
    return cls(
      dataclasses.replace(operands, **without),
      operands.key.mT[:, :, None],
      operands.value.mT[:, :, None],
      None if shifted_key is None else shifted_key[:, :, None],
      tuple(
        jnp.expand_dims(jnp.arange(size), [i for i in range(3) if i != axis])
        for axis, size in enumerate(operands.sizes[:3])
      ),
    )

  def sources(self, start: Any, size: int) -> Operands:
    """The operands with a range of the sources."""

    def part(x: jax.Array, axis: int) -> jax.Array:
      whole = x.shape[axis] in (1, size)
      return x if whole else lax.dynamic_slice_in_dim(x, start, size, axis)

    shifted_key = self.shifted_key
    if shifted_key is not None:
      shifted_key = jnp.squeeze(part(shifted_key, -2), RECEIVERS)
    return dataclasses.replace(
      self.others.cut(part),
      key=_sources_first(part(self.key, -1)),
      value=_sources_first(part(self.value, -1)),
      shifted_key=shifted_key,
    )


def _block(
  dropout_key: jax.Array | None, cut: _Cut
) -> tuple[jax.Array, jax.Array]:
  """The reference, without parts of the sources that nobody here may see.

  They are left out by visibility only: what is absent has curvature.
  """
  key = _key(dropout_key, cut.others.broadcast_dropout, cut.place)
  cut = cut._replace(others=dataclasses.replace(cut.others, dropout_key=key))
  sources = cut.key.shape[-1]
  reach = cut.others.visibility.reach()
  # A dropout that all samples share needs the same sources in all blocks.
  shared = cut.others.dropout_rate and cut.others.broadcast_dropout
  if reach is None or sources < PARTS or shared:
    return _again(lambda cut: reference.attend(cut.sources(0, sources)))(cut)
  first, last = _ends(jnp.any(reach, axis=(0, 1, 2)))
  extents = [-(-sources * part // PARTS) for part in range(1, PARTS + 1)]
  chosen = jnp.sum(last - first >= jnp.asarray(extents))

  def within(extent: int) -> Callable[[_Cut, jax.Array], Any]:
    def attend(cut: _Cut, first: jax.Array) -> tuple[jax.Array, jax.Array]:
      start = jnp.clip(first, 0, sources - extent)
      return reference.attend(cut.sources(start, extent))

    # In the branch, too: else what it computes leaves it, to be used again.
    return _again(attend)

  branches = [within(extent) for extent in extents]
  return _again(lambda *args: lax.switch(args[0], branches, *args[1:]))(
    chosen, cut, first
  )


@jax.custom_batching.custom_vmap
def _ends(reach: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The first and the last source in reach."""
  return jnp.argmax(reach), reach.size - 1 - jnp.argmax(reach[::-1])


@_ends.def_vmap
def _ends_of_all(
  axis_size: int, in_batched: list[bool], reach: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[bool, bool]]:
  """Under vmap those of all samples, lest every branch be run for each."""
  del axis_size, in_batched
  return _ends(jnp.any(reach, axis=0)), (False, False)


def _again(fn: Callable[..., Any]) -> Callable[..., Any]:
  """Has the backward pass compute a block again, all but its sums."""
  policy = jax.checkpoint_policies.save_only_these_names(reference.KEPT)
  return jax.checkpoint(fn, policy=policy)


def _map_blocks(
  fn: Callable[[Any], Any], axis: int, size: int, tree: Any
) -> Any:
  """Maps fn in turn over blocks of an axis; leaves with 1 there are shared."""
  leaves = jax.tree.leaves(tree)
  structure: Any = jax.tree.structure(tree)
  length = max(leaf.shape[axis] for leaf in leaves)
  count = -(-length // size)
  if count == 1:
    return fn(tree)
  size = -(-length // count)
  cut = [leaf.shape[axis] != 1 for leaf in leaves]

  def split(x: jax.Array) -> jax.Array:
    if count * size > length:
      widths = [(0, 0)] * x.ndim
      widths[axis] = (0, count * size - length)
      x = jnp.pad(x, widths, mode="edge")
    x = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)

  def one(blocks: list[jax.Array]) -> Any:
    rest = iter(blocks)
    both = zip(leaves, cut, strict=True)
    parts = [next(rest) if c else leaf for leaf, c in both]
    return fn(structure.unflatten(parts))

  def joined(x: jax.Array) -> jax.Array:
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], count * size, *x.shape[axis + 2 :])
    return lax.slice_in_dim(x, 0, length, axis=axis)

  blocks = [split(leaf) for leaf, c in zip(leaves, cut, strict=True) if c]
  return jax.tree.map(joined, lax.map(one, blocks))


def _sources_first(x: jax.Array) -> jax.Array:
  """``[b, n, 1, features, S]`` as ``[b, n, S, features]``.

  With one leading axis at a time, else XLA does not see that two transposes
  make none.
  """
  b, n, _, features, sources = x.shape
  x = x.reshape(b * n, features, sources).mT
  return x.reshape(b, n, sources, features)


def _key(key: jax.Array | None, broadcast: bool, place: Any) -> Any:
  """A dropout key of each block, given the places of its first entries."""
  if key is None:
    return None
  for axis in (RECEIVERS,) if broadcast else (BATCH, HEADS, RECEIVERS):
    key = jax.random.fold_in(key, place[axis].reshape(-1)[0])
  return key


def _divisor(number: int, most: int) -> int:
  """The largest divisor of `number` that is at most `most`; at least 1."""
  fitting = range(1, min(number, max(1, most)) + 1)
  return max((d for d in fitting if number % d == 0), default=1)
