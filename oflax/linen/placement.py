"""Where arrays lie on a mesh, by the logical names of their axes.

Modules look for Flax's logical axis rules and JAX's mesh in the context, as
`oflax.sharding` sets them. Without these everything here is the identity.
"""

from collections.abc import Sequence
import functools
import math
from typing import Any

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec

from oflax import _attention
from oflax import _checks

Rules = Sequence[tuple[str, Any]]


def spec(
  names: Sequence[str | None],
  shape: Sequence[int],
  sizes: dict[str, int],
  rules: Rules,
) -> PartitionSpec:
  """Which mesh axes cut the axes of an array.

  What a mesh axis does not divide stays whole, and so does an axis whose mesh
  axes are missing or have cut another axis of this array.
  """
  known = [(name, _present(axes, sizes)) for name, axes in rules]
  rules = [(name, axes) for name, axes in known if axes]
  found = nn.logical_to_mesh_axes(tuple(names), rules) or ()
  divided = [
    axes if axes and size % count(axes, sizes) == 0 else None
    for axes, size in zip(found, shape, strict=True)
  ]
  return PartitionSpec(*divided)


def axes_of(name: str) -> tuple[str, ...]:
  """The mesh axes that cut a logical axis in this context."""
  found = dict(reversed(list(nn.get_logical_axis_rules()))).get(name)
  return _present(found, _sizes())


def shards_of(name: str) -> int:
  """Into how many parts a logical axis is cut in this context."""
  return count(axes_of(name), _sizes())


def constrain(carriers: jax.Array) -> jax.Array:
  """Carriers ``[..., n, d]``, to lie as the rules say."""
  if not (nn.get_logical_axis_rules() and _sizes()):
    return carriers
  names = [*_batch_names(carriers.ndim - 2), "length", "features"]
  place = spec(names, carriers.shape, _sizes(), nn.get_logical_axis_rules())
  return lax.with_sharding_constraint(carriers, place)


def attend(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  receiver_presence: jax.Array,
  source_presence: jax.Array,
  *,
  mask: Any = None,
  bias: Any = None,
  receiver_positions: Any = None,
  source_positions: Any = None,
  receiver_segments: Any = None,
  source_segments: Any = None,
  dropout_key: jax.Array | None = None,
  **options: Any,
) -> tuple[jax.Array, jax.Array]:
  """`o_attention` and its support, each device on its samples, heads, tokens.

  Tokens are filled up with nulls to a number that the mesh divides.
  """
  operands = [query, key, value, receiver_presence, source_presence]
  tokens: dict[str, Any] = {
    "receiver_positions": receiver_positions,
    "source_positions": source_positions,
    "receiver_segments": receiver_segments,
    "source_segments": source_segments,
  }
  pairs = {"mask": mask, "bias": bias}
  run: Any = functools.partial(
    _attention.o_attention, return_support=True, **options
  )
  if not any(map(axes_of, ("batch", "heads", "length"))):
    given = {**tokens, **pairs, "dropout_key": dropout_key}
    plain: tuple[jax.Array, jax.Array] = run(*operands, **given)
    return plain

  count, shards = query.shape[-3], shards_of("length")
  ends = {"receiver": query.shape[:-2], "source": key.shape[:-2]}
  tokens = {
    name: _checks.per_token(name, x, ends[name.split("_")[0]])
    for name, x in tokens.items()
    if x is not None
  }
  pairs = {name: jnp.asarray(x) for name, x in pairs.items() if x is not None}
  operands = [filled(x, len(ends["source"]) - 1, shards) for x in operands]
  tokens = {n: filled(x, x.ndim - 1, shards) for n, x in tokens.items()}
  for axis in (-2, -1):
    pairs = {
      name: x if x.shape[axis] == 1 else filled(x, x.ndim + axis, shards)
      for name, x in pairs.items()
    }

  heads = math.gcd(query.shape[-2], key.shape[-2])
  cut_heads = axes_of("heads") if heads % shards_of("heads") == 0 else ()
  batch = query.shape[:-3]
  cut_batch = bool(batch) and batch[0] % shards_of("batch") == 0
  samples = axes_of("batch") if cut_batch else ()
  lead = [samples or None, *[None] * (len(batch) - 1)][: len(batch)]
  length = axes_of("length") or None
  per_token = PartitionSpec(*lead, length)
  per_head = PartitionSpec(*lead, length, cut_heads or None)

  def of_pairs(x: jax.Array) -> PartitionSpec:
    whole = [*lead, cut_heads or None, length, None][-x.ndim :]
    both = zip(whole, x.shape, strict=True)
    return PartitionSpec(*(None if size == 1 else axes for axes, size in both))

  def here(operands: Any, tokens: Any, pairs: Any, key: Any) -> Any:
    if key is not None:
      for axis in (*samples, *cut_heads):
        key = jax.random.fold_in(key, lax.axis_index(axis))
    outputs, support = run(
      *operands, **tokens, **pairs, dropout_key=key, axis_name=length
    )
    if cut_heads:
      support = lax.pmax(support.astype(jnp.int32), cut_heads) != 0
    return outputs, support

  outputs, support = jax.shard_map(
    here,
    in_specs=(
      [per_head] * 3 + [per_token] * 2,
      dict.fromkeys(tokens, per_token),
      {name: of_pairs(x) for name, x in pairs.items()},
      PartitionSpec(),
    ),
    out_specs=(per_head, per_token),
  )(operands, tokens, pairs, dropout_key)
  return outputs[..., :count, :, :], support[..., :count]


def filled(x: jax.Array, axis: int, shards: int) -> jax.Array:
  """With zeros behind, so that `shards` divides an axis."""
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, -x.shape[axis] % shards)
  return jnp.pad(x, widths) if widths[axis][1] else x


def _sizes() -> dict[str, int]:
  """The mesh axes of the context that JAX cuts arrays along by itself."""
  mesh = jax.sharding.get_abstract_mesh()
  return {
    name: size
    for name, size, kind in zip(
      mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True
    )
    if kind == AxisType.Auto
  }


def _present(axes: Any, sizes: dict[str, int]) -> tuple[str, ...]:
  """Those of the axes that cut anything."""
  named = (axes,) if isinstance(axes, str) else axes or ()
  return tuple(axis for axis in named if sizes.get(axis, 1) > 1)


def count(axes: Any, sizes: dict[str, int]) -> int:
  return math.prod(sizes[axis] for axis in _present(axes, sizes))


def _batch_names(count: int) -> list[str | None]:
  """The first of the batch axes is the one that is cut."""
  return [*["batch"][:count], *[None] * (count - 1)]
