"""An evaluation weighs batches by what is present in them."""

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import oflax
from oflax import training
from oflax.linen import OTransformer

RNG = np.random.default_rng(0)
TOKENS = RNG.normal(size=(4, 6, 8)).astype(np.float32)
TOKENS[0, 2:] = TOKENS[2] = TOKENS[3, ::2] = 0
MODEL = OTransformer(num_layers=1, num_heads=2, mlp_dim=8)
VARIABLES = jax.jit(MODEL.init)(jax.random.key(0), TOKENS)


def loss_fn(variables, h, rng):
  del rng
  present = oflax.presence(h)
  errors = jnp.sum((MODEL.apply(variables, h) - 1) ** 2, axis=-1)
  loss = oflax.present_mean(errors, present)
  return loss, {"weight": jnp.sum(present), "twice": 2 * loss}


def test_parts_evaluate_to_the_whole():
  evaluate = training.evaluation(loss_fn)
  want = evaluate(VARIABLES, [TOKENS])
  got = evaluate(VARIABLES, [TOKENS[:1], TOKENS[1:2], TOKENS[2:]])
  assert set(got) == {"loss", "twice", "weight"}
  for name, value in want.items():
    assert got[name] == pytest.approx(value, rel=1e-5)
  assert got["twice"] == pytest.approx(2 * got["loss"], rel=1e-6)


def test_nothing_present_is_0_and_no_batch_is_refused():
  evaluate = training.evaluation(loss_fn)
  assert evaluate(VARIABLES, [0 * TOKENS])["loss"] == 0
  with pytest.raises(ValueError, match="batches must not be empty"):
    evaluate(VARIABLES, [])


def test_without_weights_batches_weigh_the_same():
  evaluate = training.evaluation(lambda variables, x, rng: (jnp.mean(x), {}))
  assert evaluate({}, [jnp.ones(1), 4 * jnp.ones(9)])["loss"] == 2.5


def test_clipping_by_the_global_norm_ignores_nulls():
  """A null adds nothing to a gradient, so nothing to its norm."""
  more = np.concatenate([np.zeros_like(TOKENS), TOKENS], axis=1)
  clip = optax.clip_by_global_norm(1e-2)

  @jax.jit
  def gradient_of(params, h):
    return jax.grad(lambda p: loss_fn({**VARIABLES, "params": p}, h, None)[0])(
      params
    )

  def clipped(h):
    params = VARIABLES["params"]
    gradient = gradient_of(params, h)
    flat, _ = ravel_pytree(gradient)
    assert jnp.linalg.norm(flat) > 1e-2
    return clip.update(gradient, clip.init(params))[0]

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7),
    clipped(more),
    clipped(TOKENS),
  )
