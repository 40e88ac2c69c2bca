"""The prior: random tables to learn regression from, drawn on the device."""

import functools

import jax
from jax import random
import jax.numpy as jnp
from jax.scipy import special

from oflax.studies import prior_columns
from oflax.studies import prior_functions
from oflax.studies.prior_functions import standardised

# Standardised targets of test rows are clipped to ±LIMIT.
LIMIT = 10.0
MISSING_COLUMNS = 0.25
MISSING_CELLS = 0.3


def draw(
  key: jax.Array, *, tables: int, rows: int, columns: int, train: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Draws tables, each from a random process of its own.

  The columns of a table are correlated, and numeric, ordinal, categorical or
  binary. The targets are a random function of what lies behind them, with noise
  that explains between next to nothing and nearly all of their variance.

  Args:
    key: Random key.
    tables: B, how many.
    rows: R of each.
    columns: C of each.
    train: N, how many of the rows have a known target; 2 ≤ N < R.

  Returns:
    The tables, ``[B, R, C]``, with NaN for missing cells; the targets of the
    train rows, ``[B, N]``, of mean 0 and variance 1; and those of the others in
    the same units, ``[B, R − N]``.

  Raises:
    ValueError: `train` does not fit `rows`.

  Example:
    >>> import functools, jax
    >>> small = functools.partial(draw, tables=2, rows=12, columns=3, train=8)
    >>> shapes = jax.eval_shape(small, jax.random.key(0))  # or small(key)
    >>> [a.shape for a in shapes]
    [(2, 12, 3), (2, 8), (2, 4)]

  Reference: Müller et al. 2022, arXiv 2112.10510; Hollmann et al. 2025.
  """
  if not 2 <= train < rows:
    raise ValueError(
      f"train must be at least 2 and below rows={rows}, got {train}."
    )
  x, y = _tables(key, tables, rows, columns)
  return x, *_standardised(y, train)


@functools.partial(jax.jit, static_argnames=("tables", "rows", "columns"))
def _tables(
  key: jax.Array, tables: int, rows: int, columns: int
) -> tuple[jax.Array, jax.Array]:
  """Apart from the number of train rows: it takes long to compile."""
  table = functools.partial(_table, rows=rows, columns=columns)
  return jax.vmap(table)(random.split(key, tables))


@functools.partial(jax.jit, static_argnames="train")
def _standardised(y: jax.Array, train: int) -> tuple[jax.Array, jax.Array]:
  """Splits the targets and standardises them by those of the train rows."""
  known = y[:, :train]
  mean = jnp.mean(known, axis=-1, keepdims=True)
  spread = jnp.std(known, axis=-1, keepdims=True)
  # Where all known targets are equal, as a rare level of a few can do.
  y = (y - mean) / jnp.where(spread > 1e-3, spread, 1)
  return y[:, :train], jnp.clip(y[:, train:], -LIMIT, LIMIT)


def _table(
  key: jax.Array, *, rows: int, columns: int
) -> tuple[jax.Array, jax.Array]:
  """One table ``[R, C]`` and its targets ``[R]``, not yet standardised."""
  keys = random.split(key, 6)
  latent, node = prior_columns.latent(keys[0], rows, columns)
  cause, seen = prior_columns.observed(keys[1], latent)
  signal = prior_functions.signal(keys[2], cause, node)
  y = _warped(keys[3], _noisy(keys[4], signal, cause))
  return _with_missing(keys[5], seen), y


def _noisy(key: jax.Array, signal: jax.Array, x: jax.Array) -> jax.Array:
  """Adds noise: normal or of heavy tails, sometimes larger where y or x is."""
  keys = random.split(key, 5)
  share, uneven, heavy, lean = random.uniform(keys[0], (4,))
  share = 0.001 + 0.8 * share**2.5
  normal, other = random.normal(keys[1], (2, *signal.shape))
  # A normal over the root of a chi-squared of 3: Student's t.
  chi = jnp.mean(random.normal(keys[2], (3, *signal.shape)) ** 2, axis=0)
  noise = jnp.where(heavy < 0.25, other / jnp.sqrt(chi + 0.05), normal)
  direction = x @ random.normal(keys[3], x.shape[1:])
  drift = jnp.where(lean < 0.5, signal, standardised(direction))
  strength = random.uniform(keys[4], (), minval=0.2, maxval=0.9)
  scale = jnp.exp(strength * jnp.clip(drift, -2.5, 2.5))
  noise = standardised(noise * jnp.where(uneven < 0.3, scale, 1))
  return standardised(jnp.sqrt(1 - share) * signal + jnp.sqrt(share) * noise)


def _warped(key: jax.Array, y: jax.Array) -> jax.Array:
  """Targets as they are, or skewed, of heavy tails, bounded or of levels."""
  keys = random.split(key, 3)
  kind = random.uniform(keys[0])
  strength, level, sign, cut = random.uniform(keys[1], (4,))
  power = 0.3 + 0.9 * strength
  grown = jnp.exp(power * jnp.clip(y, -3.5, 3.5))
  tailed = jnp.sign(y) * jnp.abs(y) ** (1 + power / 2)
  uniform = special.ndtr((0.6 + power) * y)
  steps = jnp.exp(jnp.log(12.0) * level)
  bent = jnp.select(
    [kind < 0.25, kind < 0.32, kind < 0.39, kind < 0.44],
    [grown, tailed, uniform, jnp.maximum(y, 1.5 * cut - 1.5)],
    y,
  )
  bent = standardised(bent) * jnp.where(sign < 0.3, -1, 1)
  rounded = jnp.round(bent * steps + cut) / steps
  return jnp.where(random.uniform(keys[2]) < 0.2, rounded, bent)


def _with_missing(key: jax.Array, x: jax.Array) -> jax.Array:
  """Some cells of some columns are NaN, whatever their values."""
  column_key, share_key, cell_key = random.split(key, 3)
  columns = (1, x.shape[1])
  hit = random.bernoulli(column_key, MISSING_COLUMNS, columns)
  share = MISSING_CELLS * random.uniform(share_key, columns) * hit
  return jnp.where(random.uniform(cell_key, x.shape) < share, jnp.nan, x)
