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
from oflax import _numerics
from oflax._attention import reference
from oflax._attention.operands import Operands
from oflax._attention.sources import Sources

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
  key = operands.dropout_key
  operands = dataclasses.replace(operands, dropout_key=None)

  def of_samples(b: Any, part: Operands) -> Any:
    def of_heads(n: Any, part: Operands) -> Any:
      sources = _Sources.of(part)
      part = dataclasses.replace(part, key=None, value=None)

      def of_receivers(t: Any, query: jax.Array, part: Operands) -> Any:
        place = (t,) if operands.broadcast_dropout else (b, n, t)
        part = dataclasses.replace(
          part, query=query, dropout_key=_folded(key, place)
        )
        return _block(part, sources)

      query, others = part.query, dataclasses.replace(part, query=None)
      return _map_blocks(
        of_receivers, sizes.receivers, 1, (query, 1), (others, 2)
      )

    return _map_heads(of_heads, sizes.heads, part)

  samples = _divisor(operands.sizes[0], sizes.batch)
  return _map_blocks(of_samples, samples, 0, (operands, 0))


class _Sources(NamedTuple):
  """As `Sources`, with B and N one axis and the sources last.

  So the products of the backward pass are fast on CPU.
  """

  key: jax.Array
  value: jax.Array
  shifted_key: jax.Array | None

  @classmethod
  def of(cls, operands: Operands) -> "_Sources":
    key, value, shifted_key = (
      None if x is None else x.reshape(-1, *x.shape[2:])
      for x in Sources.of(operands)
    )
    return cls(key.mT, value.mT, shifted_key)

  def part(self, cut, batch) -> Sources:
    key = cut(self.key, -1).mT
    value = cut(self.value, -1).mT
    shifted = self.shifted_key
    if shifted is not None:
      shifted = cut(shifted, -2)
    return Sources(
      *(
        None if x is None else x.reshape(batch, -1, *x.shape[1:])
        for x in (key, value, shifted)
      )
    )


def _block(operands: Operands, last: _Sources) -> tuple[jax.Array, jax.Array]:
  """The reference, without parts of the sources that nobody here may see.

  They are left out by visibility only: what is absent has curvature.
  """
  batch, _, _, sources = operands.sizes

  def within(size: int) -> Callable[..., Any]:
    def attend(start: Any, operands: Operands, last: _Sources) -> Any:
      def part(x: jax.Array, axis: int) -> jax.Array:
        whole = x.shape[axis] in (1, size)
        return x if whole else lax.dynamic_slice_in_dim(x, start, size, axis)

      return reference.attend(operands.cut(part), last.part(part, batch))

    # In the branch, too: else what it computes leaves it, to be used again.
    return _again(attend)

  reach = operands.visibility.reach()
  # A dropout that all samples share needs the same sources in all blocks.
  shared = operands.dropout_rate and operands.broadcast_dropout
  if reach is None or sources < PARTS or shared:
    return within(sources)(0, operands, last)
  first, end = _ends(jnp.any(reach, axis=(0, 1, 2)))
  extents = [-(-sources * part // PARTS) for part in range(1, PARTS + 1)]
  chosen = jnp.sum(end - first >= jnp.asarray(extents))
  first = jnp.minimum(first, sources - jnp.asarray(extents)[chosen])
  branches = [within(extent) for extent in extents]
  return _again(lambda *args: lax.switch(args[0], branches, *args[1:]))(
    chosen, first, operands, last
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


def _again(fn: Callable[..., Any]) -> Callable[..., Any]:
  """Has the backward pass compute a block again, all but its sums."""
  policy = jax.checkpoint_policies.save_only_these_names(reference.KEPT)
  return jax.checkpoint(fn, policy=policy)


def _map_heads(
  fn: Callable[[Any, Operands], Any], most: int, operands: Operands
) -> Any:
  """Maps fn in turn over groups of heads.

  Heads are not the first axis, so that to cut them all at once would copy all.
  """
  heads = operands.sizes[1]
  per_source = heads // operands.key.shape[2]
  size = _divisor(
    heads, most, lambda d: d % per_source == 0 or per_source % d == 0
  )
  if size == heads:
    return fn(0, operands)

  def one(i: Any, pairs: Operands) -> Any:
    def group(x: jax.Array, shared: int) -> jax.Array:
      count = max(1, size // shared)
      return lax.dynamic_slice_in_dim(x, i * size // shared, count, 2)

    return fn(
      i,
      dataclasses.replace(
        pairs,
        query=group(operands.query, 1),
        key=group(operands.key, per_source),
        value=group(operands.value, per_source),
      ),
    )

  pairs = dataclasses.replace(operands, query=None, key=None, value=None)
  return _map_blocks(_again(one), size, 2, (pairs, 1), length=heads)


def _map_blocks(
  fn: Callable[..., Any],
  size: int,
  joint: int,
  *trees: tuple[Any, int],
  length=None,
) -> Any:
  """Maps ``fn(number, *parts)`` in turn over blocks of an axis of each tree.

  Leaves with 1 there are shared. Results are joined along the axis `joint`.
  """
  flat = [
    (leaf, axis) for tree, axis in trees for leaf in jax.tree.leaves(tree)
  ]
  cut = [jnp.ndim(leaf) > axis and leaf.shape[axis] != 1 for leaf, axis in flat]
  if length is None:
    length = max(
      [leaf.shape[axis] for (leaf, axis), c in zip(flat, cut) if c], default=1
    )
  count = -(-length // size)
  if count == 1:
    return fn(0, *(tree for tree, _ in trees))
  size = -(-length // count)
  structure = jax.tree.structure([tree for tree, _ in trees])

  def split(x: jax.Array, axis: int) -> jax.Array:
    if count * size > length:
      widths = [(0, 0)] * x.ndim
      widths[axis] = (0, count * size - length)
      x = jnp.pad(x, widths, mode="edge")
    x = x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)

  def one(numbered: Any) -> Any:
    number, blocks = numbered
    rest = iter(blocks)
    parts = [next(rest) if c else leaf for (leaf, _), c in zip(flat, cut)]
    return fn(number, *structure.unflatten(parts))

  def joined(x: jax.Array) -> jax.Array:
    x = jnp.moveaxis(x, 0, joint)
    x = x.reshape(*x.shape[:joint], -1, *x.shape[joint + 2 :])
    return lax.slice_in_dim(x, 0, length, axis=joint)

  blocks = [split(*leaf) for leaf, c in zip(flat, cut) if c]
  return jax.tree.map(joined, lax.map(one, (jnp.arange(count), blocks)))


def _folded(key: jax.Array | None, place: tuple[Any, ...]) -> Any:
  """A dropout key for each block, by its place."""
  if key is None:
    return None
  for number in place:
    key = jax.random.fold_in(key, number)
  return key


def _divisor(number: int, most: int, fits=lambda d: True) -> int:
  """The largest divisor of `number` that is at most `most`; at least 1."""
  fitting = range(1, min(number, max(1, most)) + 1)
  return max((d for d in fitting if number % d == 0 and fits(d)), default=1)
