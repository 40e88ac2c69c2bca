"""The fixture's model, read once, and its programs, each compiled once."""

import functools
import pathlib

import jax
import numpy as np

from oflax.retrofit.tabpfn_v3 import V3Config
from oflax.retrofit.tabpfn_v3 import load

# Quick to compile, for what needs no weights of the package.
TINY = V3Config(
  num_buckets=20,
  embed_dim=8,
  feat_agg_num_cls_tokens=2,
  dist_embed_num_blocks=1,
  dist_embed_num_heads=2,
  dist_embed_num_inducing_points=4,
  feat_agg_num_blocks=1,
  feat_agg_num_heads=2,
  nlayers=1,
  icl_num_heads=2,
)
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
