"""The text study: a byte-level language model, full and as an ordinary one."""

from collections.abc import Callable
from collections.abc import Mapping
import os
from typing import Any

import jax
import jax.numpy as jnp
import optax

from oflax import training
from oflax.linen import OLanguageModel
from oflax.studies import text_data

BATCH = 16
LENGTH = 128
STEPS = 1000
LOG_EVERY = 50
CHECKPOINT_EVERY = 250
PEAK_LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.1
JUDGED = 64
MODEL: dict[str, Any] = {
  "vocabulary": text_data.VOCABULARY,
  "features": 128,
  "num_layers": 4,
  "num_heads": 4,
  "num_kv_heads": 2,
  "mlp_dim": 256,
  "norm": "rms",
  "gated": True,
  # As far as it learns to look; a text that it goes on with may be longer.
  "local_window_size": (LENGTH - 1, 0),
}


def train(
  *,
  variant: str = "full",
  seed: int = 0,
  steps: int = STEPS,
  directory: str | os.PathLike[str] | None = None,
  resume: bool = False,
) -> training.TrainState:
  """Trains a language model on the standard library.

  Args:
    variant: "full", "attention" or "host", the ordinary model.
    seed: Of parameters and batches.
    steps: Optimizer steps; the learning rate falls to 0 with the last.
    directory: Of metrics and checkpoints; None: write nothing.
    resume: Go on from the newest checkpoint in `directory`.

  Returns:
    The trained state.

  Raises:
    ValueError: As `oflax.training.fit`.

  Reference: Radford et al. 2019.
  """
  learnt, judged = text_data.corpus()
  held_out = jnp.asarray(text_data.windows(judged, JUDGED, LENGTH))
  state = fresh_state(variant=variant, seed=seed, steps=steps)
  loss_fn = loss_of(state.module)
  evaluate = training.evaluation(loss_fn)

  def test_bits(state: training.TrainState) -> dict[str, float]:
    parts = jnp.split(held_out, JUDGED // BATCH)
    return {"test_bits": evaluate(state.variables, parts)["loss"]}

  return training.fit(
    state,
    training.train_step(loss_fn),
    text_data.batches(learnt, BATCH, LENGTH, seed),
    num_steps=steps,
    directory=directory,
    resume=resume,
    evaluate=test_bits,
    log_every=min(LOG_EVERY, steps),
    checkpoint_every=CHECKPOINT_EVERY,
  )


def fresh_state(*, variant: str, seed: int, steps: int) -> training.TrainState:
  """The state before the first step; see `train`."""
  model = OLanguageModel(**MODEL, variant=variant)
  return training.create_state(
    model,
    _optimizer(steps),
    jax.random.key(seed),
    jnp.ones((BATCH, LENGTH + 1), jnp.int32),
    forward=lambda model, ids: model(ids[:, :-1]),
  )


def loss_of(model: Any) -> Callable[..., Any]:
  """Bits per byte of the next id, over ids that are tokens."""

  def loss_fn(
    variables: Mapping[str, Any], ids: jax.Array, rng: jax.Array | None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    del rng
    bits, weight = model.apply(variables, ids, method="loss")
    return bits, {"weight": weight}

  return loss_fn


def _optimizer(steps: int) -> optax.GradientTransformation:
  schedule = optax.warmup_cosine_decay_schedule(
    0.0, PEAK_LEARNING_RATE, warmup_steps=steps // 20, decay_steps=steps
  )
  return optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(schedule, weight_decay=WEIGHT_DECAY),
  )
