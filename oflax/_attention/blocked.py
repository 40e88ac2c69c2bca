"""OAttention in blocks, each the reference: memory grows with the tokens only.

The backward pass computes each block again, all but its sums.
"""

from collections.abc import Callable
from collections.abc import Sequence
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
from oflax._attention.sources import Sources

# A function of the reference: of operands, and their sources if they are ready.
Whole = Callable[[Operands, Sources | None], Any]

# How many parts of the sources a block may be without, one by one.
PARTS = 8


class BlockSizes(NamedTuple):
  """How much a block of attention holds at most.

  Samples and heads are cut evenly, so a divisor of their number is taken.

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

  Reference: docs/performance.md, blocked.
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
  scores = _scores()
  rows = max(1, min(receivers, 512 if sources <= 1024 else 256))
  per_head = max(1, rows * sources)
  # Samples first: to cut them moves nothing.
  samples = _divisor(batch, scores // per_head)
  # One product of two matrices leaves a core idle more often than two do; but
  # for long sequences two are more than any cache holds.
  at_least = 2 if samples == 1 and 2 * per_head <= 4 * scores else 1
  some = max(scores // (samples * per_head), at_least)
  return BlockSizes(samples, _divisor(heads, some), rows)


def small_block_sizes(operands: Operands) -> BlockSizes:
  """For a shard of long sequences: its share is small, its blocks be smaller.

  A shard has the sources of one device only, so that rows are short.
  """
  *_, receivers, sources = operands.sizes
  rows = _scores() // 4 // max(1, sources)
  return BlockSizes(1, 1, max(1, min(receivers, rows, 256)))


def _scores() -> int:
  """How many scores fit into a cache, about."""
  return 2**20 if jax.default_backend() == "cpu" else 2**24


def attend(
  operands: Operands, sizes: BlockSizes, whole: Whole = reference.attend
) -> Any:
  """As `reference.attend`, or another of its functions, block by block."""
  for name, size in sizes._asdict().items():
    _checks.check_at_least(f"BlockSizes.{name}", size, 1)
  if 0 in operands.sizes:
    return whole(operands, None)
  batch, _, receivers, _ = operands.sizes
  key, operands = operands.dropout_key, _without(operands, "dropout_key")

  def of_samples(b: Any, part: Operands) -> Any:
    return map_heads(functools.partial(of_heads, b), sizes.heads, part)

  def of_heads(b: Any, n: Any, part: Operands) -> Any:
    sources = Sources.of(part)

    def of_receivers(t: Any, query: jax.Array, part: Operands) -> Any:
      place = (t,) if part.broadcast_dropout else (b, n, t)
      key_here = None if key is None else folded(key, place)
      part = dataclasses.replace(part, query=query, dropout_key=key_here)
      return _block(part, sources, whole)

    cut = (part.query, 1), (_without(part, "query", "key", "value"), 2)
    return _map_blocks(of_receivers, receivers, sizes.receivers, cut, joint=1)

  samples = _divisor(batch, sizes.batch)
  return _map_blocks(of_samples, batch, samples, [(operands, 0)], joint=0)


def _without(operands: Operands, *names: str) -> Operands:
  nothing: dict[str, Any] = dict.fromkeys(names)
  return dataclasses.replace(operands, **nothing)


def _block(operands: Operands, sources: Sources, whole: Whole) -> Any:
  """The reference, without parts of the sources that nobody here may see.

  They are left out by visibility only: what is absent has curvature.
  """
  count = operands.sizes[-1]

  def within(size: int) -> Callable[..., Any]:
    def attend(start: Any, operands: Operands, sources: Sources) -> Any:
      def part(x: jax.Array, axis: int) -> jax.Array:
        whole = x.shape[axis] in (1, size)
        return x if whole else lax.dynamic_slice_in_dim(x, start, size, axis)

      some = jax.tree.map(lambda x: part(x, -1), sources)
      return whole(operands.cut(part), some)

    # In the branch, too: else what it computes leaves it, to be used again.
    return _again(attend)

  reach = operands.visibility.reach()
  # A dropout that all samples share needs the same sources in all blocks.
  shared = operands.dropout_rate and operands.broadcast_dropout
  if reach is None or count < PARTS or shared:
    return within(count)(0, operands, sources)
  first, end = _ends(jnp.any(reach, axis=(0, 1, 2)))
  extents = [-(-count * part // PARTS) for part in range(1, PARTS + 1)]
  chosen = jnp.sum(end - first >= jnp.asarray(extents))
  first = jnp.minimum(first, count - jnp.asarray(extents)[chosen])
  branches = [within(extent) for extent in extents]
  return _again(lambda *args: lax.switch(args[0], branches, *args[1:]))(
    chosen, first, operands, sources
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


def map_heads(
  fn: Callable[[Any, Operands], Any], most: int, operands: Operands
) -> Any:
  """Maps fn in turn over groups of heads.

  Heads are not the first axis, so that to cut them all at once would copy all.
  """
  heads = operands.sizes[1]
  sharing = heads // operands.key.shape[2]
  size = _divisor(heads, most, sharing)
  if size == heads:
    return fn(0, operands)

  def one(i: Any, part: Operands) -> Any:
    def group(x: jax.Array, sharing: int) -> jax.Array:
      count = max(1, size // sharing)
      return lax.dynamic_slice_in_dim(x, i * size // sharing, count, 2)

    part = dataclasses.replace(
      part,
      query=group(operands.query, 1),
      key=group(operands.key, sharing),
      value=group(operands.value, sharing),
    )
    return fn(i, part)

  pairs = _without(operands, "query", "key", "value")
  # What is cut and moved is computed again, too, lest copies of all be kept.
  return _map_blocks(_again(one), heads, size, [(pairs, 1)], joint=2)


def _map_blocks(
  fn: Callable[..., Any],
  length: int,
  size: int,
  trees: Sequence[tuple[Any, int]],
  joint: int,
) -> Any:
  """Maps ``fn(number, *parts)`` in turn over blocks of trees.

  Each tree comes with the axis, of a certain length, that its leaves are cut
  along; leaves with 1 there are shared. Results are joined along axis `joint`.
  """
  count = -(-length // size)
  if count == 1:
    return fn(0, *(tree for tree, _ in trees))
  size = -(-length // count)
  structure: Any = jax.tree.structure([tree for tree, _ in trees])
  leaves = [
    (leaf, axis) for tree, axis in trees for leaf in jax.tree.leaves(tree)
  ]
  cut = [jnp.ndim(x) > axis and x.shape[axis] != 1 for x, axis in leaves]

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
    both = zip(leaves, cut, strict=True)
    parts = [next(rest) if c else leaf for (leaf, _), c in both]
    return fn(number, *structure.unflatten(parts))

  def joined(x: jax.Array) -> jax.Array:
    x = jnp.moveaxis(x, 0, joint)
    x = x.reshape(*x.shape[:joint], count * size, *x.shape[joint + 2 :])
    return lax.slice_in_dim(x, 0, length, axis=joint)

  blocks = [split(*leaf) for leaf, c in zip(leaves, cut, strict=True) if c]
  return jax.tree.map(joined, lax.map(one, (jnp.arange(count), blocks)))


def folded(key: jax.Array, place: tuple[Any, ...]) -> jax.Array:
  """A dropout key for each block, by its place."""
  return functools.reduce(jax.random.fold_in, place, key)


def _divisor(number: int, most: int, sharing: int = 1) -> int:
  """The largest divisor of `number` that is at most `most`; at least 1.

  It divides `sharing` or is a multiple of it: a group of heads is served by
  whole heads of the sources, as many heads sharing each.
  """
  fitting = range(1, min(number, max(1, most)) + 1)
  return max(
    (d for d in fitting if number % d == 0 and 0 in (d % sharing, sharing % d)),
    default=1,
  )
