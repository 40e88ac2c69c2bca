"""One optimizer step from a loss."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from oflax import _numerics
from oflax.training.state import TrainState

Metrics = Mapping[str, jax.Array]
Loss = Callable[[dict[str, Any], Any, jax.Array], tuple[jax.Array, Metrics]]
Step = Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]


def train_step(loss_fn: Loss, *, microbatches: int = 1) -> Step:
  r"""The jitted step ``(state, batch) -> (state, metrics)`` of a loss.

  Neither thresholds, presence patterns nor random keys trace it anew, and
  nothing is donated: the state passed in stays usable.

  With microbatches, a batch larger than memory is read in parts. Their means
  must be weighted by their mass, or a token would count more where few are
  present:

  .. math:: \ell = \sum_k w_k \ell_k / \sum_k w_k

  Args:
    loss_fn: ``(variables, batch, rng) -> (loss, metrics)``: a scalar, usually a
      `present_mean`, and a dict of scalars; rng is new for every step.
    microbatches: Parts into which axis 0 of every array of the batch is split.
      If more than 1, the metric "weight" must be the presence in the part,
      Σ p; the other metrics are averaged as the loss is.

  Returns:
    The step. Its metrics are those of `loss_fn` and "loss".

  Raises:
    ValueError: `microbatches` is below 1 or does not divide the batch, or the
      metric "weight" is missing.

  Example:
    >>> import jax, jax.numpy as jnp, optax, oflax
    >>> from flax import linen as nn
    >>> from oflax.training import create_state
    >>> module = nn.Dense(1, use_bias=False)
    >>> def loss_fn(variables, h, rng):
    ...   errors = (module.apply(variables, h)[:, 0] - 1) ** 2
    ...   return oflax.present_mean(errors, oflax.presence(h)), {}
    >>> h = jnp.array([[1.0], [0.0]])
    >>> state = create_state(module, optax.sgd(0.1), jax.random.key(0), h)
    >>> step = train_step(loss_fn)
    >>> for _ in range(50):
    ...   state, metrics = step(state, h)
    >>> float(metrics["loss"]) < 1e-6
    True

  Reference: oflax.present_mean.
  """
  if microbatches < 1:
    raise ValueError(f"microbatches must be at least 1, got {microbatches!r}.")

  def gradients(state: TrainState, batch: Any, rng: jax.Array) -> Any:
    def loss_of(params: Any) -> tuple[jax.Array, Metrics]:
      return loss_fn({**state.collections, "params": params}, batch, rng)

    value = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    (loss, metrics), grads = value
    return {**metrics, "loss": loss}, grads

  @jax.jit
  def step(
    state: TrainState, batch: Any
  ) -> tuple[TrainState, dict[str, jax.Array]]:
    if microbatches == 1:
      metrics, grads = gradients(state, batch, state.rng)
    else:
      parts = jax.tree.map(lambda x: _split(x, microbatches), batch)
      keys = jax.random.split(state.rng, microbatches)
      metrics, grads = _mean_by_weight(
        lambda part: gradients(state, *part), (parts, keys)
      )
    return state.apply_gradients(grads=grads), metrics

  return step


def _split(array: jax.Array, parts: int) -> jax.Array:
  if array.ndim == 0 or array.shape[0] % parts:
    raise ValueError(
      f"microbatches must divide axis 0 of the batch, got {parts} for shape"
      f" {array.shape}."
    )
  return array.reshape((parts, array.shape[0] // parts, *array.shape[1:]))


def _mean_by_weight(gradients: Callable[[Any], Any], parts: Any) -> Any:
  """Σ w (metrics, gradients) / Σ w over the parts, one of them in memory."""
  part = jax.tree.map(lambda x: x[0], parts)
  shapes = jax.eval_shape(gradients, part)
  if "weight" not in shapes[0]:
    raise ValueError(
      "microbatches need the metric 'weight', got only"
      f" {sorted(shapes[0])} from loss_fn."
    )

  def add(sums: Any, part: Any) -> tuple[Any, None]:
    metrics, grads = gradients(part)
    weight = metrics["weight"]
    terms = ({**metrics, "weight": 1.0}, grads)
    return jax.tree.map(lambda s, x: s + weight * x, sums, terms), None

  zeros = jax.tree.map(
    lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)),
    shapes,
  )
  sums, _ = lax.scan(add, zeros, parts)
  total = sums[0]["weight"]
  metrics, grads = jax.tree.map(lambda s: _numerics.safe_divide(s, total), sums)
  return {**metrics, "weight": total}, grads
