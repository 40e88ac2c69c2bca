"""OLanguageModel: ids to the scores of the next id."""

from collections.abc import Callable
import math
from typing import Any

from flax import linen as nn
from flax.typing import Dtype
import jax
from jax import lax
import jax.numpy as jnp
import optax

from oflax import _statistics
from oflax.linen.embed import OEmbed
from oflax.linen.transformer import OTransformer


class OLanguageModel(nn.Module):
  """A causal rotary OTransformer between an embedding and its transpose.

  The id `null_id` is no token: padding, wherever it stands, changes nothing.
  With variant="host" it is the ordinary model, with a mask over padding.

  Attributes:
    vocabulary: Number of ids.
    features: Width of a token.
    num_layers: Blocks.
    num_heads: Heads of each.
    mlp_dim: Hidden features of each.
    num_kv_heads: Heads of keys and values; default: `num_heads`.
    norm: "layer" or "rms".
    gated: Whether the feed-forward networks are gated.
    activation: Of the feed-forward networks.
    local_window_size: How far back a token sees; default: to the first.
    null_id: The id that is no token.
    variant: "full", "attention" or "host".
    tau: Initial threshold of every presence.
    dropout_rate: Of attention weights and residual branches.
    implementation: As in `oflax.o_attention`.
    decode: Whether calls go on where the last one stopped, by the collection
      "cache" (see `oflax.sequences.init_cache`).
    compact: As in `OTransformer`.
    remat: As in `OTransformer`.
    scan_layers: As in `OTransformer`.
    dtype: Of the computation; default: that of the parameters.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> model = OLanguageModel(50, 8, num_layers=1, num_heads=2, mlp_dim=16)
    >>> ids = jnp.array([[3, 4, 5, 0], [0, 0, 6, 7]])  # padded right and left
    >>> logits, _ = model.init_with_output(jax.random.key(0), ids)
    >>> logits.shape
    (2, 4, 50)

  Reference: Radford et al. 2019; Su et al. 2021; Press and Wolf 2017.
  """

  vocabulary: int
  features: int
  num_layers: int
  num_heads: int
  mlp_dim: int
  num_kv_heads: int | None = None
  norm: str = "layer"
  gated: bool = False
  activation: Callable[[jax.Array], jax.Array] = nn.gelu
  local_window_size: int | tuple[int, int] | None = None
  null_id: int = 0
  variant: str = "full"
  tau: float = 1.0
  dropout_rate: float = 0.0
  implementation: str | None = None
  decode: bool = False
  compact: bool = False
  remat: bool = False
  scan_layers: bool = False
  dtype: Dtype | None = None

  def setup(self) -> None:
    self.embed = OEmbed(
      self.vocabulary, self.features, null_id=self.null_id, dtype=self.dtype
    )
    self.body = OTransformer(
      num_layers=self.num_layers,
      num_heads=self.num_heads,
      mlp_dim=self.mlp_dim,
      num_kv_heads=self.num_kv_heads,
      norm=self.norm,
      final_norm=True,
      gated=self.gated,
      activation=self.activation,
      is_causal=True,
      rotary=True,
      local_window_size=self.local_window_size,
      variant=self.variant,
      tau=self.tau,
      dropout_rate=self.dropout_rate,
      implementation=self.implementation,
      decode=self.decode,
      compact=self.compact,
      remat=self.remat,
      scan_layers=self.scan_layers,
      dtype=self.dtype,
    )

  def __call__(self, ids: jax.Array, **arguments: Any) -> jax.Array:
    """Maps ids ``[..., n]`` to scores of the next id, ``[..., n, vocabulary]``.

    Args:
      ids: Integers.
      **arguments: Positions, segments and deterministic, for `OTransformer`.

    Returns:
      Logits, in float32 or wider; 0 for null tokens.
    """
    return self.head(self.hidden(ids, **arguments))

  def loss(
    self,
    ids: jax.Array,
    *,
    positions: jax.Array | None = None,
    segments: jax.Array | None = None,
    deterministic: bool | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """The bits that the next id costs, a mean over tokens that have a next one.

    That is the next token of the row and the segment, whatever null ids lie
    between: padding, wherever it stands, changes nothing.

    Args:
      ids: ``[..., n]``.
      positions: As in `OTransformer`.
      segments: Likewise; tokens of one are next to each other.
      deterministic: Whether dropout is off, if the field does not say.

    Returns:
      Bits an id, and how many tokens the mean is over, which weighs it.
    """
    ids = jnp.asarray(ids)

    def before(x: jax.Array | None) -> jax.Array | None:
      return None if x is None else x[..., :-1]

    logits = self(
      ids[..., :-1],
      positions=before(positions),
      segments=before(segments),
      deterministic=deterministic,
    )
    target, judged = next_ids(ids, self.null_id, segments)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, target)
    weight = judged.astype(nats.dtype)
    bits = _statistics.present_mean(nats / math.log(2), weight)
    return bits, jnp.sum(weight)

  def hidden(self, ids: jax.Array, **arguments: Any) -> jax.Array:
    """Maps ids ``[..., n]`` to carriers after the last norm."""
    carriers = self.embed(ids)
    if self.variant != "host":
      return self.body(carriers, **arguments)
    if self.decode:
      raise ValueError('decode=True needs another variant than "host".')
    present = jnp.any(carriers != 0, axis=-1)[..., None, None, :]
    return self.body(carriers, mask=present, **arguments)

  def head(self, carriers: jax.Array) -> jax.Array:
    """Maps carriers ``[..., n, features]`` to scores of the next id."""
    scores = self.embed.attend(carriers)
    return scores.astype(jnp.promote_types(scores.dtype, jnp.float32))


def next_ids(
  ids: jax.Array, null_id: int = 0, segments: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """The id that follows each token, null ids left out.

  Args:
    ids: ``[..., n]``.
    null_id: The id that, as all negative ones, is no token.
    segments: ``[..., n]`` or ``[n]``; the first of one follows on nothing.

  Returns:
    The next ids of all but the last, ``[..., n − 1]``, 0 where there is none;
    and where there is one, boolean.

  Example:
    >>> following, there = next_ids(jnp.array([0, 5, 0, 0, 7, 8, 0]))
    >>> following.tolist()
    [0, 7, 0, 0, 8, 0]
    >>> there.tolist()
    [False, True, False, False, True, False]

  Reference: docs/concepts.md: null tokens do not exist.
  """
  count, last = ids.shape[-1], ids.ndim - 1
  token = (ids != null_id) & (ids >= 0)
  place = lax.broadcasted_iota(jnp.int32, ids.shape, last)
  # The place of the nearest token, from here on.
  nearest = lax.cummin(jnp.where(token, place, count), last, reverse=True)
  following = nearest[..., 1:]
  there = token[..., :-1] & (following < count)
  following = jnp.minimum(following, count - 1)
  if segments is not None:
    segments = jnp.broadcast_to(segments, ids.shape)
    after = jnp.take_along_axis(segments, following, axis=-1)
    there &= after == segments[..., :-1]
  target = jnp.take_along_axis(ids, following, axis=-1)
  return jnp.where(there, target, 0), there
