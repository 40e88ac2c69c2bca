"""A small run that a test can break: also a program, to be killed."""

import os
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import oflax
from oflax import training
from oflax.linen import OBlock

MODULE = OBlock(num_heads=2, mlp_dim=8, dropout_rate=0.1)
SETTINGS = {"num_steps": 12, "log_every": 2, "checkpoint_every": 5}


def batch_at(index):
  """Two sequences of four tokens; which are null depends on the index."""
  rng = np.random.default_rng(index)
  tokens = rng.normal(size=(2, 4, 4)).astype(np.float32)
  return tokens * (rng.uniform(size=(2, 4, 1)) < 0.7)


def loss_fn(variables, tokens, rng):
  out = MODULE.apply(
    variables, tokens, deterministic=False, rngs={"dropout": rng}
  )
  errors = jnp.sum(jnp.square(out - 1), axis=-1)
  present = oflax.presence(tokens)
  return oflax.present_mean(errors, present), {"weight": jnp.sum(present)}


def forward(module, tokens):
  return module(tokens, deterministic=True)


# One optimizer and one step for all tests, hence one compilation.
TX = optax.adamw(1e-2)
STEP = training.train_step(loss_fn)


def create_state(module=MODULE, tx=TX):
  return training.create_state(
    module, tx, jax.random.key(0), batch_at(0), forward=forward
  )


def fit(directory=None, state=None, batches=batch_at, **kwargs):
  return training.fit(
    state or create_state(),
    STEP,
    batches,
    directory=directory,
    **{**SETTINGS, **kwargs},
  )


def main(directory, kill_at):
  def batches(index):
    if index == kill_at:
      os.kill(os.getpid(), signal.SIGKILL)
    return batch_at(index)

  fit(directory, batches=batches)


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]))
