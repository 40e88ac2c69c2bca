"""The rounding rule: what a correct function may deviate by."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_DIRECTIONS = 4


def rule(fn: Callable[[jax.Array], Any], tokens: jax.Array) -> jax.Array:
  """8 · eps · max(1, amplification): what rounding explains in fn(tokens).

  The amplification is the relative change of the output per relative change of
  the input: the largest seen when all last bits of the input change at random.
  That small, it counts the rounding inside the function, too.
  """
  # In a loop, since not every user's function can be vmapped.
  outputs = [fn(other) for other in perturbed(tokens)]
  return amplified(jax.tree.map(lambda *x: jnp.stack(x), *outputs), tokens)


def perturbed(tokens: jax.Array) -> jax.Array:
  """The tokens, and the tokens with relative changes of eps: stacked."""
  tokens = jnp.asarray(tokens)
  shape = (_DIRECTIONS, *tokens.shape)
  step = float(jnp.finfo(tokens.dtype).eps)
  steps = step * np.random.default_rng(0).choice([-1.0, 1.0], shape)
  plain = jnp.broadcast_to(tokens, shape)
  others = plain + plain * jnp.asarray(steps, tokens.dtype)
  return jnp.concatenate([tokens[None], others])


def amplified(outputs: Any, tokens: jax.Array) -> jax.Array:
  """The rounding rule, from a tree of outputs of `perturbed` tokens."""
  leaves = jax.tree.leaves(outputs)
  eps = max(float(jnp.finfo(x.dtype).eps) for x in (tokens, *leaves))
  step = float(jnp.finfo(tokens.dtype).eps)
  change = largest(jax.tree.map(lambda x: x[1:] - x[:1], outputs))
  scale = jnp.maximum(1, largest(jax.tree.map(lambda x: x[0], outputs)))
  return 8 * eps * jnp.maximum(1, change / (step * scale))


def largest(tree: Any) -> jax.Array:
  """The largest magnitude in a tree, in float32 or wider; NaN if one is."""
  zero = jnp.zeros((), jnp.float32)
  tops = [
    jnp.max(jnp.abs(x), initial=0).astype(
      jnp.promote_types(x.dtype, zero.dtype)
    )
    for x in jax.tree.leaves(tree)
  ]
  return jnp.max(jnp.stack([zero, *tops]))
