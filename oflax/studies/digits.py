"""The digits study: training, and what the trained model does."""

from collections.abc import Callable
from collections.abc import Mapping
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np
import optax

from oflax import laws
from oflax import sharding
from oflax import training
from oflax.studies import digits_data
from oflax.studies.digits_model import DigitClassifier

BATCH = 64
STEPS = 1200
LOG_EVERY = 50
CHECKPOINT_EVERY = 250
PEAK_LEARNING_RATE = 5e-3
WEIGHT_DECAY = 0.1
SMOOTHING = 0.1
# Training reads this many tokens of an image; a surplus is lost at random.
TOKENS = 32
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
DRAWS = 5

Array = digits_data.Array
Data = digits_data.Data


def train(
  train_data: Data,
  test_data: Data,
  *,
  variant: str = "full",
  seed: int = 0,
  steps: int = STEPS,
  directory: str | os.PathLike[str] | None = None,
  resume: bool = False,
) -> training.TrainState:
  """Trains a `DigitClassifier`.

  Several processes (see `oflax.training.joined`) train it together.

  Args:
    train_data: Pixels ``[n, 64]`` and labels ``[n]``.
    test_data: The same, for the metric "test_accuracy"; nothing is chosen by
      it.
    variant: "host", "attention" or "full".
    seed: Of parameters, batches and augmentation.
    steps: Optimizer steps; the learning rate falls to 0 with the last.
    directory: Of metrics and checkpoints; None: write nothing.
    resume: Go on from the newest checkpoint in `directory`.

  Returns:
    The trained state.

  Raises:
    ValueError: As `oflax.training.fit`.

  Reference: docs/concepts.md; scikit-learn's load_digits.
  """
  several = jax.process_count() > 1
  state, step, batch_at = (_among_processes if several else _alone)(
    DigitClassifier(variant=variant), train_data, seed, steps
  )
  return training.fit(
    state,
    step,
    batch_at,
    num_steps=steps,
    directory=directory,
    resume=resume,
    evaluate=lambda state: {"test_accuracy": accuracy(state, *test_data)},
    log_every=min(LOG_EVERY, steps),
    checkpoint_every=CHECKPOINT_EVERY,
  )


def _alone(model: DigitClassifier, data: Data, seed: int, steps: int) -> Any:
  """State, step and batches of one process."""
  batch_at = digits_data.batches(*data, BATCH, seed)
  state = training.create_state(
    model,
    _optimizer(steps),
    jax.random.key(seed),
    batch_at(0),
    forward=_read,
  )
  return state, training.train_step(_loss_of(model)), batch_at


def _among_processes(
  model: DigitClassifier, data: Data, seed: int, steps: int
) -> Any:
  """The same on the devices of all processes; each loads its own images."""
  part = jax.process_index(), jax.process_count()
  rows_at = digits_data.batches(*data, BATCH, seed, part)
  placed = sharding.shard(
    model,
    Mesh(np.array(jax.devices()), ("data",)),
    tx=_optimizer(steps),
    key=jax.random.key(seed),
    batch=digits_data.batches(*data, BATCH, seed)(0),
    loss_fn=_loss_of(model),
    forward=_read,
  )

  def batch_at(index: int) -> Data:
    # Of all processes, so that what calibrates sees what one process would.
    batch: Data = sharding.put(rows_at(index), placed.batch_shardings)
    return batch

  return placed.state, placed.step, batch_at


def _read(model: Any, batch: Data) -> jax.Array:
  logits: jax.Array = model(batch[0])
  return logits


def predict(state: training.TrainState, pixels: Array) -> jax.Array:
  """The classes of images, ``[b, 64]`` to ``[b]``."""
  return jnp.argmax(_logits(state.module, state.variables, pixels), axis=-1)


def accuracy(state: training.TrainState, pixels: Array, labels: Array) -> float:
  """The share of images classified rightly, in [0, 1]."""
  return float(np.mean(np.asarray(predict(state, pixels)) == labels))


def accuracy_without_ink(
  state: training.TrainState,
  pixels: Array,
  labels: Array,
  key: jax.Array,
) -> dict[float, float]:
  """Accuracy as a share of the ink tokens is set to null.

  Args:
    state: A trained state.
    pixels: ``[b, 64]``.
    labels: ``[b]``.
    key: Random key; each share is drawn five times.

  Returns:
    Share of the ink set to null, to mean accuracy in [0, 1].
  """
  drop_ink = jax.jit(digits_data.drop_ink)
  result = {}
  for share in SHARES:
    draws = [
      accuracy(state, drop_ink(pixels, share, draw), labels)
      for draw in jax.random.split(key, DRAWS)
    ]
    result[share] = sum(draws) / DRAWS
  return result


def check_laws(
  state: training.TrainState, pixels: Array, key: jax.Array
) -> Any:
  """The report of the laws on the trained transformer.

  Args:
    state: A trained state.
    pixels: One image, ``[64]``; the trials start from its carriers.
    key: Random key.

  Returns:
    A report that prints as a table.
  """
  apply: Callable[..., Any] = functools.partial(
    state.module.apply, state.variables
  )
  carriers = apply(pixels, method="carriers")
  inked = carriers[jnp.asarray(pixels) != 0]
  return laws.check_laws(
    lambda h: apply(h, method=lambda model, h: model.body(h)), inked, key
  )


def presence_by_layer(
  state: training.TrainState, pixels: Array
) -> dict[str, jax.Array]:
  """The presence of every pixel, where it is taken.

  Args:
    state: A trained state.
    pixels: ``[b, 64]``.

  Returns:
    Name of the site, in order, to presence ``[b, 64]``.
  """
  apply = jax.jit(
    functools.partial(state.module.apply, mutable=["intermediates"])
  )
  seen = apply(state.variables, pixels)[1]["intermediates"]
  sites = {"positions": seen["inject"]["presence"]}
  for i in range(state.module.num_layers):
    block = seen["body"][f"block_{i}"]
    sites[f"attention {i + 1}"] = block["attention_presence"]
    sites[f"FFN {i + 1}"] = block["ffn_presence"]
  sites["pool"] = seen["pool"]["presence"]
  return {name: site["presence"][0] for name, site in sites.items()}


def _optimizer(steps: int) -> optax.GradientTransformation:
  rate = optax.warmup_cosine_decay_schedule(
    0.0, PEAK_LEARNING_RATE, warmup_steps=steps // 10, decay_steps=steps
  )
  return optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(rate, weight_decay=WEIGHT_DECAY),
  )


def _loss_of(model: DigitClassifier) -> Callable[..., Any]:
  def loss_fn(
    variables: Mapping[str, Any], batch: Data, rng: jax.Array
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    images, labels = batch
    augment_key, pack_key = jax.random.split(rng)
    augmented = digits_data.augment(images, augment_key)
    tokens = digits_data.pack(augmented, TOKENS, pack_key)
    logits: Any = model.apply(variables, *tokens)
    targets = optax.smooth_labels(
      jax.nn.one_hot(labels, logits.shape[-1]), SMOOTHING
    )
    loss = jnp.mean(optax.softmax_cross_entropy(logits, targets))
    right = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
    return loss, {"train_accuracy": right}

  return loss_fn


@functools.partial(jax.jit, static_argnums=0)
def _logits(
  model: DigitClassifier, variables: Mapping[str, Any], pixels: Array
) -> jax.Array:
  logits: Any = model.apply(variables, pixels)
  return logits
