"""OBlock and OTransformer."""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import linen as nn
from flax.typing import Dtype
from flax.typing import Initializer
from flax.typing import PrecisionLike
import jax
import jax.numpy as jnp

from oflax import _checks
from oflax import _compaction
from oflax import _components
from oflax import _presence
from oflax import _visibility
from oflax.linen import arrangements
from oflax.linen import cache
from oflax.linen import placement
from oflax.linen.attention import OAttention
from oflax.linen.cache import COLLECTION
from oflax.linen.calibration import CALIBRATING
from oflax.linen.components import OFFN
from oflax.linen.components import ONorm
from oflax.linen.components import branch_dropout
from oflax.linen.presence import OPresence
from oflax.linen.presence import WithPresence

VARIANTS = ("host", "attention", "full")
PLACEMENTS = ("pre", "post")


class _Fields(WithPresence, kw_only=True):
  """The fields that OBlock and OTransformer share."""

  variant: str = "full"
  norm: str = "layer"
  norm_placement: str = "pre"
  num_kv_heads: int | None = None
  rotary: bool = False
  rotary_base: float = 10000.0
  is_causal: bool = False
  local_window_size: int | tuple[int, int] | None = None
  gated: bool = False
  activation: Callable[[jax.Array], jax.Array] = nn.gelu
  implementation: str | None = None
  decode: bool = False
  epsilon: float = 1e-6
  normalize_qk: bool = False
  broadcast_dropout: bool = False
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  kernel_init: Initializer = nn.linear.default_kernel_init
  bias_init: Initializer = nn.initializers.zeros
  use_bias: bool = True
  precision: PrecisionLike = None
  dropout_rate: float = 0.0
  deterministic: bool | None = None

  def shared(self, *names: str) -> dict[str, Any]:
    return {name: getattr(self, name) for name in names}

  def make_norm(self, name: str) -> ONorm:
    return ONorm(
      kind=self.norm,
      closed=self.closed and self.variant == "full",
      name=name,
      **self.shared(*_EVERYWHERE, "epsilon"),
    )

  def check(self) -> None:
    _checks.check_choice("variant", self.variant, VARIANTS)
    _checks.check_choice("norm", self.norm, _components.NORMS)
    _checks.check_choice("norm_placement", self.norm_placement, PLACEMENTS)
    _checks.check_interval("dropout_rate", self.dropout_rate, 0, 1, "[)")


_EVERYWHERE = (
  "tau",
  "learnable_tau",
  "dtype",
  "param_dtype",
  "use_bias",
  "bias_init",
)
_DENSE = ("kernel_init", "precision", "dropout_rate", "deterministic")
_ATTENTION = (
  "num_kv_heads",
  "rotary",
  "rotary_base",
  "is_causal",
  "local_window_size",
  "implementation",
  "decode",
  "normalize_qk",
  "broadcast_dropout",
)
_SHARED = tuple(
  field.name
  for field in dataclasses.fields(_Fields)
  if field.name not in ("deterministic", "parent", "name")
)


