"""OAttention: attention among tokens that exist to a degree."""

import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _checks
from oflax import _numerics
from oflax import _visibility
from oflax._attention import reference

IMPLEMENTATIONS = (None, "reference")


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
  implementation: str | None = None,
  return_support: bool = False,
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
    implementation: None chooses; "reference" is the definition written out.
    return_support: Also return which receivers have a non-empty support (for
      any of their heads).

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

  Reference: DESIGN §1, OAttention; Vaswani et al. 2017.
  """
  _checks.check_choice("implementation", implementation, IMPLEMENTATIONS)
  query, key, value = _arrays(query, key, value)
  receivers = query.shape[:-2]
  sources = key.shape[:-2]
  num_heads = query.shape[-2]
  p_receiver = _checks.presence_of(
    "receiver_presence", receiver_presence, receivers
  )
  p_source = _checks.presence_of("source_presence", source_presence, sources)
  visibility = _visibility.visibility(
    p_receiver,
    p_source,
    num_heads=num_heads,
    mask=mask,
    is_causal=is_causal,
    local_window_size=local_window_size,
    receiver_positions=receiver_positions,
    source_positions=source_positions,
    receiver_segments=receiver_segments,
    source_segments=source_segments,
  )
  scores = (*receivers[:-1], num_heads, receivers[-1], sources[-1])
  kept = _kept(dropout_rate, dropout_key, broadcast_dropout, scores)
  bias, visible = _additive(bias, visibility.relation(), scores)

  wide = _numerics.wide_dtype(query, key, value)
  if bias is not None:
    bias = _quarantine_bias(bias.astype(wide), p_receiver, p_source)
  result = reference.partition(
    _heads_first(query, p_receiver, num_heads, wide) * _scale(scale, query),
    _heads_first(key, p_source, num_heads, wide),
    _heads_first(value, p_source, num_heads, wide),
    p_source,
    visible,
    bias,
    precision=precision,
    kept=None if kept is None else kept.astype(wide),
  )
  mean = jnp.moveaxis(result.mean(), -3, -2)
  outputs = _numerics.gate(mean, p_receiver).astype(query.dtype)
  if return_support:
    return outputs, jnp.any(result.mass != 0, axis=-2)
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

  The receiver's gate is not in them. Receivers whose positions matter and are
  not given take those of the sources where T = S (self-attention), else their
  index.

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

  Reference: DESIGN §1, OAttention.
  """
  query, key, _ = _arrays(query, key, key)
  receivers, sources = query.shape[:-2], key.shape[:-2]
  num_heads = query.shape[-2]
  p_source = _checks.presence_of("source_presence", source_presence, sources)
  p_receiver = jnp.ones(receivers, jnp.float32)
  if receivers == sources:
    p_receiver = p_source
    if receiver_positions is None:
      receiver_positions = source_positions
  visible = _visibility.visibility(
    p_receiver,
    p_source,
    num_heads=num_heads,
    mask=mask,
    is_causal=is_causal,
    local_window_size=local_window_size,
    receiver_positions=receiver_positions,
    source_positions=source_positions,
    receiver_segments=receiver_segments,
    source_segments=source_segments,
  ).relation()
  scores = (*receivers[:-1], num_heads, receivers[-1], sources[-1])
  bias, visible = _additive(bias, visible, scores)

  wide = _numerics.wide_dtype(query, key)
  everyone = jnp.ones(receivers, wide)
  if bias is not None:
    bias = _quarantine_bias(bias.astype(wide), everyone, p_source)
  q = _heads_first(query, everyone, num_heads, wide) * _scale(scale, query)
  k = _heads_first(key, p_source, num_heads, wide)
  e, _, mass = reference.energies(q, k, p_source, visible, bias, None)
  weights = e * mass[..., None, None, :]
  return _numerics.safe_divide(weights, jnp.sum(weights, -1, keepdims=True))


def _arrays(query: Any, key: Any, value: Any) -> tuple[jax.Array, ...]:
  given = {"query": query, "key": key, "value": value}
  arrays = {name: jnp.asarray(array) for name, array in given.items()}
  for name, array in arrays.items():
    _checks.check_floating(name, array)
    _checks.check_rank(name, array, 3, "[..., tokens, heads, features]")
  q, k, v = arrays.values()
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
  return q, k, v


def _scale(scale: Any, query: jax.Array) -> Any:
  if scale is None:
    return 1 / math.sqrt(max(query.shape[-1], 1))
  _checks.check_scalar("scale", scale)
  return jnp.asarray(scale, _numerics.wide_dtype(query))


def _heads_first(
  x: jax.Array, presence: jax.Array, num_heads: int, dtype: jnp.dtype
) -> jax.Array:
  """``[..., S, K, H]`` as ``[..., N, S, H]``, absent tokens quarantined."""
  x = _numerics.quarantine(x, presence).astype(dtype)
  x = jnp.repeat(x, num_heads // x.shape[-2], axis=-2)
  return jnp.moveaxis(x, -2, -3)


def _kept(
  rate: float, key: jax.Array | None, broadcast: bool, scores: tuple[int, ...]
) -> jax.Array | None:
  """The factor of every weight under dropout, or None without it."""
  _checks.check_interval("dropout_rate", rate, 0, 1, "[)")
  if rate == 0:
    return None
  if key is None:
    raise ValueError(
      f"dropout_key must be a key if dropout_rate is positive ({rate}), got"
      " None."
    )
  shape = scores
  if broadcast:
    shape = (1,) * (len(scores) - 2) + scores[-2:]
  kept = jax.random.bernoulli(key, 1 - rate, shape)
  return jnp.where(kept, jnp.float32(1 / (1 - rate)), 0)


def _additive(
  bias: Any, visible: jax.Array | None, scores: tuple[int, ...]
) -> tuple[jax.Array | None, jax.Array | None]:
  """Moves the −inf of a bias into the relation, so that none is computed on.

  Nor is any other non-finite bias of an invisible pair.
  """
  if bias is None:
    return None, visible
  bias = jnp.asarray(bias)
  _checks.check_floating("bias", bias)
  # Without the literal −inf, which `jax_debug_infs` would stop at.
  shown = jnp.isfinite(bias) | ~(bias < 0)
  bias = _visibility.pairwise("bias", jnp.where(shown, bias, 0), scores)
  shown = _visibility.pairwise("bias", shown, scores)
  visible = shown if visible is None else visible & shown
  return jnp.where(visible | jnp.isfinite(bias), bias, 0), visible


def _quarantine_bias(
  bias: jax.Array, receiver_presence: jax.Array, source_presence: jax.Array
) -> jax.Array:
  """Zeroes non-finite biases of pairs in which a token is absent."""
  absent = (receiver_presence == 0)[..., None, :, None] | (
    source_presence == 0
  )[..., None, None, :]
  return jnp.where(absent & ~jnp.isfinite(bias), 0, bias)
