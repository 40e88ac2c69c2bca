"""A BERT sentence encoder whose padding is null tokens."""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from oflax import _presence
from oflax.linen import OEmbed
from oflax.linen import OInject
from oflax.linen import ONorm
from oflax.linen import OPool
from oflax.linen import OTransformer

PAD = 0


def exact_gelu(x: jax.Array) -> jax.Array:
  """GELU by the error function, as BERT has it: Flax's default is not exact."""
  return nn.gelu(x, approximate=False)


class BertEncoder(nn.Module):
  """Ids to a unit vector: BERT, the mean over its tokens, its direction.

  The token of id 0 is null. In the variant "full" that is all there is to know
  of padding: positions are presence ranks, every component is closed, and no
  mask is needed. "host" is the ordinary encoder with the usual mask over pads,
  in attention and in the mean. "attention" has OAttention among ordinary
  components and no mask: pads enter it as zeros, and do not stay so.

  Attributes:
    vocabulary: Number of ids.
    features: Width of a token, and of the embedding.
    num_layers: Blocks.
    num_heads: Heads of each.
    mlp_dim: Hidden features of each.
    max_tokens: Number of positions.
    num_types: Number of token types; all tokens are of type 0.
    epsilon: Of the norms.
    variant: "host", "attention" or "full".

  Example:
    >>> import jax, jax.numpy as jnp
    >>> encoder = BertEncoder(50, 8, num_layers=1, num_heads=2, mlp_dim=16)
    >>> ids = jnp.array([[3, 4, 0], [5, 0, 0]])
    >>> vectors, _ = encoder.init_with_output(jax.random.key(0), ids)
    >>> vectors.shape
    (2, 8)

  Reference: Devlin et al. 2019; Reimers and Gurevych 2019.
  """

  vocabulary: int
  features: int
  num_layers: int
  num_heads: int
  mlp_dim: int
  max_tokens: int = 512
  num_types: int = 2
  epsilon: float = 1e-12
  variant: str = "full"

  def setup(self) -> None:
    closed = self.variant == "full"
    self.words = OEmbed(self.vocabulary, self.features, null_id=PAD)
    self.positions = nn.Embed(self.max_tokens, self.features)
    self.types = nn.Embed(self.num_types, self.features)
    self.inject = OInject(closed=closed)
    self.norm = ONorm(epsilon=self.epsilon, closed=closed)
    self.body = OTransformer(
      num_layers=self.num_layers,
      num_heads=self.num_heads,
      mlp_dim=self.mlp_dim,
      variant=self.variant,
      norm_placement="post",
      epsilon=self.epsilon,
      activation=exact_gelu,
    )
    self.pool = OPool(closed=self.variant != "attention")

  def __call__(self, ids: jax.Array) -> jax.Array:
    """Maps ids, ``[..., n]``, to unit vectors, ``[..., features]``.

    A sentence without tokens has the vector 0.
    """
    return self.encode(self.look_up(ids))

  def look_up(self, ids: jax.Array) -> jax.Array:
    """The words as carriers, null for pads: ``[..., n, features]``."""
    return self.words(ids)

  def encode(self, words: jax.Array) -> jax.Array:
    """Maps words, ``[..., n, features]``, to unit vectors."""
    present = jnp.any(words != 0, axis=-1)
    h = self.norm(self.inject(words, self._signal(present)))
    mask = None
    if self.variant != "full":
      h = _presence.nullify(h, present)
    if self.variant == "host":
      mask = present[..., None, None, :]
    h = self.body(h, mask=mask)
    mean = self.pool(h, presence=present if self.variant == "host" else None)
    square = jnp.sum(jnp.square(mean), axis=-1, keepdims=True)
    return mean * jax.lax.rsqrt(jnp.where(square == 0, 1, square))

  def _signal(self, present: jax.Array) -> jax.Array:
    if self.variant == "full":
      place = _presence.presence_rank(present)
    else:
      place = jnp.broadcast_to(jnp.arange(present.shape[-1]), present.shape)
    return self.positions(place) + self.types(jnp.zeros_like(place))


def check_ids(encoder: BertEncoder, ids: Any) -> Any:
  """The ids as an array, if the encoder can embed them.

  Raises:
    ValueError: They are not integers ``[B, n]`` or, eagerly, one is out of
      range or a sentence has more tokens than there are positions.
  """
  traced = isinstance(ids, jax.core.Tracer)
  ids = ids if traced else np.asarray(ids)
  if not jnp.issubdtype(ids.dtype, jnp.integer):
    raise ValueError(f"ids must be integers, got {ids.dtype}.")
  if ids.ndim != 2:
    raise ValueError(f"ids must be [B, n], got shape {ids.shape}.")
  limit = encoder.max_tokens
  if encoder.variant != "full" and ids.shape[1] > limit:
    raise ValueError(
      f"ids must be at most {limit} long, pads included, in the variant"
      f" {encoder.variant!r}, got shape {ids.shape}."
    )
  if traced or not ids.size:
    return ids
  low, high = int(ids.min()), int(ids.max())
  if low < 0 or high >= encoder.vocabulary:
    raise ValueError(
      f"ids must be in [0, {encoder.vocabulary}), got"
      f" {low if low < 0 else high}."
    )
  longest = int(np.max(np.sum(ids != PAD, axis=1)))
  if longest > limit:
    raise ValueError(
      f"ids must have at most {limit} tokens a sentence, got {longest}."
    )
  return ids
