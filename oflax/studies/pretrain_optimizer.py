"""The optimizer of the pretraining, which keeps an average of the weights."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

PEAK_LEARNING_RATE = 2e-3
WARM_UP = 400
WEIGHT_DECAY = 0.01
DECAY = 0.999


class AverageState(NamedTuple):
  """Of `weight_average`.

  Attributes:
    step: How many were made.
    average: Of the parameters.
  """

  step: jax.Array
  average: Any


def weight_average(decay: float) -> optax.GradientTransformation:
  r"""Keeps a moving average of the parameters, and changes nothing.

  It must be the last of a chain. With θ the parameters after step t:

  .. math:: \bar θ ← \bar θ + (1 - d_t)(θ - \bar θ),
            d_t = \min(d, (1 + t) / (10 + t))

  Args:
    decay: d, in [0, 1).

  Returns:
    The transformation; `averaged` reads its state.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> tx = optax.chain(optax.sgd(1.0), weight_average(0.0))
    >>> params = jnp.float32(3)
    >>> updates, state = tx.update(jnp.float32(1), tx.init(params), params)
    >>> averaged(state).tolist()
    2.0

  Reference: Polyak and Juditsky 1992.
  """

  def init(params: Any) -> AverageState:
    return AverageState(jnp.zeros((), jnp.int32), params)

  def update(
    updates: Any, state: AverageState, params: Any = None
  ) -> tuple[Any, AverageState]:
    after = optax.apply_updates(params, updates)
    t = state.step.astype(jnp.float32)
    share = 1 - jnp.minimum(decay, (1 + t) / (10 + t))
    average = jax.tree.map(
      lambda old, new: old + share * (new - old), state.average, after
    )
    return updates, AverageState(state.step + 1, average)

  return optax.GradientTransformation(init, update)


def averaged(opt_state: Any) -> Any:
  """The average of the parameters, from the state of a chain's optimizer."""
  return opt_state[-1].average


def learning_rate(steps: int) -> optax.Schedule:
  """Rises for some steps, stays, and falls to 0 over the last quarter.

  Until it falls it does not depend on `steps`: what a longer run has learnt by
  then is what a shorter one has (Hu et al. 2024, arXiv 2404.06395).
  """
  rising, falling = min(WARM_UP, steps // 10), max(1, steps // 4)
  return optax.join_schedules(
    [
      optax.linear_schedule(0.0, PEAK_LEARNING_RATE, max(1, rising)),
      optax.linear_schedule(PEAK_LEARNING_RATE, 0.0, falling),
    ],
    [steps - falling],
  )


def optimizer(steps: int) -> optax.GradientTransformation:
  """AdamW of clipped gradients, for so many steps."""
  return optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(learning_rate(steps), weight_decay=WEIGHT_DECAY),
    weight_average(DECAY),
  )
