"""A small run in two processes, one of which a test can kill: a program."""

import os
import signal
import sys

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np
import optax

import oflax
from oflax import sharding
from oflax import training
from oflax.linen import OBlock
from tests.training import toy

MODULE = OBlock(num_heads=2, mlp_dim=8)
TX = optax.adamw(1e-2)


def loss_fn(variables, tokens, rng):
  out = MODULE.apply(variables, tokens)
  errors = jnp.sum(jnp.square(out - 1), axis=-1)
  return oflax.present_mean(errors, oflax.presence(tokens)), {}


def alone(directory):
  """The run in one process."""
  state = training.create_state(MODULE, TX, jax.random.key(0), toy.batch_at(0))
  step = training.train_step(loss_fn)
  return training.fit(
    state, step, toy.batch_at, directory=directory, **toy.SETTINGS
  )


def one_of_two(directory, process, kill_at):
  """The run in two processes, which load one row of every batch each."""
  placed = sharding.shard(
    MODULE,
    Mesh(np.array(jax.devices()), ("data",)),
    tx=TX,
    key=jax.random.key(0),
    batch=toy.batch_at(0),
    loss_fn=loss_fn,
  )

  def batch_at(index):
    if index == kill_at and process == 1:
      os.kill(os.getpid(), signal.SIGKILL)
    rows = toy.batch_at(index)[process : process + 1]
    return sharding.put(rows, placed.batch_shardings)

  training.fit(
    placed.state,
    placed.step,
    batch_at,
    directory=directory,
    resume=True,
    **toy.SETTINGS,
  )


if __name__ == "__main__":
  directory, coordinator, process, kill_at = sys.argv[1:]
  with training.joined(coordinator, 2, int(process)):
    one_of_two(directory, int(process), int(kill_at))
