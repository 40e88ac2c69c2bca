"""Evaluation: the mean of a loss over batches, weighted by what is in them."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from oflax import _statistics
from oflax.training.step import Loss


def evaluation(
  loss_fn: Loss,
) -> Callable[[Mapping[str, Any], Iterable[Any]], dict[str, float]]:
  r"""The jitted evaluation ``(variables, batches) -> metrics`` of a loss.

  The means of batches are weighted by their mass, or a token would count more
  where few are present:

  .. math:: \ell = \sum_k w_k \ell_k / \sum_k w_k

  Args:
    loss_fn: As for `train_step`. If there is a metric "weight", it must be the
      presence in the batch, Σ p; without it all batches weigh the same.

  Returns:
    The evaluation. Its metrics are those of `loss_fn` and "loss", averaged, and
    "weight", the sum.

  Raises:
    ValueError: From the evaluation: there are no batches.

  Example:
    >>> import jax.numpy as jnp, oflax
    >>> def loss_fn(variables, h, rng):
    ...   p = oflax.presence(h)
    ...   losses = jnp.sum(h, axis=-1)
    ...   return oflax.present_mean(losses, p), {"weight": jnp.sum(p)}
    >>> batches = jnp.array([[[1.0], [1.0]], [[3.0], [0.0]]])
    >>> metrics = evaluation(loss_fn)({}, batches)
    >>> metrics["loss"], metrics["weight"]  # masses ½, ½ and 0.9
    (1.95, 1.9)

  Reference: oflax.present_mean.
  """

  @jax.jit
  def of_batch(variables: dict[str, Any], batch: Any) -> dict[str, jax.Array]:
    loss, metrics = loss_fn(variables, batch, jax.random.key(0))
    return {"weight": jnp.float32(1), **metrics, "loss": loss}

  def evaluate(
    variables: Mapping[str, Any], batches: Iterable[Any]
  ) -> dict[str, float]:
    found = [of_batch(dict(variables), batch) for batch in batches]
    if not found:
      raise ValueError("batches must not be empty, got none.")
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *found)
    weight = stacked.pop("weight")
    means = {
      name: float(_statistics.present_mean(x, weight))
      for name, x in stacked.items()
    }
    return {**means, "weight": float(jnp.sum(weight))}

  return evaluate
