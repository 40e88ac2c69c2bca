"""The columns of the prior's tables: what is behind them, what is seen."""

import jax
from jax import lax
from jax import random
import jax.numpy as jnp
from jax.scipy import special

from oflax.studies.prior_functions import activation
from oflax.studies.prior_functions import standardised

FACTORS = 8
NODES = 24
LAYERS = 3
CLUSTERS = 4
LEVELS = 10
WAVES = 12
# Share of tables whose rows are moments of one time.
SERIES = 0.12
# Of columns that say together which one of a few a row is.
ONE_HOT = 4


def latent(
  key: jax.Array, rows: int, columns: int
) -> tuple[jax.Array, jax.Array]:
  """Correlated columns, and one more that may be the target.

  They mix a few factors; or, in half of the tables, they are noisy nodes of a
  random network, from any of its layers, and so is the target: what is seen may
  be a cause of it, an effect, or a sibling.

  Args:
    key: Random key.
    rows: R.
    columns: C.

  Returns:
    ``[R, C]`` and ``[R]``, standardised.
  """
  keys = random.split(key, 9)
  roots = _roots(keys[0], rows)
  mixing = random.normal(keys[1], (FACTORS, columns + 1))
  factors = roots @ mixing
  nodes = _network(keys[2], roots)
  picked = nodes[:, random.randint(keys[3], (columns + 1,), 0, nodes.shape[1])]
  structural, copied = random.uniform(keys[4], (2,))
  x = standardised(jnp.where(structural < 0.5, picked, factors))
  # What each column has of its own: from nothing to nearly all.
  low, high = jnp.sort(random.uniform(keys[7], (2,)))
  own = low + (high - low) * random.uniform(keys[5], (1, columns + 1))
  own = jnp.where(structural < 0.5, 0.6 * own**2, own)
  # The target has noise to come, so little here.
  own = own.at[:, -1].multiply(0.2)
  alone = random.normal(keys[6], x.shape)
  x = jnp.sqrt(1 - own) * x + jnp.sqrt(own) * alone
  x = standardised(x)
  return _copied(keys[8], x[:, :-1], copied < 0.15), x[:, -1]


