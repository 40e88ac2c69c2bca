"""Statistics of all shards: numerator and mass are summed apart."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

import oflax

B, T = 2, 16
RNG = np.random.default_rng(0)
TOKENS = RNG.normal(size=(B, T, 3)).astype(np.float32)
PRESENCE = RNG.random((B, T)).astype(np.float32) * (RNG.random((B, T)) > 0.3)
PRESENCE[:, 4:6] = 0  # One shard of nothing but nulls.


def mean(h, p, **options):
  return oflax.present_mean(h[..., 0], p, **options)


def rank(h, p, **options):
  return oflax.presence_rank(p, **options).astype(h.dtype)


FUNCTIONS = {
  "o_standardize": (oflax.o_standardize, P(None, "s")),
  "o_pool": (oflax.o_pool, P()),
  "present_mean": (mean, P()),
  "presence_rank": (rank, P(None, "s")),
}


def sharded(fn, out_specs):
  return jax.shard_map(
    functools.partial(fn, axis_name="s"),
    mesh=Mesh(np.array(jax.devices()), ("s",)),
    in_specs=P(None, "s"),
    out_specs=out_specs,
  )


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("present", [True, False])
def test_it_is_the_function_of_all_tokens(name, present):
  fn, out_specs = FUNCTIONS[name]
  p = PRESENCE if present else np.zeros_like(PRESENCE)

  def both(fn):
    def loss(h, p):
      outputs = fn(h, p)
      return jnp.sum(jnp.sin(outputs)), outputs

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(TOKENS, p)

  got, want = both(sharded(fn, out_specs)), both(fn)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    atol = 8 * np.finfo(np.float32).eps * np.max(np.abs(b), initial=1)
    np.testing.assert_allclose(a, b, atol=atol, rtol=0)
  if not present:
    assert not any(np.any(x) for x in jax.tree.leaves(got))


def test_several_axes_may_share_the_losses():
  mean = jax.shard_map(
    functools.partial(oflax.present_mean, axis_name=("d", "s")),
    mesh=Mesh(np.array(jax.devices()).reshape(2, 4), ("d", "s")),
    in_specs=P("d", "s"),
    out_specs=P(),
  )
  losses = TOKENS[..., 0]
  np.testing.assert_allclose(
    jax.jit(mean)(losses, PRESENCE),
    oflax.present_mean(losses, PRESENCE),
    rtol=1e-6,
  )


def test_a_constant_column_standardises_to_0():
  standardize = sharded(oflax.o_standardize, P(None, "s"))
  out = jax.jit(standardize)(np.full((B, T, 1), 2000, np.float32), PRESENCE)
  assert np.max(np.abs(out)) <= 1e-5
