"""The functions of the prior: from columns to what a target would be exactly.

Every family maps standardised columns ``[R, C]`` to ``[R]``, given how relevant
each column is, ``[C]``.
"""

import jax
from jax import random
import jax.numpy as jnp

PAIRS = 4
HIDDEN = 24
WAVES = 64
TREES = 10
DEPTH = 4
# Logits of how often each family leads: as in FAMILIES, then the node.
BIAS = (1.5, 1.2, 0.2, 0.6, 0.7, 1.2, 1.2)


def standardised(x: jax.Array) -> jax.Array:
  """Mean 0 and variance 1 over rows, axis 0; what is constant becomes 0."""
  x = x - jnp.mean(x, axis=0, keepdims=True)
  deviation = jnp.sqrt(jnp.mean(x**2, axis=0, keepdims=True))
  # Division by a deviation of 0, or one made of rounding errors.
  return jnp.where(deviation > 1e-4, x / jnp.maximum(deviation, 1e-4), 0)


def activation(h: jax.Array, kind: jax.Array) -> jax.Array:
  """One of six functions; `kind`, 0 to 5, broadcasts."""
  choices = (h, jnp.tanh(h), jax.nn.relu(h), jnp.abs(h), jnp.sin(2 * h))
  conditions = [kind == i for i in range(len(choices))]
  return jnp.select(conditions, list(choices), jnp.sign(h))


def signal(key: jax.Array, x: jax.Array, node: jax.Array) -> jax.Array:
  """A random mix of all families, most of it usually from one or two.

  Args:
    key: Random key.
    x: Standardised columns, ``[R, C]``.
    node: One more family: what is already known, ``[R]``.

  Returns:
    ``[R]``, standardised.
  """
  relevance_key, mix_key, *keys = random.split(key, 2 + len(FAMILIES))
  relevance = _relevance(relevance_key, x.shape[1])
  parts = [
    family(key, x, relevance)
    for family, key in zip(FAMILIES, keys, strict=True)
  ]
  logits = jnp.asarray(BIAS) + 1.7 * random.normal(mix_key, (len(BIAS),))
  return standardised(
    standardised(jnp.stack([*parts, node], axis=-1)) @ jax.nn.softmax(logits)
  )


def _relevance(key: jax.Array, columns: int) -> jax.Array:
  """From 0 to about 1; a random share of the columns counts at all."""
  share_key, use_key, size_key, spread_key = random.split(key, 4)
  share = random.uniform(share_key, minval=0.25, maxval=1.2)
  order = random.uniform(use_key, (columns,))
  used = (order < share) | (order == jnp.min(order))
  spread = random.uniform(spread_key, minval=0.0, maxval=1.2)
  size = jnp.exp(spread * random.normal(size_key, (columns,)))
  size = jnp.where(used, size, 0)
  return size / jnp.max(size)


def _linear(key: jax.Array, x: jax.Array, relevance: jax.Array) -> jax.Array:
  return x @ (relevance * random.normal(key, relevance.shape))


def _additive(key: jax.Array, x: jax.Array, relevance: jax.Array) -> jax.Array:
  """A sum of functions of one column each: steps, bends, waves."""
  weight_key, slope_key, shift_key, kind_key = random.split(key, 4)
  columns = (1, x.shape[1])
  slope = jnp.exp(0.8 * random.normal(slope_key, columns))
  shift = random.normal(shift_key, columns)
  kind = random.randint(kind_key, columns, 0, 6)
  bent = standardised(activation(slope * (x - shift), kind))
  return bent @ (relevance * random.normal(weight_key, relevance.shape))


def _products(key: jax.Array, x: jax.Array, relevance: jax.Array) -> jax.Array:
  """A few products of two columns, or of one with itself."""
  pair_key, weight_key = random.split(key)
  pairs = random.categorical(pair_key, jnp.log(relevance), shape=(2, PAIRS))
  x = jnp.clip(x, -3, 3)
  products = x[:, pairs[0]] * x[:, pairs[1]]
  return products @ random.normal(weight_key, (PAIRS,))


def _layers(key: jax.Array, x: jax.Array, relevance: jax.Array) -> jax.Array:
  """A network of two hidden layers, with functions of a kind or mixed."""
  keys = random.split(key, 8)
  kinds = random.randint(keys[0], (2, 1, HIDDEN), 0, 6)
  alike = random.bernoulli(keys[1], 0.7)
  kinds = jnp.where(alike, kinds[..., :1], kinds)
  scale = random.uniform(keys[2], minval=0.4, maxval=1.2)
  h = x * relevance[None] @ random.normal(keys[3], (x.shape[1], HIDDEN))
  for i in range(2):
    bias = random.normal(keys[4 + i], (1, HIDDEN))
    h = activation(scale * standardised(h) + bias, kinds[i])
    if i == 0:
      h = h @ random.normal(keys[6], (HIDDEN, HIDDEN))
  return h @ random.normal(keys[7], (HIDDEN,))


def _process(key: jax.Array, x: jax.Array, relevance: jax.Array) -> jax.Array:
  """A Gaussian process by random Fourier features, smooth or rough."""
  keys = random.split(key, 6)
  frequency = random.normal(keys[0], (x.shape[1], WAVES))
  # Over the root of a chi-squared: those of a Matérn kernel.
  chi = jnp.mean(random.normal(keys[1], (3, WAVES)) ** 2, axis=0)
  rough = random.bernoulli(keys[2], 0.4)
  frequency /= jnp.where(rough, jnp.sqrt(chi) + 0.1, 1)[None]
  scale = jnp.exp(random.uniform(keys[5], minval=-2.0, maxval=0.2))
  scale /= jnp.sqrt(jnp.sum(relevance**2))
  phase = random.uniform(keys[3], (1, WAVES), maxval=2 * jnp.pi)
  waves = jnp.cos(x * relevance[None] @ (scale * frequency) + phase)
  return waves @ random.normal(keys[4], (WAVES,))


def _trees(key: jax.Array, x: jax.Array, relevance: jax.Array) -> jax.Array:
  """Oblivious trees: one question a level, asked of a value that occurs."""
  keys = random.split(key, 5)
  asked = random.categorical(keys[0], jnp.log(relevance), shape=(TREES, DEPTH))
  row = random.randint(keys[1], (TREES, DEPTH), 0, x.shape[0])
  bits = x[:, asked] > x[row, asked][None]
  # Of the deeper questions only some are asked.
  depth = random.randint(keys[2], (TREES, 1), 1, DEPTH + 1)
  bits &= (jnp.arange(DEPTH)[None] < depth)[None]
  leaf = jnp.sum(bits * 2 ** jnp.arange(DEPTH)[None, None], axis=-1)
  values = random.normal(keys[3], (TREES, 2**DEPTH))
  values *= jnp.exp(random.normal(keys[4], (TREES, 1)))
  return jnp.sum(values[jnp.arange(TREES)[None], leaf], axis=-1)


FAMILIES = (_linear, _additive, _products, _layers, _process, _trees)
