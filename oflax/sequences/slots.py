"""The collection "cache" of a whole model: made, thinned out, reordered."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from oflax import _checks
from oflax.linen.cache import Cache

_ATTENTION = {"query", "key", "value", "out"}
_STACK = {"blocks", "block_0"}
# More tokens than any cache has room for.
_NO_ROW = 2**30


def init_cache(
  variables: Mapping[str, Any],
  batch: int | tuple[int, ...],
  max_length: int,
  *,
  dtype: Any = None,
) -> dict[str, Any]:
  """An empty cache for every OAttention of a model.

  Only present tokens take a slot, so that rows of different lengths need no
  mask, however they are padded. With a causal window the slots are a ring, and
  the window's left side + 1 of them are enough for sequences of any length.
  Fewer than it looks back at are never written over: such a cache gets full.

  A model of the variant "attention" wakes nulls up, which then stand where the
  token before them does: it decodes what it computes at once without nulls.

  Args:
    variables: Of the model; "params" are looked through for attentions.
    batch: Size of the batch axis, or of several.
    max_length: Slots for each row.
    dtype: Of keys and values; default: that of the parameters.

  Returns:
    The collection "cache", for ``module.apply({**variables, "cache": cache},
    ..., mutable=["cache"])`` with a module that has ``decode=True``.

  Raises:
    ValueError: There is no attention in the model, or a size does not fit.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from oflax.linen import OTransformer
    >>> model = OTransformer(1, 2, 8, is_causal=True)
    >>> h = jax.random.normal(jax.random.key(1), (2, 5, 4))
    >>> variables = model.init(jax.random.key(0), h)
    >>> decoder, cache = model.clone(decode=True), init_cache(variables, 2, 5)
    >>> for t in range(5):  # token by token
    ...   step, seen = decoder.apply(
    ...     {**variables, "cache": cache}, h[:, t : t + 1], mutable=["cache"]
    ...   )
    ...   cache = seen["cache"]
    >>> whole = model.apply(variables, h)
    >>> bool(jnp.allclose(step[:, 0], whole[:, -1], atol=1e-5))
    True

  Reference: flax.linen.MultiHeadDotProductAttention, decode.
  """
  batch = tuple(batch) if isinstance(batch, Sequence) else (batch,)
  for size in batch:
    _checks.check_at_least("batch", size, 0)
  _checks.check_at_least("max_length", max_length, 1)
  if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"dtype must be floating, got {jnp.dtype(dtype)}.")
  cache = _empty(variables.get("params", {}), batch, max_length, dtype)
  if not cache:
    raise ValueError(
      "variables must have the parameters of an OAttention, got collections"
      f" {sorted(variables)}."
    )
  return cache


def evict(cache: Mapping[str, Any], slots: jax.Array) -> dict[str, Any]:
  """Makes slots null, in every layer: their tokens do not exist any more.

  The positions of the others stay. A slot is not used again, unless it is in a
  ring.

  Args:
    cache: The collection.
    slots: What shall go: boolean ``[..., L]``, or indices ``[..., k]``.

  Returns:
    The collection without them.

  Raises:
    ValueError: `slots` are of another shape or kind.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from oflax.linen import OAttention
    >>> variables = OAttention(1).init(jax.random.key(0), jnp.ones((1, 3, 4)))
    >>> cache = init_cache(variables, 1, 3)
    >>> cache["presence"] = jnp.ones((1, 3))
    >>> evict(cache, jnp.array([[1]]))["presence"].tolist()
    [[1.0, 0.0, 1.0]]

  Reference: docs/concepts.md: a null source does not exist.
  """
  slots = jnp.asarray(slots)

  def without(own: dict[str, Any]) -> dict[str, Any]:
    if "presence" not in own:
      return own  # A stack, which only counts.
    presence = own["presence"]
    gone = _pattern(slots, presence.shape)
    return {**own, "presence": jnp.where(gone, 0, presence)}

  return _map_caches(without, cache)


def reorder(cache: Mapping[str, Any], rows: jax.Array) -> dict[str, Any]:
  """Rows of the batch in another order, or several times: for beams.

  Args:
    cache: The collection, with one batch axis.
    rows: Index of the row that each new row is, ``[B']``.

  Returns:
    The collection of a batch of B'.

  Raises:
    ValueError: `rows` are no integers ``[B']``.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from oflax.linen import OAttention
    >>> variables = OAttention(1).init(jax.random.key(0), jnp.ones((2, 3, 4)))
    >>> cache = init_cache(variables, 2, 3)
    >>> cache["index"] = jnp.array([2, 3])
    >>> reorder(cache, jnp.array([1, 1, 0]))["index"].tolist()
    [3, 3, 2]

  Reference: beam search.
  """
  rows = jnp.asarray(rows)
  if rows.ndim != 1 or not jnp.issubdtype(rows.dtype, jnp.integer):
    raise ValueError(
      f"rows must be integers [B'], got {rows.dtype} of shape {rows.shape}."
    )

  def taken(own: dict[str, Any]) -> dict[str, Any]:
    axis = own["index"].ndim - 1
    _check_within("rows", rows, own["index"].shape[axis])
    # Under jit a row that is not there is full, and of NaN: it is seen.
    return {
      name: jnp.take(
        x,
        rows,
        axis=axis,
        fill_value=_NO_ROW if name == "index" else None,
      )
      for name, x in own.items()
    }

  return _map_caches(taken, cache)


def _check_within(name: str, indices: jax.Array, count: int) -> None:
  """Refuses indices outside of ``[0, count)``, where they can be seen."""
  if isinstance(indices, jax.core.Tracer):
    return
  outside = indices[(indices < 0) | (indices >= count)]
  if outside.size:
    raise ValueError(
      f"{name} must be at least 0 and below {count}, got {int(outside[0])}."
    )


def _empty(
  params: Any, batch: tuple[int, ...], length: int, dtype: Any
) -> dict[str, Any]:
  """The cache of a module, from its parameters; {} if it has no attention."""
  if not isinstance(params, Mapping):
    return {}
  if set(params) >= _ATTENTION and "kernel" in params["key"]:
    key, value = params["key"]["kernel"], params["value"]["kernel"]
    # Scanned layers come first.
    rows = (*key.shape[:-3], *batch)
    heads = key.shape[-2:], value.shape[-2:]
    return Cache.empty(rows, length, *heads, dtype or key.dtype)._asdict()
  found: dict[str, Any] = {
    name: cache
    for name, part in params.items()
    if (cache := _empty(part, batch, length, dtype))
  }
  if set(found) & _STACK:
    found["index"] = jnp.zeros(batch, jnp.int32)
  return found


def _map_caches(
  fn: Callable[[dict[str, Any]], dict[str, Any]], tree: Mapping[str, Any]
) -> dict[str, Any]:
  """Maps what each attention keeps, and each stack."""
  own = {name: x for name, x in tree.items() if not isinstance(x, Mapping)}
  parts = {name: x for name, x in tree.items() if isinstance(x, Mapping)}
  mapped = {name: _map_caches(fn, part) for name, part in parts.items()}
  return {**(fn(own) if own else {}), **mapped}


def _pattern(slots: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Boolean and broadcastable to the presence of a cache, of `shape`."""
  length, rows = shape[-1], slots.shape[:-1]
  batch = shape[len(shape) - slots.ndim : -1]
  integers = jnp.issubdtype(slots.dtype, jnp.integer)
  boolean = slots.dtype == jnp.bool_ and slots.shape[-1:] == (length,)
  if not slots.ndim or rows != batch or not (integers or boolean):
    raise ValueError(
      f"slots must be boolean [..., {length}] or indices [..., k] for a cache"
      f" of shape {shape}, got {slots.dtype} of shape {slots.shape}."
    )
  if integers:
    _check_within("slots", slots, length)
    hot = jax.nn.one_hot(slots, length, dtype=jnp.bool_)
    slots = jnp.any(hot, axis=-2)
  return jnp.broadcast_to(slots[(None,) * (len(shape) - slots.ndim)], shape)
