"""What the implementations of OAttention work on: checked, and of one rank."""

from collections.abc import Callable
import dataclasses
import functools
import math
import numbers
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _checks
from oflax import _numerics
from oflax import _visibility
from oflax._numerics import AxisName
from oflax._visibility import Visibility


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=(
    "query",
    "key",
    "value",
    "receiver_presence",
    "source_presence",
    "visibility",
    "bias",
    "scale",
    "dropout_key",
    "maximum",
  ),
  meta_fields=("dropout_rate", "broadcast_dropout", "precision"),
)
@dataclasses.dataclass(frozen=True)
class Operands:
  """The arguments of `o_attention`, checked, with the batch axes made one, B.

  Attributes:
    query: ``[B, T, N, H]``.
    key: ``[B, S, K, H]``.
    value: ``[B, S, K, V]``.
    receiver_presence: ``[B, 1, T, 1]``.
    source_presence: ``[B, 1, 1, S]``.
    visibility: Who may look at whom.
    bias: Added to the scores, ``[B, N, T, S]`` with ones, without −inf; or
      None.
    scale: Of the scores.
    dropout_key: Or None.
    dropout_rate: Share of the weights dropped; 0 if there is no dropout.
    broadcast_dropout: Whether B and N share the dropout.
    precision: Of the products.
    maximum: The largest exponent of more sources than these, where it is known,
      ``[B, N, T, 1]``, a constant; or None.
  """

  query: jax.Array
  key: jax.Array
  value: jax.Array
  receiver_presence: jax.Array
  source_presence: jax.Array
  visibility: Visibility
  bias: jax.Array | None
  scale: Any
  dropout_key: jax.Array | None = None
  dropout_rate: float = 0.0
  broadcast_dropout: bool = False
  precision: lax.PrecisionLike = None
  maximum: jax.Array | None = None

  @property
  def sizes(self) -> tuple[int, int, int, int]:
    """B, N, T and S."""
    batch, receivers, heads, _ = self.query.shape
    return batch, heads, receivers, self.source_presence.shape[-1]

  @property
  def dtype(self) -> jnp.dtype:
    """Of scores and sums: float32 or wider."""
    return _numerics.wide_dtype(self.query, self.key, self.value)

  def finite_query(self) -> jax.Array:
    """The query, finite where receivers are absent."""
    presence = jnp.squeeze(self.receiver_presence, (1, 3))
    return _numerics.quarantine(self.query, presence)

  def gated(self, mean: jax.Array) -> jax.Array:
    """What receivers get, ``[B, T, N, V]``."""
    presence = jnp.squeeze(self.receiver_presence, (1, 3))
    return _numerics.gate(mean, presence)

  def finite_sources(self) -> tuple[jax.Array, jax.Array]:
    """Key and value, finite where sources are absent."""
    presence = jnp.squeeze(self.source_presence, (1, 2))
    # A score may overflow although the key does not.
    key = _numerics.quarantine_input(self.key, presence)
    return key, _numerics.quarantine(self.value, presence)

  def cut(self, part: Callable[[jax.Array, int], jax.Array]) -> "Operands":
    """With a part of what varies over sources, but for key and value."""

    def last(x: jax.Array | None) -> Any:
      return None if x is None else part(x, -1)

    def pair(sides: tuple[jax.Array, jax.Array] | None) -> Any:
      return None if sides is None else (sides[0], part(sides[1], -1))

    seen = self.visibility
    return dataclasses.replace(
      self,
      source_presence=part(self.source_presence, -1),
      visibility=dataclasses.replace(
        seen,
        masks=tuple(map(last, seen.masks)),
        positions=pair(seen.positions),
        segments=pair(seen.segments),
      ),
      bias=last(self.bias),
    )


def prepare(
  query: Any,
  key: Any,
  value: Any,
  receiver_presence: Any,
  source_presence: Any,
  *,
  bias: Any,
  scale: Any,
  precision: lax.PrecisionLike = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  broadcast_dropout: bool = False,
  axis_name: AxisName | None = None,
  **visibility: Any,
) -> Operands:
  """Checks the arguments of `o_attention`."""
  query, key, value = _arrays(query, key, value)
  receivers, sources = query.shape[:-2], key.shape[:-2]
  p_source = _checks.presence_of("source_presence", source_presence, sources)
  p_receiver = _checks.presence_of(
    "receiver_presence", receiver_presence, receivers
  )
  seen = _visibility.visibility(
    p_receiver,
    p_source,
    num_heads=query.shape[-2],
    axis_name=axis_name,
    **visibility,
  )
  # Masks and biases have a column for every source of every shard.
  count = sources[-1] * (lax.axis_size(axis_name) if axis_name else 1)
  scores = (*receivers[:-1], query.shape[-2], receivers[-1], count)
  if bias is not None:
    bias = jnp.asarray(bias)
    _checks.check_floating("bias", bias)
    # −inf moves into the relation: nothing is computed on it. Without the
    # literal, which `jax_debug_infs` would stop at.
    shown = jnp.isfinite(bias) | ~(bias < 0)
    bias = _visibility.pairwise("bias", jnp.where(shown, bias, 0), scores)
    bias = bias.astype(_numerics.wide_dtype(query, key, value))
    masks = (*seen.masks, _visibility.pairwise("bias", shown, scores))
    seen = dataclasses.replace(seen, masks=masks)
  _checks.check_interval("dropout_rate", dropout_rate, 0, 1, "[)")
  if dropout_rate and dropout_key is None:
    raise ValueError(
      f"dropout_key must be a key if dropout_rate is positive ({dropout_rate}),"
      " got None."
    )
  batch = math.prod(receivers[:-1])
  return Operands(
    query.reshape(batch, *query.shape[-3:]),
    key.reshape(batch, *key.shape[-3:]),
    value.reshape(batch, *value.shape[-3:]),
    p_receiver.reshape(batch, 1, receivers[-1], 1),
    p_source.reshape(batch, 1, 1, sources[-1]),
    seen,
    bias,
    _scale(scale, query),
    dropout_key,
    dropout_rate,
    broadcast_dropout,
    precision,
  )


def _arrays(*given: Any) -> tuple[jax.Array, ...]:
  names = ("query", "key", "value")
  q, k, v = arrays = tuple(map(jnp.asarray, given))
  for name, array in zip(names, arrays, strict=True):
    _checks.check_floating(name, array)
    _checks.check_rank(name, array, 3, "[..., tokens, heads, features]")
  if k.shape[:-1] != v.shape[:-1]:
    raise ValueError(
      "key and value must agree in all but their features, got shapes"
      f" {k.shape} and {v.shape}."
    )
  if q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1]:
    raise ValueError(
      "query and key must agree in batch axes and features, got shapes"
      f" {q.shape} and {k.shape}."
    )
  if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
    raise ValueError(
      f"the heads of key ({k.shape[-2]}) must divide those of query"
      f" ({q.shape[-2]})."
    )
  return arrays


def _scale(scale: Any, query: jax.Array) -> Any:
  if scale is None:
    return 1 / math.sqrt(max(query.shape[-1], 1))
  _checks.check_scalar("scale", scale)
  if isinstance(scale, numbers.Real):
    return float(scale)
  return jnp.asarray(scale, _numerics.wide_dtype(query))
