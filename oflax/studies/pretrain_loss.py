"""The loss of the pretraining: what tables cost, and what wakes null rows."""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec
import numpy as np

from oflax.retrofit.tabpfn_v3 import BarDistribution
from oflax.retrofit.tabpfn_v3 import TabPFNV3


def loss_of(module: TabPFNV3, tables: int) -> Callable[..., Any]:
  """The loss of a batch, whose tables all devices of the host share.

  Args:
    module: The host.
    tables: In a batch, or a divisor of their number.

  Returns:
    As `oflax.training.train_step` takes it, of batches of x, targets of train
    and of test rows, and the cost of waking null rows.
  """
  everywhere, shared = PartitionSpec(), PartitionSpec("tables")

  @functools.partial(
    jax.shard_map,
    mesh=mesh(tables),
    in_specs=(everywhere, (shared, shared, shared, everywhere)),
    out_specs=everywhere,
  )
  def mean_loss(
    variables: Mapping[str, Any], batch: Any
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    x, y, y_test, cost = batch
    logits, seen = module.apply(
      variables,
      x,
      y,
      mutable=["intermediates"],
      capture_intermediates=lambda part, _: len(part.path) <= 2,
    )
    bars = BarDistribution(variables["constants"]["borders"])
    mse = jnp.mean((bars.mean(logits) - y_test) ** 2)
    loss = -jnp.mean(bars.log_density(logits, y_test))
    push = waking(variables["params"], seen["intermediates"], y.shape[-1])
    return lax.pmean((loss + cost * push, {"mse": mse}), "tables")

  def loss_fn(
    variables: Mapping[str, Any], batch: Any, rng: jax.Array | None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    del rng
    return mean_loss(dict(variables), batch)

  return loss_fn


def mesh(tables: int) -> Mesh:
  """The devices that share the tables of a batch."""
  count = math.gcd(tables, jax.local_device_count())
  return Mesh(np.array(jax.local_devices()[:count]), ("tables",))


def waking(
  params: Mapping[str, Any], seen: Mapping[str, Any], num_train: int
) -> jax.Array:
  """How strongly the blocks that learn in context push a row of zeros.

  Its query is 0, so that an attention gives it the mean of all values.

  Args:
    params: Of a `TabPFNV3` without grouped heads.
    seen: Outputs of its parts, as Flax captures them.
    num_train: How many rows, the first ones, are looked at.

  Returns:
    The squared norm of what it gets, over that of the rows there are, summed
    over blocks.
  """
  rows = seen["row_target_inject"]["__call__"][0]
  total = jnp.float32(0)
  for i in range(sum(name.startswith("block_") for name in params)):
    own = params[f"block_{i}"]["attention"]
    block = seen[f"block_{i}"]
    normed = block["attention_norm"]["__call__"][0][..., :num_train, :]
    mean = jnp.mean(normed, axis=-2)
    value = jnp.einsum("...d,dkh->...kh", mean, own["value"]["kernel"])
    update = jnp.einsum("...kh,khd->...d", value, own["out"]["kernel"])
    length = jnp.mean(jnp.sum(rows**2, axis=-1), axis=-1)
    total += jnp.mean(jnp.sum(update**2, axis=-1) / length)
    rows = block["__call__"][0]
  return total
