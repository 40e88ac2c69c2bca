"""A classifier of digits whose tokens are pixels; a blank pixel is null."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from oflax import _presence
from oflax.linen import OInject
from oflax.linen import OPool
from oflax.linen import OTransformer

SIDE = 8
PIXELS = SIDE * SIDE
CLASSES = 10


class DigitClassifier(nn.Module):
  """Pixels to logits, through carriers that are null where nothing is inked.

  A carrier is the intensity of its pixel times a learned direction, so that a
  blank pixel is a null token and stays one: positions enter by OInject, and
  OPool means over the present.

  With the variant "host" the body is an ordinary transformer, and ink is known
  to it by the mask over blank sources: its peer on the same parameters.

  Attributes:
    variant: "host", "attention" or "full".
    features: Width of the carriers.
    num_layers: Blocks of the body.
    num_heads: Heads of each.
    mlp_dim: Hidden features of each.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> model = DigitClassifier(features=8, num_heads=2, mlp_dim=8)
    >>> blank = jnp.zeros((2, 64))
    >>> logits, _ = model.init_with_output(jax.random.key(0), blank)
    >>> logits.shape
    (2, 10)

  Reference: docs/concepts.md.
  """

  variant: str = "full"
  features: int = 48
  num_layers: int = 3
  num_heads: int = 3
  mlp_dim: int = 96

  def setup(self) -> None:
    self.direction = self.param(
      "direction", nn.initializers.normal(1.0), (self.features,)
    )
    table = nn.initializers.normal(0.5)
    self.rows = self.param("rows", table, (SIDE, self.features))
    self.columns = self.param("columns", table, (SIDE, self.features))
    self.inject = OInject()
    self.body = OTransformer(
      num_layers=self.num_layers,
      num_heads=self.num_heads,
      mlp_dim=self.mlp_dim,
      variant=self.variant,
      final_norm=True,
    )
    self.pool = OPool()
    self.head = nn.Dense(CLASSES)

  def __call__(
    self, pixels: jax.Array, places: jax.Array | None = None
  ) -> jax.Array:
    """Maps intensities to logits.

    Args:
      pixels: Intensities in [0, 1], ``[..., n]``; 0 is blank.
      places: Index in the image of each pixel, ``[..., n]``; default: all 64 in
        order.

    Returns:
      Logits, ``[..., 10]``.
    """
    inked = pixels != 0
    mask = None
    if self.variant == "host":
      mask = jnp.broadcast_to(
        inked[..., None, None, :],
        (*inked.shape[:-1], 1, inked.shape[-1], inked.shape[-1]),
      )
    h = self.body(self.carriers(pixels, places), mask=mask)
    if self.variant != "full":
      h = _presence.nullify(h, inked)
    return self.head(self.pool(h))

  def carriers(
    self, pixels: jax.Array, places: jax.Array | None = None
  ) -> jax.Array:
    """What enters the body: ``[..., n]`` to ``[..., n, features]``."""
    if places is None:
      places = jnp.broadcast_to(jnp.arange(PIXELS), pixels.shape)
    ink = jnp.einsum("...n,d->...nd", pixels, self.direction)
    row, column = jnp.divmod(places, SIDE)
    return self.inject(ink, self.rows[row] + self.columns[column])
