"""Distributions made of bars, with a half-normal tail at either end."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.scipy import special
import numpy as np

from oflax import _checks

# A standard half-normal has half its mass below this.
HALF = 0.6744897501960817
# Borders of the prior's targets: index of 5000, and value.
_KNOTS = {
  0: -128.0,
  5: -16.9,
  20: -13.0,
  100: -9.9,
  200: -8.47,
  500: -6.48,
  1000: -4.40,
  2500: 0.0,
}


def default_borders(num_buckets: int) -> np.ndarray:
  """The borders of a model that brings none, for standardised targets.

  Args:
    num_buckets: How many buckets they bound; at least 2.

  Returns:
    float32 ``[num_buckets + 1]``, increasing, symmetric about 0.

  Raises:
    ValueError: `num_buckets` is below 2.

  Example:
    >>> default_borders(2).tolist()
    [-128.0, 0.0, 128.0]

  Reference: Prior Labs, TabPFN-3, arXiv 2605.13986.
  """
  _checks.check_at_least("num_buckets", num_buckets, 2)
  index = np.array(list(_KNOTS)) * num_buckets / 5000
  value = np.array(list(_KNOTS.values()))
  index = np.concatenate([index, num_buckets - index[-2::-1]])
  value = np.concatenate([value, -value[-2::-1]])
  borders = np.interp(np.arange(num_buckets + 1), index, value)
  return borders.astype(np.float32)


@functools.partial(
  jax.tree_util.register_dataclass, data_fields=("borders",), meta_fields=()
)
@dataclasses.dataclass(frozen=True)
class BarDistribution:
  """A distribution whose density is constant in each of its buckets.

  The first and last bucket are half-normal instead, unbounded, with half their
  mass within the borders.

  Attributes:
    borders: Of the buckets, increasing, ``[buckets + 1]``.

  Raises:
    ValueError: The borders are too few, not finite, or do not increase.

  Example:
    >>> import jax.numpy as jnp
    >>> bars = BarDistribution(jnp.array([-1.0, 0.0, 1.0, 2.0]))
    >>> logits = jnp.array([-30.0, 0.0, -30.0])  # all mass in [0, 1]
    >>> bars.mean(logits), bars.quantiles(logits, jnp.array([0.25]))
    (Array(0.5, dtype=float32), Array([0.25], dtype=float32))

  Reference: Müller et al. 2022, arXiv 2112.10510; Hollmann et al. 2025.
  """

  borders: jax.Array

  def __post_init__(self) -> None:
    if not isinstance(self.borders, jax.Array | np.ndarray):
      return  # Some transformations rebuild it around what is no array.
    if self.borders.ndim != 1 or self.borders.size < 3:
      raise ValueError(
        "borders must be [buckets + 1] of at least 2 buckets, got shape"
        f" {self.borders.shape}."
      )
    if isinstance(self.borders, jax.core.Tracer):
      return
    borders = np.asarray(self.borders)
    if not (np.all(np.isfinite(borders)) and np.all(np.diff(borders) > 0)):
      raise ValueError(f"borders must be finite and increase, got {borders}.")
    object.__setattr__(self, "borders", jnp.asarray(borders))

  @property
  def widths(self) -> jax.Array:
    """Of the buckets, ``[buckets]``."""
    return jnp.diff(self.borders)

  def mean(self, logits: jax.Array) -> jax.Array:
    """The expectation: ``[..., buckets]`` to ``[...]``."""
    probability = jax.nn.softmax(self._checked(logits), axis=-1)
    middle = (self.borders[1:] + self.borders[:-1]) / 2
    reach = self.widths / HALF * math.sqrt(2 / math.pi)
    middle = middle.at[0].set(self.borders[1] - reach[0])
    middle = middle.at[-1].set(self.borders[-2] + reach[-1])
    return jnp.einsum("...b,b->...", probability, middle)

  def log_density(self, logits: jax.Array, y: jax.Array) -> jax.Array:
    """The log density at y: ``[..., buckets]`` and ``[...]`` to ``[...]``."""
    logits, y = self._checked(logits), jnp.asarray(y)
    if y.shape != logits.shape[:-1]:
      raise ValueError(
        f"y must have shape {logits.shape[:-1]}, that of the logits without"
        f" buckets, got {y.shape}."
      )
    last = self.borders.size - 2
    bucket = jnp.searchsorted(self.borders, y, side="right") - 1
    bucket = jnp.clip(bucket, 0, last)
    log_mass = jnp.take_along_axis(
      jax.nn.log_softmax(logits, axis=-1), bucket[..., None], axis=-1
    )[..., 0]
    width = self.widths[bucket]
    start = jnp.where(bucket == 0, self.borders[1], self.borders[-2])
    # The deviation from where the tail starts, in its scale width / HALF.
    outer = (bucket == 0) | (bucket == last)
    deviation = jnp.where(outer, (y - start) * HALF / width, 0)
    log_tail = math.log(HALF * math.sqrt(2 / math.pi)) - deviation**2 / 2
    return log_mass - jnp.log(width) + jnp.where(outer, log_tail, 0)

  def quantiles(self, logits: jax.Array, levels: jax.Array) -> jax.Array:
    """Where the distribution function reaches each level.

    Args:
      logits: ``[..., buckets]``.
      levels: In (0, 1), ``[q]``.

    Returns:
      ``[..., q]``.
    """
    logits, levels = self._checked(logits), jnp.asarray(levels)
    if levels.ndim != 1:
      raise ValueError(f"levels must be [q], got shape {levels.shape}.")
    probability = jax.nn.softmax(logits, axis=-1)
    below = jnp.cumsum(probability, axis=-1)
    batch = logits.shape[:-1]
    below = below.reshape(-1, below.shape[-1])
    bucket = jax.vmap(lambda b: jnp.searchsorted(b, levels, side="left"))(below)
    bucket = jnp.minimum(bucket, probability.shape[-1] - 1)
    mass = jnp.take_along_axis(
      probability.reshape(below.shape), bucket, axis=-1
    )
    reached = jnp.take_along_axis(below, bucket, axis=-1) - mass
    over = jnp.broadcast_to(levels, bucket.shape) - reached
    share = over / jnp.where(mass > 0, mass, 1)
    points = self._inside(bucket, jnp.clip(share, 0, 1))
    return points.reshape(*batch, levels.size)

  def _inside(self, bucket: jax.Array, share: jax.Array) -> jax.Array:
    """The point of a bucket that has a share of its mass below."""
    width, last = self.widths[bucket], self.borders.size - 2
    # Φ⁻¹ in the tails: a half-normal's quantile at u is that of Φ at (1 + u)/2.
    left = self.borders[1] + width / HALF * special.ndtri(share / 2)
    right = self.borders[-2] - width / HALF * special.ndtri((1 - share) / 2)
    inner = self.borders[bucket] + share * width
    return jnp.where(bucket == 0, left, jnp.where(bucket == last, right, inner))

  def _checked(self, logits: jax.Array) -> jax.Array:
    logits = jnp.asarray(logits)
    buckets = self.borders.size - 1
    if logits.ndim == 0 or logits.shape[-1] != buckets:
      raise ValueError(
        f"logits must be [..., {buckets}], got shape {logits.shape}."
      )
    return logits
