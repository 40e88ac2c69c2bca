"""One transformer block in which null tokens stay null."""

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
from oflax import _components
from oflax.linen import placement
from oflax.linen.attention import OAttention
from oflax.linen.components import OFFN
from oflax.linen.components import ONorm
from oflax.linen.components import branch_dropout
from oflax.linen.presence import OPresence
from oflax.linen.presence import WithPresence

VARIANTS = ("host", "attention", "full")
PLACEMENTS = ("pre", "post")


class Fields(WithPresence, kw_only=True):
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
SHARED = tuple(
  field.name
  for field in dataclasses.fields(Fields)
  if field.name not in ("deterministic", "parent", "name")
)


class OBlock(Fields):
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
