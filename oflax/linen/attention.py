"""OAttention as a module."""

from typing import Any

from flax import linen as nn
from flax.typing import Dtype
from flax.typing import Initializer
from flax.typing import PrecisionLike
import jax
import jax.numpy as jnp

from oflax import _attention
from oflax import _checks
from oflax import _numerics
from oflax import _presence
from oflax import _rotary
from oflax import _visibility
from oflax.linen import cache
from oflax.linen import placement
from oflax.linen.cache import COLLECTION
from oflax.linen.cache import Cache
from oflax.linen.presence import WithPresence


class OAttention(WithPresence):
  r"""Multi-head OAttention with projections, gated once, bias included.

  .. math:: p_i \cdot 1[\text{support of } i \text{ not empty}] \cdot
     \left(W_o \sum_j w_{ij} v_j + b_o\right)

  The parameters are those of flax.linen.MultiHeadDotProductAttention: "query",
  "key", "value", "out" and, with `normalize_qk`, "query_ln", "key_ln".

  Attributes:
    num_heads: Heads of the queries.
    num_kv_heads: Heads of keys and values, a divisor of `num_heads`; default:
      `num_heads`.
    qkv_features: Width of all heads together; default: that of the receivers.
    out_features: Width of the output; default: that of the receivers.
    normalize_qk: Whether queries and keys are layer-normalised.
    rotary: Whether queries and keys are turned by their positions.
    rotary_base: Base of the rotary frequencies.
    is_causal: Whether sources of later positions are invisible.
    local_window_size: w or (left, right), in positions.
    broadcast_dropout: One dropout mask for all samples and heads.
    implementation: As in `oflax.o_attention`.
    decode: Whether tokens are added to the collection "cache", and sources are
      all that is in it (see `oflax.sequences.init_cache`). With a window it is
      a ring, whose oldest slots are written over.
    dtype: Of the computation; default: that of inputs and parameters.
    param_dtype: Of the parameters.
    kernel_init: Initialiser of the kernels.
    bias_init: Initialiser of the biases.
    use_bias: Whether the projections have biases.
    precision: Of the matrix products.
    dropout_rate: Share of the attention weights dropped, in [0, 1).
    deterministic: Whether dropout is off.
    tau: Threshold of the presence, in units of the squared norm.
    learnable_tau: Whether it is a parameter.

  Raises:
    ValueError: Fields or arguments that do not fit, named with their values.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> h = jnp.array([[1.0, 2.0], [0.0, 0.0]])
    >>> attention = OAttention(2, bias_init=jax.nn.initializers.ones)
    >>> out, _ = attention.init_with_output(jax.random.key(0), h)
    >>> bool((out[1] == 0).all()), bool((out[0] == 0).all())
    (True, False)

  Reference: docs/concepts.md, OAttention; Vaswani et al. 2017.
  """

  num_heads: int
  num_kv_heads: int | None = None
  qkv_features: int | None = None
  out_features: int | None = None
  normalize_qk: bool = False
  rotary: bool = False
  rotary_base: float = 10000.0
  is_causal: bool = False
  local_window_size: int | tuple[int, int] | None = None
  broadcast_dropout: bool = False
  implementation: str | None = None
  decode: bool = False
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  kernel_init: Initializer = nn.linear.default_kernel_init
  bias_init: Initializer = nn.initializers.zeros
  use_bias: bool = True
  precision: PrecisionLike = None
  dropout_rate: float = 0.0
  deterministic: bool | None = None

  @nn.compact
  def __call__(
    self,
    inputs_q: jax.Array,
    inputs_k: jax.Array | None = None,
    inputs_v: jax.Array | None = None,
    *,
    receiver_presence: jax.Array | None = None,
    source_presence: jax.Array | None = None,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    receiver_positions: jax.Array | None = None,
    source_positions: jax.Array | None = None,
    receiver_segments: jax.Array | None = None,
    source_segments: jax.Array | None = None,
    deterministic: bool | None = None,
    sow_weights: bool = False,
  ) -> jax.Array:
    """Attends from receivers to sources, or among the receivers.

    Args:
      inputs_q: Receivers, ``[..., T, d]``.
      inputs_k: Sources of the keys, ``[..., S, d']``; default: `inputs_q`.
      inputs_v: Sources of the values, ``[..., S, d'']``; default: `inputs_k`.
      receiver_presence: ``[..., T]``; default: that of `inputs_q`. Given alone
        in self-attention it serves both sides.
      source_presence: ``[..., S]``; default: that of `inputs_k`.
      mask: Boolean, as in `oflax.o_attention`, as for all that follow.
      bias: Added to the scores.
      receiver_positions: ``[..., T]``; default: presence ranks. Given alone in
        self-attention it serves both sides.
      source_positions: ``[..., S]``; default: presence ranks.
      receiver_segments: ``[..., T]``, together with `source_segments`.
      source_segments: ``[..., S]``.
      deterministic: Whether dropout is off, if the field does not say.
      sow_weights: Sow the weights as "attention_weights", ``[..., N, T, S]``,
        into "intermediates".

    Returns:
      ``[..., T, out_features]``.
    """
    inputs_q = jnp.asarray(inputs_q)
    head_features = self._check(inputs_q)
    is_self = inputs_k is None
    if is_self and inputs_v is not None:
      raise ValueError(
        "inputs_v needs inputs_k, got inputs_k=None and inputs_v of shape"
        f" {jnp.shape(inputs_v)}."
      )
    sources = inputs_q if inputs_k is None else jnp.asarray(inputs_k)
    values = sources if inputs_v is None else jnp.asarray(inputs_v)
    _checks.check_rank("inputs_k", sources, 2, "[..., n, d]")
    if values.shape[:-1] != sources.shape[:-1]:
      raise ValueError(
        "inputs_k and inputs_v must have the same tokens, got shapes"
        f" {sources.shape} and {values.shape}."
      )

    receiver_presence = self.own_presence(inputs_q, receiver_presence)
    if is_self and source_presence is None:
      source_presence = receiver_presence
    source_presence = self.own_presence(
      sources, source_presence, name="source_presence"
    )
    receiver_presence, source_presence = (
      _checks.presence_of(name, p, x.shape[:-1])
      for name, p, x in (
        ("receiver_presence", receiver_presence, inputs_q),
        ("source_presence", source_presence, sources),
      )
    )
    if is_self and source_positions is None:
      source_positions = receiver_positions
    if is_self and receiver_positions is None:
      receiver_positions = source_positions
    cached = None
    if self.decode:
      self._check_decode(is_self, receiver_segments, source_segments)
      cached = cache.stored(self)
    if self._ordered or self.decode:
      if receiver_positions is None:
        receiver_positions = self._ranks(receiver_presence, cached)
      if source_positions is None:
        source_positions = self._ranks(source_presence, cached)

    def project(
      name: str, inputs: jax.Array, presence: jax.Array, heads: int
    ) -> jax.Array:
      inputs = _numerics.quarantine_input(inputs, presence)
      outputs = self._dense((heads, head_features), -1, name)(inputs)
      return _numerics.quarantine(outputs, presence)

    kv_heads = _default(self.num_kv_heads, self.num_heads)
    query = project("query", inputs_q, receiver_presence, self.num_heads)
    key = project("key", sources, source_presence, kv_heads)
    value = project("value", values, source_presence, kv_heads)
    if self.normalize_qk:
      query = self._layer_norm("query_ln")(query)
      key = self._layer_norm("key_ln")(key)
    if self.rotary:
      query = self._rotate("receiver_positions", query, receiver_positions)
      key = self._rotate("source_positions", key, source_positions)
    full = None
    if self.decode:
      assert source_positions is not None  # As above.
      new = Cache.of(key, value, source_presence, source_positions)
      seen, full = cache.extend(self, cached, new, self._reach_back())
      key, value = (jnp.swapaxes(x, -3, -2) for x in (seen.key, seen.value))
      source_presence, source_positions = seen.presence, seen.position

    visibility: dict[str, Any] = dict(
      mask=mask,
      bias=bias,
      is_causal=self.is_causal,
      local_window_size=self.local_window_size,
      receiver_positions=receiver_positions,
      source_positions=source_positions,
      receiver_segments=receiver_segments,
      source_segments=source_segments,
    )
    if sow_weights:
      weights = _attention.o_attention_weights(
        query, key, source_presence, **visibility
      )
      self.sow("intermediates", "attention_weights", weights)
    # The receiver's gate comes once, after the output projection.
    mean, support = placement.attend(
      query,
      key,
      value,
      jnp.ones_like(receiver_presence),
      source_presence,
      **visibility,
      **self._dropout(deterministic),
      precision=self.precision,
      implementation=self._implementation(),
    )
    out_features = _default(self.out_features, inputs_q.shape[-1])
    outputs = self._dense(out_features, (-2, -1), "out")(mean)
    gate = jnp.where(support, receiver_presence, 0)
    if full is not None:
      # Rows that had no room left are seen to have lost tokens.
      gate = jnp.where(full[..., None] & (gate != 0), jnp.nan, gate)
    return _numerics.gate(outputs, gate).astype(self.dtype or inputs_q.dtype)

  def _check_decode(self, is_self: bool, *segments: jax.Array | None) -> None:
    if not is_self:
      raise ValueError("decode=True is for self-attention, got inputs_k.")
    if any(segment is not None for segment in segments):
      raise ValueError("decode=True takes no segments, got some.")
    known = self.has_variable(COLLECTION, "index") or self.is_initializing()
    if not (known and self.is_mutable_collection(COLLECTION)):
      raise ValueError(
        f'decode=True needs mutable=["{COLLECTION}"], and at apply a cache'
        " among the variables: see oflax.sequences.init_cache."
      )

  def _ranks(self, presence: jax.Array, cached: Cache | None) -> jax.Array:
    """Default positions: presence ranks, after the tokens seen already."""
    if cached is None:
      return _presence.presence_rank(presence)
    return cache.ranks_after(presence, cached.index)

  def _implementation(self) -> Any:
    cached = self.decode and self.implementation is None
    return _attention.CACHED if cached else self.implementation

  def _reach_back(self) -> int | None:
    """How far back a causal window reaches; None without one."""
    window = _visibility.window_sides(self.local_window_size)
    return window[0] if window is not None and self.is_causal else None

  @property
  def _ordered(self) -> bool:
    window = self.local_window_size
    return self.rotary or self.is_causal or window is not None

  def _check(self, inputs_q: jax.Array) -> int:
    """Checks the fields; returns the features of a head."""
    _checks.check_rank("inputs_q", inputs_q, 2, "[..., n, d]")
    _checks.check_interval("dropout_rate", self.dropout_rate, 0, 1, "[)")
    features = _default(self.qkv_features, inputs_q.shape[-1])
    heads = self.num_heads
    kv_heads = _default(self.num_kv_heads, heads)
    _checks.check_positive("rotary_base", self.rotary_base)
    if heads < 1 or features % heads:
      raise ValueError(
        f"num_heads={heads} must divide qkv_features={features}."
      )
    if kv_heads < 1 or heads % kv_heads:
      raise ValueError(
        f"num_kv_heads={kv_heads} must divide num_heads={heads}."
      )
    if self.rotary and (features // heads) % 2:
      raise ValueError(
        "rotary needs an even number of features a head, got"
        f" {features // heads}."
      )
    return features // heads

  def _dense(self, features: Any, axis: Any, name: str) -> nn.DenseGeneral:
    return nn.DenseGeneral(
      features,
      axis=axis,
      use_bias=self.use_bias,
      dtype=self.dtype,
      param_dtype=self.param_dtype,
      kernel_init=self.kernel_init,
      bias_init=self.bias_init,
      precision=self.precision,
      name=name,
    )

  def _layer_norm(self, name: str) -> nn.LayerNorm:
    return nn.LayerNorm(
      use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype, name=name
    )

  def _rotate(
    self, name: str, x: jax.Array, positions: jax.Array | None
  ) -> jax.Array:
    positions = _checks.per_token(name, positions, x.shape[:-2])
    return _rotary.rotate(x, positions, self.rotary_base)

  def _dropout(self, deterministic: bool | None) -> dict[str, Any]:
    if self.dropout_rate == 0 or nn.merge_param(
      "deterministic", self.deterministic, deterministic
    ):
      return {}
    return dict(
      dropout_rate=self.dropout_rate,
      dropout_key=self.make_rng("dropout"),
      broadcast_dropout=self.broadcast_dropout,
    )


def _default(value: int | None, default: int) -> int:
  return default if value is None else value
