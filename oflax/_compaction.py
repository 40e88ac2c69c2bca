"""Compaction: null tokens cost nothing, exact to the bit."""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import numbers
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _attention
from oflax import _checks

FIRST_BUCKET = 32


def compact(
  carrier: jax.Array, size: int, *aligned: Any
) -> tuple[jax.Array, tuple[Any, ...], jax.Array]:
  """Moves the tokens that are not null to the front, in order.

  A token is null if all its entries are exactly 0; NaN is not null. Null tokens
  get no derivative.

  Args:
    carrier: Tokens, ``[..., n, d]``.
    size: How many rows the result has.
    *aligned: None or trees of arrays ``[..., n, ...]`` that go with the tokens.

  Returns:
    The tokens, ``[..., size, d]``, null where there are fewer; the aligned
    arrays, likewise ``[..., size, ...]``, 0 there; and the index of each row in
    `carrier`, n where there is none, int32 ``[..., size]``. A sample of more
    than `size` tokens, which can only be seen under jit, comes out as NaN.

  Raises:
    ValueError: `carrier` is not floating point; `size` is no whole number, or
      eagerly too small; or an aligned array lacks the tokens' axes.

  Example:
    >>> import jax.numpy as jnp
    >>> h = jnp.array([[0.0], [5.0], [0.0], [7.0]])
    >>> front, (place,), index = compact(h, 3, jnp.arange(4))
    >>> front.tolist(), place.tolist(), index.tolist()
    ([[5.0], [7.0], [0.0]], [1, 3, 0], [1, 3, 4])

  Reference: docs/performance.md, compaction.
  """
  carrier = jnp.asarray(carrier)
  _checks.check_rank("carrier", carrier, 2, "[..., n, d]")
  _checks.check_floating("carrier", carrier)
  _checks.check_at_least("size", size, 0)
  n = carrier.shape[-2]
  kept = jnp.any(carrier != 0, axis=-1)
  count = jnp.sum(kept, axis=-1, dtype=jnp.int32)
  overflow = count > size
  if not isinstance(overflow, jax.core.Tracer) and bool(jnp.any(overflow)):
    raise ValueError(
      f"size must hold all tokens that are not null, {int(jnp.max(count))}, got"
      f" {size}."
    )
  order = jnp.argsort(~kept, axis=-1, stable=True).astype(jnp.int32)
  padding = [(0, 0)] * (order.ndim - 1) + [(0, max(0, size - n))]
  order = jnp.pad(order[..., :size], padding)
  row = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), order.shape)
  index = jnp.where(row < count[..., None], order, n)

  take = functools.partial(_take_rows, n=n, index=index)
  front = take(carrier)
  front = jnp.where(overflow[..., None, None], jnp.nan, front)
  return front.astype(carrier.dtype), jax.tree.map(take, aligned), index


def expand(values: jax.Array, index: jax.Array, n: int) -> jax.Array:
  """Puts compacted rows back: the inverse of `compact`.

  Args:
    values: ``[..., size, d']``.
    index: From `compact`, ``[..., size]``.
    n: How many tokens there were.

  Returns:
    ``[..., n, d']``, 0 where a token was null.

  Raises:
    ValueError: The shapes do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> index = jnp.array([1, 3, 4])
    >>> expand(jnp.array([[5.0], [7.0], [9.0]]), index, 4).tolist()
    [[0.0], [5.0], [0.0], [7.0]]

  Reference: docs/performance.md, compaction.
  """
  values, index = jnp.asarray(values), jnp.asarray(index)
  _checks.check_at_least("n", n, 0)
  if values.shape[:-1] != index.shape:
    raise ValueError(
      f"values must have shape {(*index.shape, 'features')}, got"
      f" {values.shape}."
    )
  if not jnp.issubdtype(index.dtype, jnp.integer):
    raise ValueError(f"index must be of integers, got {index.dtype}.")

  def one(values: jax.Array, index: jax.Array) -> jax.Array:
    zeros = jnp.zeros((n, values.shape[-1]), values.dtype)
    return zeros.at[index].set(values, mode="drop")

  for _ in index.shape[:-1]:
    one = jax.vmap(one)
  return one(values, index)