def observed(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """What of the columns the targets depend on, and what a table shows of them.

  Args:
    key: Random key.
    x: From `latent`, ``[R, C]``.

  Returns:
    Two tables ``[R, C]``: the standardised causes, and the cells.
  """
  keys = random.split(key, 8)
  columns = (1, x.shape[1])
  kind, mixed = random.uniform(keys[0], columns), random.uniform(keys[1])
  levelled = kind < jnp.where(mixed < 0.3, 0.0, mixed * 0.8)
  code, count = _codes(keys[2], x)
  effect = random.normal(keys[3], (LEVELS, x.shape[1]))
  effect = jnp.take_along_axis(effect, code, axis=0)
  nominal = random.bernoulli(keys[4], 0.35, columns) & (count > 2)
  by_level = standardised(jnp.where(nominal, effect, code))
  cause = jnp.where(levelled, by_level, x)
  seen = jnp.where(levelled, code.astype(x.dtype), _warped(keys[5], x))

  cause, seen = _one_hot(keys[6], cause, seen, x[:, 0])
  order = random.permutation(keys[7], x.shape[1])
  return cause[:, order], seen[:, order]


def _roots(key: jax.Array, rows: int) -> jax.Array:
  """Factors ``[R, F]``: of one of several shapes, clustered, or of one time."""
  keys = random.split(key, 8)
  shape = (rows, FACTORS)
  normal = random.normal(keys[0], shape)
  kind, clustered = random.uniform(keys[1], (2,))
  uniform = 3.5 * special.ndtr(normal) - 1.75
  tailed = normal * jnp.exp(0.5 * random.normal(keys[2], shape))
  roots = jnp.select([kind < 0.25, kind < 0.4], [uniform, tailed], normal)
  share = jnp.cumsum(random.dirichlet(keys[3], jnp.full(CLUSTERS, 1.0)))
  cluster = jnp.searchsorted(share, random.uniform(keys[4], (rows,)))
  centers = 1.8 * random.normal(keys[5], (CLUSTERS + 1, FACTORS))
  roots = roots + jnp.where(clustered < 0.35, centers[cluster], 0)
  series, over_time = _series(keys[7], rows)
  roots = jnp.where(over_time, series, roots)
  # The later factors count less, so that few or many matter.
  decay = random.uniform(keys[6], minval=0.4, maxval=1.0)
  return roots * decay ** jnp.arange(FACTORS)[None]


def _series(key: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
  """Factors that follow one time, the first of them; and whether they shall."""
  keys = random.split(key, 5)
  time = random.uniform(keys[0], (rows, 1), minval=-1.7, maxval=1.7)
  frequency = jnp.exp(random.uniform(keys[1], (WAVES, 1), minval=-1, maxval=2))
  phase = random.uniform(keys[2], (1, WAVES), maxval=2 * jnp.pi)
  weights = random.normal(keys[3], (WAVES, FACTORS)) / frequency
  waves = jnp.cos(time @ frequency.T + phase) @ weights
  factors = standardised(waves).at[:, 0].set(time[:, 0])
  return factors, random.bernoulli(keys[4], SERIES)


def _network(key: jax.Array, roots: jax.Array) -> jax.Array:
  """The nodes of all layers of a random sparse network, ``[R, layers · n]``."""
  first, *keys = random.split(key, 1 + LAYERS)

  def layer(h: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    weight_key, sparse_key, bias_key, kind_key, noise_key = random.split(key, 5)
    weights = random.normal(weight_key, (NODES, NODES))
    weights *= random.bernoulli(sparse_key, 0.25, weights.shape)
    bias = 0.7 * random.normal(bias_key, (1, NODES))
    kind = random.randint(kind_key, (1, NODES), 0, 6)
    h = activation(1.2 * standardised(h @ weights) + bias, kind)
    h = standardised(h) + 0.15 * random.normal(noise_key, h.shape)
    return h, h

  h = roots @ random.normal(first, (FACTORS, NODES))
  _, layers = lax.scan(layer, h, jnp.stack(keys))
  return jnp.moveaxis(layers, 0, 1).reshape(len(roots), -1)


def _copied(key: jax.Array, x: jax.Array, copied: jax.Array) -> jax.Array:
  """Some columns become another one, nearly."""
  which, source, noise = random.split(key, 3)
  columns = x.shape[1]
  index = random.randint(source, (columns,), 0, columns)
  near = x[:, index] + 0.15 * random.normal(noise, x.shape)
  hit = random.bernoulli(which, 0.3, (1, columns)) & copied
  return jnp.where(hit, standardised(near), x)


def _codes(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Levels 0, 1, … of each column, and how many it may have."""
  count_key, border_key = random.split(key)
  columns = (1, x.shape[1])
  spread = random.uniform(count_key, columns) ** 2
  count = 2 + jnp.floor(spread * (LEVELS - 1)).astype(int)
  borders = random.normal(border_key, (LEVELS - 1, *columns))
  used = jnp.arange(LEVELS - 1)[:, None, None] < count[None] - 1
  return jnp.sum((x[None] > borders) & used, axis=0), count


def _warped(key: jax.Array, x: jax.Array) -> jax.Array:
  """Numeric columns as they are, or skewed, of heavy tails, even or rounded."""
  keys = random.split(key, 4)
  columns = (1, x.shape[1])
  kind = random.uniform(keys[0], columns)
  strength = 0.3 + random.uniform(keys[1], columns)
  sign = jnp.where(random.bernoulli(keys[2], 0.25, columns), -1, 1)
  warped = jnp.select(
    [kind < 0.2, kind < 0.28, kind < 0.4],
    [
      jnp.exp(strength * jnp.clip(sign * x, -4, 4)),
      jnp.sign(x) * jnp.abs(x) ** (1 + strength),
      special.ndtr(1.5 * x),
    ],
    x,
  )
  rounding, grid = random.uniform(keys[3], (2, *columns))
  steps = 1.5 * jnp.exp(jnp.log(8.0) * grid)
  rounded = jnp.round(standardised(warped) * steps) / steps
  return jnp.where(rounding < 0.25, rounded, warped)


def _one_hot(
  key: jax.Array, cause: jax.Array, seen: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """In some tables the first few columns say which level another one has."""
  width = min(ONE_HOT, cause.shape[1] - 2)
  if width < 2:
    return cause, seen
  use_key, code_key = random.split(key)
  code, _ = _codes(code_key, x[:, None])
  hot = (code == jnp.arange(width)[None]).astype(x.dtype)
  use = random.bernoulli(use_key, 0.25)
  both = (standardised(hot), hot)
  return tuple(  # type: ignore[return-value]
    table.at[:, :width].set(jnp.where(use, new, table[:, :width]))
    for table, new in zip((cause, seen), both, strict=True)
  )
