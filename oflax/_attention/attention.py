"""OAttention: attention among tokens that exist to a degree."""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _checks
from oflax._attention import blocked
from oflax._attention import folded
from oflax._attention import reference
from oflax._attention import ring
from oflax._attention import slots
from oflax._attention.blocked import BlockSizes
from oflax._attention.operands import Operands
from oflax._attention.operands import prepare
from oflax._numerics import AxisName

IMPLEMENTATIONS = (None, "reference", "blocked", "folded")
# What None is for the slots of a cache.
CACHED = "cached"


def o_attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  receiver_presence: jax.Array,
  source_presence: jax.Array,
  *,
  mask: jax.Array | None = None,
  bias: jax.Array | None = None,
  is_causal: bool = False,
  local_window_size: int | tuple[int, int] | None = None,
  receiver_positions: jax.Array | None = None,
  source_positions: jax.Array | None = None,
  receiver_segments: jax.Array | None = None,
  source_segments: jax.Array | None = None,
  scale: float | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  broadcast_dropout: bool = False,
  precision: lax.PrecisionLike = None,
  implementation: str | BlockSizes | None = None,
  return_support: bool = False,
  axis_name: AxisName | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
  r"""Attention in which a null token neither sends nor receives.

  .. math:: o_i = p_i \, \frac{\sum_{j \in V(i)} p_j e^{s_{ij}} v_j}
     {\sum_{j \in V(i)} p_j e^{s_{ij}}}, \quad
     s_{ij} = \mathrm{scale} \; q_i \cdot k_j + \mathrm{bias}_{ij}

  and 0 if no visible source is present (empty support). With every presence 1
  it is standard attention. Scores and sums are formed in float32 or wider.

  Args:
    query: ``[..., T, N, H]``: T receivers, N heads of H features.
    key: ``[..., S, K, H]``: S sources; K divides N, each head of keys and
      values serves N / K consecutive heads of queries.
    value: ``[..., S, K, V]``.
    receiver_presence: ``[..., T]`` or ``[T]``.
    source_presence: ``[..., S]`` or ``[S]``.
    mask: Boolean, True = visible, ``[T, S]`` or ``[..., N, T, S]`` with ones.
    bias: Added to the scores, shaped like `mask`; −inf means invisible.
    is_causal: Sources of a later position than the receiver's are invisible.
    local_window_size: w or (left, right): the positions a receiver sees around
      its own, inclusive.
    receiver_positions: ``[..., T]`` or ``[T]``; default: presence ranks.
    source_positions: ``[..., S]`` or ``[S]``; default: presence ranks.
    receiver_segments: ``[..., T]`` or ``[T]``: tokens of unequal segments do
      not see each other. Goes with `source_segments`.
    source_segments: ``[..., S]`` or ``[S]``.
    scale: Of the scores; default: 1 / sqrt(H).
    dropout_rate: Share of the weights dropped, in [0, 1).
    dropout_key: Key of the dropout, needed if the rate is positive.
    broadcast_dropout: One dropout mask for all batch entries and heads.
    precision: Of the matrix products, as in `jax.lax.dot_general`.
    implementation: None chooses; "reference" is the definition written out,
      "blocked" the same in blocks, in linear memory (`BlockSizes` says which);
      "folded" by a fused kernel, cuDNN's on GPU in 16 bits: no dropout, no
      forward mode or second derivatives; in linear memory where neither mask,
      bias, order nor segments are given.
    return_support: Also return which receivers have a non-empty support (for
      any of their heads).
    axis_name: Mapped axis, as of `jax.shard_map`, over which receivers and
      sources are split alike, T and S of each a shard. The shards of sources go
      round in a ring, so that no device holds more than its share and one more
      of the same size, backward too. Ranks count over all shards; `mask` and
      `bias` have a column for each of all sources. No forward mode, and not
      "folded".

  Returns:
    ``[..., T, N, V]`` in the dtype of `query`; with `return_support` also the
    support, boolean ``[..., T]``.

  Raises:
    ValueError: Shapes, dtypes or options that do not fit, named with their
      values.

  Example:
    >>> import jax.numpy as jnp
    >>> q = k = jnp.zeros((2, 1, 4))  # all scores are 0
    >>> v = jnp.eye(2)[:, None, :]
    >>> p = jnp.array([0.5, 1.0])
    >>> o_attention(q, k, v, p, p).tolist()
    [[[0.167, 0.333]], [[0.333, 0.667]]]

  Reference: docs/concepts.md, OAttention; Vaswani et al. 2017.
  """
  operands = prepare(
    query,
    key,
    value,
    receiver_presence,
    source_presence,
    mask=mask,
    bias=bias,
    is_causal=is_causal,
    local_window_size=local_window_size,
    receiver_positions=receiver_positions,
    source_positions=source_positions,
    receiver_segments=receiver_segments,
    source_segments=source_segments,
    scale=scale,
    dropout_rate=dropout_rate,
    dropout_key=dropout_key,
    broadcast_dropout=broadcast_dropout,
    precision=precision,
    axis_name=axis_name,
  )
  if axis_name is None:
    outputs, support = _attend(operands, implementation)
  else:
    chosen = None if implementation == CACHED else implementation
    outputs, support = ring.attend(operands, chosen, axis_name)
  query = jnp.asarray(query)
  outputs = outputs.reshape(*query.shape[:-1], outputs.shape[-1])
  outputs = outputs.astype(query.dtype)
  if return_support:
    return outputs, jnp.any(support, axis=-1).reshape(query.shape[:-2])
  return outputs


