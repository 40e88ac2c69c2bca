"""The two kinds of block: tokens among themselves, and from one set to another.

Both take the variant: "full" closes every component, "attention" the attention
alone, and "host" none, on the same variables.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from oflax.linen import OFFN
from oflax.linen import ONorm
from oflax.linen import OPresence
from oflax.retrofit.tabpfn_v3.attention import ScaledAttention
from oflax.retrofit.tabpfn_v3.config import V3Config
from oflax.retrofit.tabpfn_v3.table import EPSILON

VARIANTS = ("host", "attention", "full")


class Part(nn.Module):
  """A part of the network: what all parts know, and the components they use.

  Attributes:
    config: The shape of the network.
    variant: "host", "attention" or "full".
    tau: Initial threshold of every presence.
    implementation: Of attention, as in `oflax.o_attention`.
  """

  config: V3Config
  variant: str = "host"
  tau: float = 1.0
  implementation: str | None = None

  @property
  def closed(self) -> bool:
    """Whether norms, networks and injections are closed too."""
    return self.variant == "full"

  def part(self, kind: Callable[..., Any], name: str, **fields: Any) -> Any:
    """A smaller part of the same network."""
    shared = (self.config, self.variant, self.tau, self.implementation)
    return kind(*shared, name=name, **fields)

  def presence(self, name: str, tokens: jax.Array) -> jax.Array:
    """The presence of tokens; each site has a threshold of its own."""
    return OPresence(self.tau, name=name)(tokens)

  def norm(
    self, name: str, tokens: jax.Array, presence: jax.Array
  ) -> jax.Array:
    """The root-mean-square norm of tokens."""
    return ONorm(
      kind="rms",
      epsilon=EPSILON,
      use_bias=False,
      use_scale=self.config.layernorm_elementwise_affine,
      closed=self.closed,
      name=name,
    )(tokens, presence=presence)


class _Block(Part, kw_only=True):
  """What both blocks have.

  Attributes:
    num_heads: Heads of the attention.
    kv_heads: Of keys and values, for train and test rows; default: `num_heads`.
    scaled: Whether queries grow with the number of sources.
    num_special: The first tokens, of another kind than the others and perhaps
      far shorter: their presence has a threshold of its own.
  """

  num_heads: int
  kv_heads: tuple[int, int] | None = None
  scaled: bool = False
  num_special: int = 0

  def attend(
    self,
    receivers: jax.Array,
    sources: jax.Array,
    receiver_presence: jax.Array,
    source_presence: jax.Array,
    angles: tuple[jax.Array, jax.Array] | None = None,
  ) -> jax.Array:
    """The update of the receivers, gated by their presence."""
    presences = (receiver_presence, source_presence)
    if self.variant == "host":
      presences = (jnp.ones_like(presences[0]), jnp.ones_like(presences[1]))
    scaling = self.config.softmax_scaling_mlp_hidden_dim
    return ScaledAttention(
      self.num_heads,
      kv_heads=self.kv_heads,
      scaling_features=scaling if self.scaled else None,
      implementation=self.implementation,
      name="attention",
    )(receivers, sources, *presences, angles=angles)

  def presences(self, name: str, tokens: jax.Array) -> jax.Array:
    """The presence of tokens of both kinds."""
    special, others = jnp.split(tokens, [self.num_special], axis=-2)
    sites = [(name, others)] if others.shape[-2] else []
    if self.num_special:
      sites.insert(0, (f"special_{name}", special))
    parts = [self.presence(*site) for site in sites]
    return jnp.concatenate(parts, axis=-1)

  def feed(self, tokens: jax.Array) -> jax.Array:
    """H + OFFN(ONorm(H)), with the presence of H."""
    presence = self.presences("ffn_presence", tokens)
    normed = self.norm("ffn_norm", tokens, presence)
    return tokens + OFFN(
      self.config.ff_factor * tokens.shape[-1],
      activation=functools.partial(nn.gelu, approximate=False),
      use_bias=False,
      closed=self.closed,
      name="ffn",
    )(normed, presence=presence)


class SelfBlock(_Block):
  """Tokens that look at the first of themselves."""

  @nn.compact
  def __call__(
    self,
    tokens: jax.Array,
    *,
    num_receivers: int | None = None,
    num_sources: int | None = None,
    angles: jax.Array | None = None,
  ) -> jax.Array:
    """Maps ``[..., n, d]`` to ``[..., num_receivers, d]``.

    Args:
      tokens: Carriers.
      num_receivers: The first ones look, and only they go on; default: all.
      num_sources: The first ones are looked at; default: all.
      angles: Of the rotary positions, ``[..., n, 1, H/2]``.
    """
    receivers, sources = slice(num_receivers), slice(num_sources)
    presence = self.presences("attention_presence", tokens)
    normed = self.norm("attention_norm", tokens, presence)
    turned = None
    if angles is not None:
      turned = (angles[..., receivers, :, :], angles[..., sources, :, :])
    update = self.attend(
      normed[..., receivers, :],
      normed[..., sources, :],
      presence[..., receivers],
      presence[..., sources],
      turned,
    )
    return self.feed(tokens[..., receivers, :] + update)


class CrossBlock(_Block):
  """Receivers that look at other tokens; each side has its own norm."""

  @nn.compact
  def __call__(self, receivers: jax.Array, sources: jax.Array) -> jax.Array:
    """Maps ``[..., T, d]`` or ``[T, d]``, and ``[..., S, d]``, to the first."""
    p_receiver = self.presence("receiver_presence", receivers)
    p_source = self.presence("source_presence", sources)
    update = self.attend(
      self.norm("receiver_norm", receivers, p_receiver),
      self.norm("source_norm", sources, p_source),
      p_receiver,
      p_source,
    )
    return self.feed(jnp.broadcast_to(receivers, update.shape) + update)