class OBlock(_Fields):
  """One transformer block in which null tokens stay null.

  Pre-norm: H ← H + OAttention(ONorm(H)); H ← H + OFFN(ONorm(H)), with the
  presence of the H that enters each sublayer. Post-norm:
  H ← ONorm(H + OAttention(H)); H ← ONorm(H + OFFN(H)), where each norm has the
  presence of its own argument. Dropout acts on the attention weights and on
  both residual branches.

  Attributes:
    num_heads: Heads of the attention.
    mlp_dim: Hidden features of the feed-forward network.
    variant: "full"; "attention" (OAttention among ordinary components) or
      "host" (an ordinary block), on the same variables.
    norm: "layer" or "rms".
    norm_placement: "pre" or "post".
    gated: Whether the feed-forward network is gated.
    activation: Of the feed-forward network.
    epsilon: Of the norms.

  The other fields are those of `OAttention`, `OFFN` and `ONorm`.

  Raises:
    ValueError: Fields that do not fit, named with their values.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> h = jnp.array([[1.0, 2.0], [0.0, 0.0]])
    >>> block = OBlock(num_heads=2, mlp_dim=4)
    >>> out, _ = block.init_with_output(jax.random.key(0), h)
    >>> out[1].tolist()
    [0.0, 0.0]

  Reference: docs/concepts.md, OTransformer.
  """

  num_heads: int
  mlp_dim: int

  @nn.compact
  def __call__(
    self,
    carriers: jax.Array,
    *,
    mask: jax.Array | None = None,
    positions: jax.Array | None = None,
    segments: jax.Array | None = None,
    deterministic: bool | None = None,
    sow_weights: bool = False,
  ) -> jax.Array:
    """Maps ``[..., n, d]`` to ``[..., n, d]``.

    Args:
      carriers: Tokens, ``[..., n, d]``.
      mask: Boolean, True = visible, ``[n, n]`` or ``[..., N, n, n]``.
      positions: ``[..., n]``; default: presence ranks (host: indices).
      segments: ``[..., n]``; tokens of unequal segments do not see each other.
      deterministic: Whether dropout is off, if the field does not say.
      sow_weights: Sow the attention weights into "intermediates".

    Returns:
      Carriers, ``[..., n, d]``.
    """
    self.check()
    carriers = jnp.asarray(carriers)
    _checks.check_rank("carriers", carriers, 2, "[..., n, d]")
    post = self.norm_placement == "post"
    attention_norm = self.make_norm("attention_norm")
    ffn_norm = self.make_norm("ffn_norm")

    def attend(h: jax.Array, presence: jax.Array) -> jax.Array:
      update = OAttention(
        num_heads=self.num_heads,
        closed=self.closed and self.variant != "host",
        name="attention",
        **self.shared(*_EVERYWHERE, *_DENSE, *_ATTENTION),
      )(
        h,
        receiver_presence=presence,
        mask=mask,
        receiver_positions=positions,
        receiver_segments=segments,
        source_segments=segments,
        deterministic=deterministic,
        sow_weights=sow_weights,
      )
      return branch_dropout(self, update, deterministic)

    def feed(h: jax.Array, presence: jax.Array) -> jax.Array:
      return OFFN(
        self.mlp_dim,
        closed=self.closed and self.variant == "full",
        name="ffn",
        **self.shared(*_EVERYWHERE, *_DENSE, "gated", "activation"),
      )(h, presence=presence, deterministic=deterministic)

    h = carriers
    for sublayer, norm, name in (
      (attend, attention_norm, "attention_presence"),
      (feed, ffn_norm, "ffn_presence"),
    ):
      presence = OPresence(self.tau, self.learnable_tau, name=name)(h)
      if post:
        h = norm(h + sublayer(h, presence).astype(h.dtype)).astype(h.dtype)
      else:
        update = sublayer(norm(h, presence=presence), presence)
        h = h + update.astype(h.dtype)
      h = placement.constrain(h)
    return h