def o_attention_weights(
  query: jax.Array,
  key: jax.Array,
  source_presence: jax.Array,
  *,
  mask: jax.Array | None = None,
  bias: jax.Array | None = None,
  is_causal: bool = False,
  local_window_size: int | tuple[int, int] | None = None,
  receiver_positions: jax.Array | None = None,
  source_positions: jax.Array | None = None,
  receiver_segments: jax.Array | None = None,
  source_segments: jax.Array | None = None,
  scale: float | None = None,
) -> jax.Array:
  r"""The weights with which `o_attention` averages the values.

  .. math:: w_{ij} = p_j e^{s_{ij}} / \sum_{j' \in V(i)} p_{j'} e^{s_{ij'}}

  The receiver's gate is not in them. Where T = S the receivers are taken to be
  the sources (self-attention): they are absent where those are, and of their
  positions if these are not given; else all are present, at their index.

  Args:
    query: ``[..., T, N, H]``.
    key: ``[..., S, K, H]``.
    source_presence: ``[..., S]`` or ``[S]``.
    mask: See `o_attention`, as for all arguments that follow.
    bias: Added to the scores.
    is_causal: Whether later sources are invisible.
    local_window_size: w or (left, right).
    receiver_positions: ``[..., T]`` or ``[T]``.
    source_positions: ``[..., S]`` or ``[S]``; default: presence ranks.
    receiver_segments: ``[..., T]`` or ``[T]``.
    source_segments: ``[..., S]`` or ``[S]``.
    scale: Of the scores; default: 1 / sqrt(H).

  Returns:
    ``[..., N, T, S]`` in float32 or wider; rows sum to 1, or to 0 where the
    support is empty.

  Raises:
    ValueError: Shapes, dtypes or options that do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> q = k = jnp.zeros((2, 1, 4))
    >>> o_attention_weights(q, k, jnp.array([0.25, 0.75])).tolist()
    [[[0.250, 0.750], [0.250, 0.750]]]

  Reference: docs/concepts.md, OAttention.
  """
  query, key = jnp.asarray(query), jnp.asarray(key)
  p_receiver = jnp.ones(query.shape[:-2], jnp.float32)
  if query.shape[:-2] == key.shape[:-2]:
    p_receiver = source_presence
    if receiver_positions is None:
      receiver_positions = source_positions
  operands = prepare(
    query,
    key,
    key,
    p_receiver,
    source_presence,
    mask=mask,
    bias=bias,
    is_causal=is_causal,
    local_window_size=local_window_size,
    receiver_positions=receiver_positions,
    source_positions=source_positions,
    receiver_segments=receiver_segments,
    source_segments=source_segments,
    scale=scale,
  )
  weights = reference.weights(operands)
  return weights.reshape(*query.shape[:-3], *weights.shape[1:])


def _attend(
  operands: Operands, implementation: Any
) -> tuple[jax.Array, jax.Array]:
  """The mean and the support by the implementation asked for, or the best."""
  if implementation == CACHED:
    if slots.fits(operands):
      return slots.attend(operands)
    implementation = None
  if isinstance(implementation, BlockSizes):
    return blocked.attend(operands, implementation)
  _checks.check_choice("implementation", implementation, IMPLEMENTATIONS)
  if implementation == "reference":
    return reference.attend(operands)
  if implementation == "folded":
    return folded.attend(operands)
  sizes = blocked.block_sizes(operands)
  if implementation is None and sizes.hold(operands):
    return reference.attend(operands)
  return blocked.attend(operands, sizes)
