"""Laws tried many times in one program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oflax.laws.report import Report
from oflax.laws.report import Row
from oflax.laws.rounding import amplified
from oflax.laws.rounding import largest
from oflax.laws.rounding import perturbed

Map = Callable[[jax.Array], jax.Array]
Tolerances = Callable[[jax.Array], tuple[Any, Any]]
# Of each law: the deviation and what is allowed of it.
Outcome = dict[str, tuple[Any, Any]]
# What chance decides in a trial, by name. It is drawn on the host: random
# numbers inside the program would take longer to compile than what is tried.
Draws = dict[str, Any]

_BATCH = 16


def run(
  fn: Map,
  tokens: jax.Array,
  key: jax.Array,
  trials: int,
  tolerances: Tolerances,
) -> Report:
  """Tries every law of closure `trials` times, on tokens like the given."""
  rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
  outputs = jax.eval_shape(fn, tokens)
  draws = draw_closure(rng, trials, tokens.shape[-2], outputs.shape)
  draws["tokens"] = _draw_tokens(rng, trials, np.asarray(tokens, np.float64))

  def trial(draws: Draws) -> Outcome:
    h = draws["tokens"].astype(tokens.dtype)
    return closure_trial(fn, h, draws, tolerances)

  return Report(tuple(rows_of(many(trial, draws))))


def many(trial: Callable[[Draws], Any], draws: Draws) -> Any:
  """Runs `trial` on all draws: stacked results, from one small program."""
  trials = len(jax.tree.leaves(draws)[0])
  padding = -trials % _BATCH

  def batched(x: np.ndarray) -> np.ndarray:
    padded = np.concatenate([x, np.repeat(x[:1], padding, axis=0)])
    return padded.reshape(-1, _BATCH, *x.shape[1:])

  program = jax.jit(lambda batches: jax.lax.map(jax.vmap(trial), batches))
  results = jax.device_get(program(jax.tree.map(batched, draws)))
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:trials], results)


def rows_of(outcome: Outcome) -> list[Row]:
  """Sums up stacked deviations and allowances, law by law."""
  return [
    Row(
      law,
      len(deviations),
      int(np.sum(~(deviations <= allowed))),
      float(np.max(deviations)),
      float(np.max(allowed)),
    )
    for law, (deviations, allowed) in outcome.items()
  ]


def draw_closure(
  rng: np.random.Generator, trials: int, n: int, outputs: tuple[int, ...]
) -> Draws:
  """What chance decides in `closure_trial`, for n tokens."""
  return {
    "places": draw_places(rng, trials, n),
    "order": rng.permuted(np.tile(np.arange(n), (trials, 1)), axis=1),
    "weights": rng.normal(size=(trials, *outputs)).astype(np.float32),
  }


def draw_places(rng: np.random.Generator, trials: int, n: int) -> np.ndarray:
  """Where n tokens stay when nulls come in, half as many, or one.

  Nulls come scattered, in front, in the middle or behind.
  """
  nulls = max(1, n // 2)
  slots = np.tile(np.arange(n + nulls), (trials, 1))
  scattered = np.sort(rng.permuted(slots, axis=1)[:, :n], axis=1)
  tokens = np.arange(n)
  middle = tokens + np.where(tokens >= n // 2, nulls, 0)
  fixed = np.stack([tokens + nulls, middle, tokens])
  kind = rng.integers(0, 4, trials)
  return np.where((kind < 3)[:, None], fixed[np.minimum(kind, 2)], scattered)


def inserted(x: jax.Array, places: jax.Array) -> jax.Array:
  """The tokens at their places, and nulls elsewhere."""
  n = x.shape[-2]
  shape = (*x.shape[:-2], n + max(1, n // 2), x.shape[-1])
  return jnp.zeros(shape, x.dtype).at[..., places, :].set(x)


def closure_trial(
  fn: Map,
  h: jax.Array,
  draws: Draws,
  tolerances: Tolerances,
  *,
  unordered: bool = False,
) -> Outcome:
  """The deviation and the allowance of each law of closure, for tokens h.

  `unordered` adds permutation equivariance.
  """
  places, order = draws["places"], draws["order"]

  def at_nulls(x: jax.Array) -> jax.Array:
    return x.at[..., places, :].set(0)

  def both(h: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    outputs, pullback = jax.vjp(fn, h)
    return outputs, pullback(weights.astype(outputs.dtype))[0]

  # One program for n tokens serves nothing at all, h permuted, h itself and its
  # perturbations; h is at 2, those for the rounding rule at 2 and after.
  others = jnp.stack([jnp.zeros_like(h), h[..., order, :]])
  inputs = jnp.concatenate([others, perturbed(h)])
  weights = draws["weights"]
  plain, plain_gradients = jax.vmap(lambda h: both(h, weights))(inputs)
  outputs, gradients = both(inserted(h, places), inserted(weights, places))

  def agree(got: jax.Array, want: jax.Array) -> tuple[jax.Array, jax.Array]:
    scale = jnp.maximum(1, largest(want[0]))
    rtol, atol = tolerances(amplified(want, h))
    deviation = largest(got - want[0]) / scale
    return deviation, (atol + rtol * largest(want[0])) / scale

  exact = jnp.zeros(())
  # A residual path has a derivative at nothing: it must only be finite.
  empty = largest(plain[0]) + 0 * largest(plain_gradients[0])
  outcome = {
    "null tokens emit exactly 0": (largest(at_nulls(outputs)), exact),
    "null tokens change no other": agree(outputs[..., places, :], plain[2:]),
    "nothing present gives exactly 0": (empty, exact),
    "null tokens get exactly no gradient": (
      largest(at_nulls(gradients)),
      exact,
    ),
    "gradients of others do not change": agree(
      gradients[..., places, :], plain_gradients[2:]
    ),
  }
  if unordered:
    back = plain[1][..., jnp.argsort(order), :]
    outcome["permuted tokens give permuted outputs"] = agree(back, plain[2:])
  return outcome


def curvature(
  fn: Map, h: jax.Array, draws: Draws
) -> tuple[jax.Array, jax.Array]:
  """Second derivatives at nulls, against central differences; in float64."""
  places, weights = draws["places"], inserted(draws["weights"], draws["places"])
  tokens = inserted(h, places)
  # Any direction will do that moves the nulls alone.
  direction = jnp.sin(jnp.arange(1.0, tokens.size + 1)).astype(h.dtype)
  direction = direction.reshape(tokens.shape).at[..., places, :].set(0)
  gradient = jax.grad(lambda h: jnp.sum(weights * fn(h)))
  _, exact = jax.jvp(gradient, (tokens,), (direction,))
  step = 1e-6
  ahead, behind = (
    gradient(tokens + sign * step * direction) for sign in (1, -1)
  )
  difference = (ahead - behind) / (2 * step)
  scale = jnp.maximum(1, largest(difference))
  # Differences err by step² / ε where a norm adds ε = 1e-6 to its variance.
  return largest(exact - difference) / scale, jnp.asarray(1e-5)


def _draw_tokens(
  rng: np.random.Generator, trials: int, tokens: np.ndarray
) -> np.ndarray:
  """Rows drawn from the tokens, with noise of half their size."""
  n = tokens.shape[-2]
  rows = rng.integers(0, n, (trials, n))
  drawn = np.moveaxis(tokens[..., rows, :], -3, 0)
  noise = rng.normal(size=drawn.shape) * np.sqrt(np.mean(tokens**2)) / 2
  return (drawn + noise).astype(np.float32)
