"""The fixture's model, read once, and its programs, each compiled once."""

import functools
import pathlib

import jax
import numpy as np

from oflax.retrofit.tabpfn_v3 import load

FILE = pathlib.Path(__file__).parent / "tabpfn_v3.safetensors"


@functools.cache
def expected():
  """What the package computes, by name."""
  with np.load(FILE.with_suffix(".npz")) as stored:
    return dict(stored)


@functools.cache
def model():
  """The module and its variables, thresholds at 1."""
  return load(FILE)


@functools.cache
def program(variant):
  """The compiled module: (variables, x, y, row and column pattern)."""
  module = model()[0].clone(variant=variant)

  @jax.jit
  def run(variables, x, y, row_present=None, column_present=None):
    return module.apply(
      variables, x, y, row_present=row_present, column_present=column_present
    )

  return run
