"""The public surface: what is promised is there, documented, and lowers for
every platform."""

import inspect
import subprocess
import sys

import jax
from jax import export
import jax.numpy as jnp
import pytest

import oflax
from oflax import laws
from oflax import linen
from oflax import sequences
from oflax import sharding
from oflax import training
from oflax.retrofit import minilm
from oflax.retrofit import tabpfn_v3

MODULES = (
  oflax,
  linen,
  laws,
  sequences,
  sharding,
  training,
  minilm,
  tabpfn_v3,
)
H = jax.ShapeDtypeStruct((2, 5, 8), jnp.float32)
HEADS = jax.ShapeDtypeStruct((2, 5, 2, 4), jnp.float32)
P = jax.ShapeDtypeStruct((2, 5), jnp.float32)
MODEL = linen.OTransformer(2, 2, 12, rotary=True, is_causal=True)
PARAMS = jax.eval_shape(MODEL.init, jax.random.key(0), H)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_the_public_list_names_callables_once(module):
  assert len(module.__all__) == len(set(module.__all__))
  for name in module.__all__:
    assert callable(getattr(module, name))


@pytest.mark.parametrize(
  "thing",
  [getattr(module, name) for module in MODULES for name in module.__all__],
  ids=lambda thing: thing.__name__,
)
def test_every_public_name_has_a_docstring_with_an_example(thing):
  assert "Example:" in thing.__doc__
  assert ">>>" in thing.__doc__


def blocked(x, p):
  sizes = oflax.BlockSizes(1, 1, 2)
  x = x[..., None, :]
  return oflax.o_attention(x, x, x, p, p, is_causal=True, implementation=sizes)


LOWERED = {
  "presence": (oflax.presence, H),
  "presence_rank": (oflax.presence_rank, P),
  "nullify": (lambda h, p: oflax.nullify(h, p > 0), H, P),
  "o_attention": (
    lambda q, p: oflax.o_attention(q, q, q, p, p, is_causal=True),
    HEADS,
    P,
  ),
  "o_attention_weights": (
    lambda q, p: oflax.o_attention_weights(q, q, p),
    HEADS,
    P,
  ),
  "o_gate": (oflax.o_gate, H, P),
  "o_ffn": (lambda h, p: oflax.o_ffn(h, p, jnp.tanh), H, P),
  "o_norm": (oflax.o_norm, H, P),
  "o_inject": (oflax.o_inject, H, H, P),
  "o_standardize": (oflax.o_standardize, H, P),
  "o_pool": (oflax.o_pool, H, P),
  "present_mean": (oflax.present_mean, P, P),
  "blocked": (blocked, H, P),
  "OTransformer": (MODEL.apply, PARAMS, H),
  "OTransformer gradient": (
    jax.grad(lambda v, h: jnp.sum(MODEL.apply(v, h))),
    PARAMS,
    H,
  ),
}


@pytest.mark.parametrize("name", LOWERED)
def test_it_lowers_for_cuda_and_tpu(name):
  fn, *inputs = LOWERED[name]
  exported = export.export(jax.jit(fn), platforms=("cuda", "tpu"))(*inputs)
  assert exported.platforms == ("cuda", "tpu")


def test_attention_takes_the_arguments_of_the_design_in_order():
  names = list(inspect.signature(oflax.o_attention).parameters)
  assert (
    names
    == (
      "query key value receiver_presence source_presence mask bias is_causal"
      " local_window_size receiver_positions source_positions receiver_segments"
      " source_segments scale dropout_rate dropout_key broadcast_dropout"
      " precision implementation return_support axis_name"
    ).split()
  )


def test_importing_the_package_does_not_import_what_only_commands_need():
  heavy = {
    "sklearn",
    "matplotlib",
    "typer",
    "safetensors",
    "tokenizers",
    "oflax.retrofit",
    "oflax.sharding",
    "oflax.training",
    "oflax.studies",
  }
  command = "import oflax, sys; print(*sys.modules)"
  result = subprocess.run(
    [sys.executable, "-c", command], capture_output=True, text=True, check=True
  )
  assert "oflax" in result.stdout.split()
  assert not heavy & set(result.stdout.split())
