"""Laws tried many times in one program, and the rounding rule."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oflax._report import Report
from oflax._report import Row

Map = Callable[[jax.Array], jax.Array]
Tolerances = Callable[[jax.Array], tuple[Any, Any]]

LAWS = (
  "null tokens emit exactly 0",
  "null tokens change no other",
  "nothing present gives exactly 0",
  "null tokens get exactly no gradient",
  "gradients of others do not change",
)
_DIRECTIONS = 4
_BATCH = 16


def rounding(fn: Callable[[jax.Array], Any], tokens: jax.Array) -> jax.Array:
  """8 · eps · max(1, amplification): what rounding explains in fn(tokens).

  The amplification is the relative change of the output per relative change of
  the input: the largest of those seen along some random directions.
  """
  return amplified(jax.vmap(fn)(perturbed(tokens)), tokens)


def perturbed(tokens: jax.Array) -> jax.Array:
  """The tokens, and the tokens with relative changes of √eps: stacked."""
  shape = (_DIRECTIONS, *tokens.shape)
  signs = jax.random.rademacher(jax.random.key(0), shape, tokens.dtype)
  step = jnp.sqrt(jnp.finfo(tokens.dtype).eps).astype(tokens.dtype)
  plain = jnp.broadcast_to(tokens, shape)
  return jnp.concatenate([tokens[None], plain + plain * signs * step])


def amplified(outputs: Any, tokens: jax.Array) -> jax.Array:
  """The rounding rule, from a tree of outputs of `perturbed` tokens."""
  leaves = jax.tree.leaves(outputs)
  eps = max(float(jnp.finfo(x.dtype).eps) for x in (tokens, *leaves))
  step = np.sqrt(float(jnp.finfo(tokens.dtype).eps))
  change = largest(jax.tree.map(lambda x: x[1:] - x[:1], outputs))
  scale = jnp.maximum(1, largest(jax.tree.map(lambda x: x[0], outputs)))
  return 8 * eps * jnp.maximum(1, change / (step * scale))


def largest(tree: Any) -> jax.Array:
  """The largest magnitude in a tree, in float32 or wider; NaN if one is."""
  zero = jnp.zeros((), jnp.float32)
  tops = [
    jnp.max(jnp.abs(x), initial=0).astype(jnp.promote_types(x.dtype, zero.dtype))
    for x in jax.tree.leaves(tree)
  ]
  return jnp.max(jnp.stack([zero, *tops]))


def null_places(key: jax.Array, num_tokens: int, num_nulls: int) -> jax.Array:
  """Where the tokens stay when nulls come in: sorted indices, ``[num_tokens]``.

  Nulls come scattered, in front, in the middle or behind.
  """
  kind_key, place_key = jax.random.split(key)
  size = num_tokens + num_nulls
  scattered = jnp.sort(jax.random.permutation(place_key, size)[:num_tokens])
  tokens = jnp.arange(num_tokens)
  middle = tokens + jnp.where(tokens >= num_tokens // 2, num_nulls, 0)
  patterns = jnp.stack([scattered, tokens + num_nulls, middle, tokens])
  return patterns[jax.random.randint(kind_key, (), 0, len(patterns))]


def run(
  fn: Map,
  tokens: jax.Array,
  key: jax.Array,
  trials: int,
  tolerances: Tolerances,
) -> Report:
  """Tries every law `trials` times, in batches that one program runs."""

  seen = many(lambda k: _trial(fn, tokens, k, tolerances), key, trials)
  rows = []
  for law, (deviations, allowed) in zip(LAWS, seen, strict=True):
    violations = int(np.sum(~(deviations <= allowed)))
    rows.append(
      Row(law, trials, violations, float(deviations.max()), float(allowed.max()))
    )
  return Report(tuple(rows))


def many(trial: Callable[[jax.Array], Any], key: jax.Array, trials: int) -> Any:
  """Runs `trial` on as many keys: stacked results, from one small program."""
  keys = jax.random.split(key, -(-trials // _BATCH) * _BATCH)
  batches = keys.reshape(-1, _BATCH)
  results = jax.jit(lambda b: jax.lax.map(jax.vmap(trial), b))(batches)
  return jax.tree.map(
    lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[:trials], results
  )


def _trial(
  fn: Map, tokens: jax.Array, key: jax.Array, tolerances: Tolerances
) -> list[tuple[jax.Array, jax.Array]]:
  """The deviation and the allowance of every law in one random trial."""
  draw_key, place_key, weight_key = jax.random.split(key, 3)
  h = _draw(tokens, draw_key)
  num_nulls = max(1, h.shape[-2] // 2)
  places = null_places(place_key, h.shape[-2], num_nulls)
  null = jnp.ones(h.shape[-2] + num_nulls, bool).at[places].set(False)

  def insert(x: jax.Array) -> jax.Array:
    shape = (*x.shape[:-2], len(null), x.shape[-1])
    return jnp.zeros(shape, x.dtype).at[..., places, :].set(x)

  def at_nulls(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.broadcast_to(null[:, None], x.shape), x, 0)

  weights = jax.eval_shape(fn, h)
  weights = jax.random.normal(weight_key, weights.shape, weights.dtype)

  def both(h: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    outputs, pullback = jax.vjp(fn, h)
    return outputs, pullback(weights)[0]

  # One program for n tokens serves h, its perturbations and nothing at all.
  inputs = jnp.concatenate([jnp.zeros_like(h)[None], perturbed(h)])
  plain, plain_gradients = jax.vmap(lambda h: both(h, weights))(inputs)
  outputs, gradients = both(insert(h), insert(weights))

  def agree(
    got: jax.Array, want: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    scale = jnp.maximum(1, largest(want[0]))
    rtol, atol = tolerances(amplified(want, h))
    deviation = largest(got[..., places, :] - want[0]) / scale
    return deviation, (atol + rtol * largest(want[0])) / scale

  exact = jnp.zeros(())
  return [
    (largest(at_nulls(outputs)), exact),
    agree(outputs, plain[1:]),
    (largest((plain[0], plain_gradients[0])), exact),
    (largest(at_nulls(gradients)), exact),
    agree(gradients, plain_gradients[1:]),
  ]


def _draw(tokens: jax.Array, key: jax.Array) -> jax.Array:
  """Rows drawn from the tokens, with noise of half their size."""
  row_key, noise_key = jax.random.split(key)
  n = tokens.shape[-2]
  rows = jax.random.randint(row_key, (n,), 0, n)
  size = jnp.sqrt(jnp.mean(jnp.square(tokens.astype(jnp.float32))))
  noise = jax.random.normal(noise_key, tokens.shape) * size / 2
  return (tokens[..., rows, :] + noise).astype(tokens.dtype)
