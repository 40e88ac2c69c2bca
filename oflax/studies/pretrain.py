"""Pretraining: a small TabPFN v3 learns regression from tables of the prior."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import os
from typing import Any

from flax import traverse_util
import jax
from jax import random
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from oflax import training
from oflax.retrofit.tabpfn_v3 import TabPFNV3
from oflax.retrofit.tabpfn_v3 import V3Config
from oflax.studies import pretrain_loss
from oflax.studies import prior
from oflax.studies.pretrain_optimizer import averaged
from oflax.studies.pretrain_optimizer import learning_rate
from oflax.studies.pretrain_optimizer import optimizer

CONFIG = V3Config(
  num_buckets=112,
  embed_dim=32,
  dist_embed_num_blocks=2,
  dist_embed_num_heads=4,
  dist_embed_num_inducing_points=24,
  feat_agg_num_blocks=2,
  feat_agg_num_heads=4,
  nlayers=6,
  icl_num_heads=4,
  softmax_scaling_mlp_hidden_dim=16,
  softmax_temperature=1.0,
)
STEPS = 15_000
TABLES = 16
ROWS = 128
# Columns and train rows of a batch; each pair is a program to compile.
SHAPES = (
  (2, 64),
  (4, 32),
  (4, 100),
  (7, 100),
  (10, 100),
  (13, 100),
  (18, 100),
)
LOG_EVERY = 25
CHECKPOINT_EVERY = 500
# Rows and their targets enter the blocks that learn in context so much larger
# than a norm leaves them. A row is then long against what a block adds to it:
# the thresholds, in proportion to ‖h‖², leave more room to nearly null rows.
ROW_SCALE = 5.0
# An attention gives a nearly null row the mean of all values: it wakes it up.
# That is made to cost something once the rest is learnt.
WAKING_FROM = 2000
WAKING_COST = 0.1
VALID_SHAPE = (7, 100)
VALID_TABLES = 64
VALID_EVERY = 500


def train(
  *,
  seed: int = 0,
  steps: int = STEPS,
  directory: str | os.PathLike[str] | None = None,
  resume: bool = False,
  config: V3Config = CONFIG,
  shapes: Sequence[tuple[int, int]] = SHAPES,
  on_row: Callable[[int, Mapping[str, float]], None] | None = None,
) -> training.TrainState:
  """Trains a host on batches of the prior.

  The loss is the mean of −log density over the test rows; later on, what wakes
  null rows up costs something, too (see `oflax.studies.pretrain_loss.waking`).

  Args:
    seed: Of parameters and batches.
    steps: Optimizer steps; the learning rate falls to 0 with the last.
    directory: Of metrics and checkpoints; None: write nothing.
    resume: Go on from the newest checkpoint in `directory`.
    config: The shape of the network.
    shapes: Columns and train rows of a batch, one pair drawn a step.
    on_row: Called with the step and metrics whenever a row is logged.

  Returns:
    The trained state; `averaged_variables` has what to use of it.

  Raises:
    ValueError: As `oflax.training.fit`.

  Reference: Müller et al. 2022, arXiv 2112.10510; Hollmann et al. 2025.
  """
  _, _, step, loss = _programs(config, steps)
  valid = _validation(seed, loss)

  def evaluate(state: training.TrainState) -> dict[str, float]:
    made = int(state.step)
    row = {"learning_rate": float(learning_rate(steps)(made - 1))}
    row |= {"valid_loss": float("nan"), "valid_mse": float("nan")}
    if made % VALID_EVERY == 0 or made == steps:
      row |= valid(state)
    if on_row:
      on_row(made, row)
    return row

  return training.fit(
    fresh_state(seed, steps, config),
    step,
    batches(seed, shapes),
    num_steps=steps,
    directory=directory,
    resume=resume,
    calibrate=False,
    evaluate=evaluate,
    log_every=min(LOG_EVERY, steps),
    checkpoint_every=CHECKPOINT_EVERY,
  )


def fresh_state(
  seed: int, steps: int, config: V3Config = CONFIG
) -> training.TrainState:
  """The state before the first of so many steps, on all devices."""
  module, tx, *_ = _programs(config, steps)
  state = training.create_state(
    module,
    tx,
    random.key(seed),
    batch=None,
    forward=_forward,
    variables=_initial(module, seed),
  )
  # What a checkpoint restores goes where the state it is to be like was.
  return jax.device_put(
    state, NamedSharding(pretrain_loss.mesh(TABLES), PartitionSpec())
  )


def averaged_variables(state: training.TrainState) -> dict[str, Any]:
  """The variables with the moving average of the parameters."""
  return {**state.variables, "params": averaged(state.opt_state)}


def batches(
  seed: int, shapes: Sequence[tuple[int, int]] = SHAPES
) -> Callable[[int], Any]:
  """The batch of a step, from its index alone: of a shape drawn at random."""
  # Random bits of the device: they compile in half the time.
  key = random.key(seed, impl="rbg")

  def batch_at(index: int) -> Any:
    drawn = int(np.random.default_rng((seed, index)).integers(len(shapes)))
    tables = _draw(random.fold_in(key, index), TABLES, *shapes[drawn])
    return *tables, jnp.float32(WAKING_COST * (index >= WAKING_FROM))

  return batch_at


def borders(num_buckets: int) -> np.ndarray:
  """Borders of buckets that are narrow about 0 and reach to ±`prior.LIMIT`.

  Args:
    num_buckets: How many.

  Returns:
    float32 ``[num_buckets + 1]``, increasing.

  Example:
    >>> borders(2).tolist()
    [-10.0, 0.0, 10.0]

  Reference: oflax.retrofit.tabpfn_v3.default_borders, for far more buckets.
  """
  grid = np.sinh(3 * np.linspace(-1, 1, num_buckets + 1))
  return (prior.LIMIT * grid / np.sinh(3)).astype(np.float32)


def _draw(key: jax.Array, tables: int, columns: int, train: int) -> Any:
  return prior.draw(key, tables=tables, rows=ROWS, columns=columns, train=train)


@functools.cache
def _programs(config: V3Config, steps: int) -> Any:
  """Module, optimizer, step and loss: the same ones, so compiled once."""
  module = TabPFNV3(config, "host", implementation="reference")
  loss_fn = pretrain_loss.loss_of(module, TABLES)
  step = training.train_step(loss_fn)
  return module, optimizer(steps), step, jax.jit(loss_fn)


def _forward(module: Any, batch: Any) -> Any:
  return module(*batch[:2])


def _initial(module: TabPFNV3, seed: int) -> dict[str, Any]:
  init = jax.jit(module.init)
  variables = init(random.key(seed), jnp.zeros((2, 1)), jnp.zeros(1))
  own = jnp.asarray(borders(module.config.num_buckets))
  constants = {**variables["constants"], "borders": own}
  params = traverse_util.flatten_dict(variables["params"])
  for name in (
    ("row_embedder", "output_norm", "scale"),
    ("row_target", "kernel"),
  ):
    params[name] = ROW_SCALE * params[name]
  params = traverse_util.unflatten_dict(params)
  return {**variables, "params": params, "constants": constants}


def _validation(
  seed: int, loss_fn: Callable[..., Any]
) -> Callable[[training.TrainState], dict[str, float]]:
  """Loss and mean squared error of the average, on tables kept apart."""

  @functools.cache
  def tables() -> Any:
    # No step has this index.
    key = random.fold_in(random.key(seed, impl="rbg"), 2**32 - 1)
    return *_draw(key, VALID_TABLES, *VALID_SHAPE), jnp.float32(0)

  def validate(state: training.TrainState) -> dict[str, float]:
    loss, metrics = loss_fn(averaged_variables(state), tables(), None)
    return {"valid_loss": float(loss), "valid_mse": float(metrics["mse"])}

  return validate