def compacted(
  fn: Callable[..., jax.Array], *, buckets: Sequence[int] | None = None
) -> Callable[..., jax.Array]:
  """Runs a closed map on the tokens that are not null, and only on them.

  By O-closure the result is that of `fn`, exactly so: the tokens of the largest
  sample of the batch decide on a bucket, one of an absolute sequence of sizes,
  and the same tokens in the same bucket always run the same program. All
  buckets are compiled once; one runs. Under `jax.vmap` the count of a batch is
  not known and every bucket would run: give the function the batch axes
  instead.

  Args:
    fn: A closed map, ``(carriers, *aligned, **kwargs) -> [..., size, d']``,
      whose result depends on nothing but the tokens, in their order.
    buckets: Increasing sizes; default: 32, 64, 128, ….

  Returns:
    ``(carriers, *aligned, **kwargs) -> [..., n, d']``. Each positional argument
    is None or a tree of arrays ``[..., n, ...]`` with the tokens' batch axes;
    keyword arguments are passed on untouched.

  Raises:
    ValueError: `buckets` do not increase, or end below n.

  Example:
    >>> import jax.numpy as jnp
    >>> h = jnp.zeros((1000, 2)).at[500].set(3.0)
    >>> sizes = []
    >>> def double(h):
    ...   sizes.append(h.shape[0])
    ...   return 2 * h
    >>> compacted(double)(h)[500].tolist(), sizes
    ([6.0, 6.0], [32, 64, 128, 256, 512, 1024])

  Reference: docs/performance.md, compaction.
  """
  if buckets is not None:
    _check_buckets(buckets)

  @functools.wraps(fn)
  def on_present(
    carriers: jax.Array, *aligned: Any, **kwargs: Any
  ) -> jax.Array:
    carriers = jnp.asarray(carriers)
    _checks.check_rank("carriers", carriers, 2, "[..., n, d]")
    n = carriers.shape[-2]
    sizes = _sizes(n, buckets)

    def branch(size: int) -> Callable[..., jax.Array]:
      def run(carriers: jax.Array, aligned: tuple[Any, ...]) -> jax.Array:
        front, others, index = compact(carriers, size, *aligned)
        # Between barriers the program is the same for every n, to the bit.
        front, others = lax.optimization_barrier((front, others))
        values = _lean(functools.partial(fn, **kwargs))(front, *others)
        return expand(lax.optimization_barrier(values), index, n)

      return run

    counts = jnp.sum(jnp.any(carriers != 0, axis=-1), axis=-1, dtype=jnp.int32)
    largest = jnp.max(counts, initial=0)
    chosen = jnp.sum(largest > jnp.asarray(sizes), dtype=jnp.int32)
    return lax.switch(chosen, [branch(s) for s in sizes], carriers, aligned)

  return on_present


def _check_buckets(buckets: Any) -> None:
  fits = isinstance(buckets, Sequence) and all(
    isinstance(size, numbers.Integral) and int(size) >= 1 for size in buckets
  )
  if not fits or not buckets or sorted(set(buckets)) != list(buckets):
    raise ValueError(
      "buckets must be whole numbers, positive and increasing, got"
      f" {buckets!r}."
    )


def _lean(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """Keeps only what is dear to compute for the backward pass.

  What one bucket keeps, all others have to fill with zeros.
  """
  policies = jax.checkpoint_policies
  policy = policies.save_from_both_policies(
    policies.dots_with_no_batch_dims_saveable,
    policies.save_only_these_names(_attention.KEPT),
  )
  return jax.checkpoint(fn, policy=policy)


def _sizes(n: int, buckets: Sequence[int] | None) -> list[int]:
  """The buckets up to the one that holds n tokens."""
  if buckets is None:
    buckets = [FIRST_BUCKET]
    while buckets[-1] < n:
      buckets.append(2 * buckets[-1])
  if buckets[-1] < n:
    raise ValueError(f"buckets must hold {n} tokens, got {buckets!r}.")
  below = [size for size in buckets if size < n]
  return [*below, buckets[len(below)]]


def _take_rows(array: Any, *, n: int, index: jax.Array) -> jax.Array:
  """Rows of ``[..., n, ...]`` by ``[..., size]``; 0 for an index of n."""
  array = jnp.asarray(array)
  axis = index.ndim - 1
  if array.shape[: axis + 1] != (*index.shape[:-1], n):
    raise ValueError(
      f"aligned arrays must have the tokens' axes {(*index.shape[:-1], n)}"
      f" first, got shape {array.shape}."
    )
  if n == 0:
    return jnp.zeros((*index.shape, *array.shape[axis + 1 :]), array.dtype)

  def one(array: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take(array, index, axis=0, mode="fill", fill_value=0)

  for _ in range(axis):
    one = jax.vmap(one)
  return one(array, index)