class OTransformer(_Fields):
  """A stack of OBlocks: OTransformer(H ⊕ 0) = OTransformer(H) ⊕ 0.

  Attributes:
    num_layers: Number of blocks.
    num_heads: Heads of the attention.
    mlp_dim: Hidden features of the feed-forward networks.
    final_norm: Whether an ONorm follows the last block.
    compact: Compute on the tokens that are not null, and only on them: exact
      to the bit however many nulls there are (see `oflax.compacted`). Needs
      variant="full". A call that records something, as intermediates, computes
      on all. Under `jax.vmap` every bucket would run: use batch axes instead.
    remat: Recompute each block in the backward pass, to save memory.
    scan_layers: Compile one block and scan over it; its variables are under
      "blocks" with a leading layer axis (see `stack_blocks`).

  The other fields are those of `OBlock`.

  Raises:
    ValueError: Fields that do not fit, named with their values.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> h = jnp.array([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])
    >>> model = OTransformer(num_layers=2, num_heads=2, mlp_dim=4)
    >>> variables = model.init(jax.random.key(0), h)
    >>> out = model.apply(variables, h)
    >>> alone = model.apply(variables, h[jnp.array([0, 2])])
    >>> out[1].tolist(), bool(jnp.allclose(out[0], alone[0], atol=1e-6))
    ([0.0, 0.0], True)

  Reference: docs/concepts.md, OTransformer.
  """

  num_layers: int
  num_heads: int
  mlp_dim: int
  _: dataclasses.KW_ONLY
  final_norm: bool = False
  compact: bool = False
  remat: bool = False
  scan_layers: bool = False

  @nn.compact
  def __call__(
    self,
    carriers: jax.Array,
    *,
    mask: jax.Array | None = None,
    positions: jax.Array | None = None,
    segments: jax.Array | None = None,
    deterministic: bool | None = None,
    sow_weights: bool = False,
  ) -> jax.Array:
    """Maps ``[..., n, d]`` to ``[..., n, d]``.

    Args:
      carriers: Tokens, ``[..., n, d]``.
      mask: Boolean, True = visible, ``[n, n]`` or ``[..., N, n, n]``.
      positions: ``[..., n]``, for rotary, causal order and window; default: the
        presence ranks of the input carriers (host: indices), for every layer.
      segments: ``[..., n]``; tokens of unequal segments do not see each other.
      deterministic: Whether dropout is off; default: the field, or True.
      sow_weights: Sow the attention weights into "intermediates".

    Returns:
      Carriers, ``[..., n, d]``.
    """
    self.check()
    if self.compact and not (self.variant == "full" and self.closed):
      raise ValueError(
        f'compact=True needs variant="full", got {self.variant!r}: the others'
        " are not closed."
      )
    if self.num_layers < 0:
      raise ValueError(
        f"num_layers must not be negative, got {self.num_layers!r}."
      )
    carriers = jnp.asarray(carriers)
    _checks.check_rank("carriers", carriers, 2, "[..., n, d]")
    if deterministic is None:
      deterministic = self.deterministic is not False
    if self.compact and not any(map(self.is_mutable_collection, _LAYERED)):
      return self._on_present(
        carriers, mask, positions, segments, deterministic
      )
    recording = any(map(self.is_mutable_collection, _LAYERED))
    if positions is None or self.decode:
      presence = _presence.presence(carriers)
      if self.variant == "host" or not self.closed:
        presence = jnp.ones_like(presence)
      ranks = _presence.presence_rank(presence)
      if self.decode:
        ranks = cache.ranks_after(presence, self._seen(presence))
      positions = ranks if positions is None else positions
    # What is recorded is of the tokens as they came.
    arrangement = arrangements.Arrangement(0)
    if not (recording or self.decode):
      arrangement = arrangements.of_context(
        carriers.shape[-2],
        causal=self.is_causal,
        closed=self.closed and self.variant == "full",
      )
    count = carriers.shape[-2]
    carriers, mask, positions, segments = arrangement.arrange(
      carriers, mask, positions, segments
    )

    def apply_block(block: OBlock, h: jax.Array) -> jax.Array:
      return block(
        h,
        mask=mask,
        positions=positions,
        segments=segments,
        deterministic=deterministic,
        sow_weights=sow_weights,
      )

    if self.remat:
      apply_block = nn.remat(apply_block, prevent_cse=not self.scan_layers)
    h = placement.constrain(carriers)
    if self.scan_layers:
      h, _ = nn.scan(
        lambda block, h, _: (apply_block(block, h), None),
        variable_axes={name: 0 for name in _LAYERED},
        split_rngs={"params": True, "dropout": True},
        length=self.num_layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
      )(self.block("blocks"), h, None)
    else:
      for i in range(self.num_layers):
        h = apply_block(self.block(f"block_{i}"), h)
    if self.final_norm:
      h = self.make_norm("final_norm")(h)
    return arrangement.restore(h, count)

  def _on_present(
    self,
    carriers: jax.Array,
    mask: jax.Array | None,
    positions: jax.Array | None,
    segments: jax.Array | None,
    deterministic: bool,
  ) -> jax.Array:
    """The same map of the tokens that are not null, by `oflax.compacted`."""
    tokens = carriers.shape[:-1]
    if positions is not None:
      positions = _checks.per_token("positions", positions, tokens)
    if segments is not None:
      segments = _checks.per_token("segments", segments, tokens)
    if mask is not None:
      n = tokens[-1]
      mask = jnp.asarray(mask)
      _visibility.pairwise("mask", mask, (*tokens[:-1], self.num_heads, n, n))
    rngs = {}
    if self.dropout_rate and not deterministic:
      rngs["dropout"] = self.make_rng("dropout")
    model = self.clone(parent=None, name=None, compact=False)
    variables = self.variables

    def run(h: jax.Array, place: jax.Array, *aligned: Any) -> jax.Array:
      outputs: Any = model.apply(
        variables,
        h,
        mask=None if mask is None else _visibility.taken(mask, place),
        positions=aligned[0],
        segments=aligned[1],
        deterministic=deterministic,
        rngs=rngs,
      )
      return outputs

    place = jnp.broadcast_to(jnp.arange(tokens[-1]), tokens)
    return _compaction.compacted(run)(carriers, place, positions, segments)

  def _seen(self, presence: jax.Array) -> jax.Array:
    """How many tokens came in earlier calls, ``[...]``; counts these."""
    batch = presence.shape[:-1]
    initialised = self.has_variable(COLLECTION, "index")
    index = self.variable(COLLECTION, "index", jnp.zeros, batch, jnp.int32)
    seen: jax.Array = index.value
    if initialised:
      index.value = seen + jnp.sum(presence != 0, axis=-1, dtype=jnp.int32)
    return seen

  @nn.nowrap
  def block(self, name: str | None = None) -> OBlock:
    """A block of the stack: a part of it inside its call, else on its own."""
    return OBlock(
      num_heads=self.num_heads,
      mlp_dim=self.mlp_dim,
      name=name,
      **self.shared(*_SHARED),
    )


# The collections whose variables have one entry a layer under scan.
_LAYERED = ("params", "calibration", "intermediates", CALIBRATING, COLLECTION)
