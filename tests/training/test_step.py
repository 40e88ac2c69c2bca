"""The step and the state: no retrace, nothing present, microbatches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import oflax
from oflax import training
from oflax.linen import OFFN
from tests.training import toy


def test_c19_thresholds_nulls_and_keys_do_not_trace_anew():
  traces = 0

  def counted(*args):
    nonlocal traces
    traces += 1
    return toy.loss_fn(*args)

  step = training.train_step(counted)
  state = toy.create_state()
  for index in range(3):
    state, _ = step(state, toy.batch_at(index))
  state, _ = step(state, np.zeros_like(toy.batch_at(0)))
  thresholds = jax.tree.map(lambda tau: 2 * tau, state.collections)
  state, _ = step(state.replace(collections=thresholds), toy.batch_at(0))
  state, _ = step(state.calibrate(toy.batch_at(0)), toy.batch_at(0))
  step(state.replace(key=jax.random.key(9)), toy.batch_at(0))
  assert traces == 1


@pytest.mark.parametrize("microbatches", [1, 2])
def test_c21_nothing_present(microbatches):
  step = training.train_step(toy.loss_fn, microbatches=microbatches)
  # Learning rate 1 without momentum: the update is the gradient.
  state = toy.create_state(tx=optax.sgd(1.0))
  after, metrics = step(state, np.zeros_like(toy.batch_at(0)))
  assert metrics["loss"] == 0
  jax.tree.map(np.testing.assert_array_equal, after.params, state.params)

  tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
  state, _ = step(toy.create_state(tx=tx), np.zeros_like(toy.batch_at(0)))
  state, metrics = step(state, toy.batch_at(0))
  for leaf in jax.tree.leaves((state.params, state.opt_state, metrics)):
    assert np.all(np.isfinite(leaf))


def test_c21_a_shard_with_nothing_present():
  """A blank half of the batch adds nothing to loss or gradients."""
  step = training.train_step(deterministic_loss, microbatches=2)
  state = token_state()
  tokens = np.random.default_rng(0).normal(size=(2, 3, 4))
  shards = np.concatenate([tokens, np.zeros_like(tokens)])
  alone, alone_metrics = training.train_step(deterministic_loss)(state, tokens)
  both, both_metrics = step(state, shards)
  np.testing.assert_allclose(both_metrics["loss"], alone_metrics["loss"], 1e-6)
  assert_close(both.params, alone.params)


@pytest.mark.parametrize("microbatches", [1, 2, 3])
def test_c22_microbatches_weigh_by_token(microbatches):
  """6 tokens as 1 × 6, 2 × 3, 3 × 2, of unequal presence, agree."""
  tokens = np.random.default_rng(0).normal(size=(6, 1, 4))
  size = np.array([1.0, 0.1, 0.0, 2.0, 0.3, 0.0])
  tokens = tokens * size[:, None, None]
  state = token_state()
  step = training.train_step(deterministic_loss, microbatches=microbatches)
  after, metrics = step(state, tokens)

  (loss, aux), grads = jax.value_and_grad(
    lambda params: deterministic_loss({"params": params}, tokens, None),
    has_aux=True,
  )(state.params)
  np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
  np.testing.assert_allclose(metrics["weight"], aux["weight"], rtol=1e-6)
  assert_close(
    after.params, jax.tree.map(lambda p, g: p - g, state.params, grads)
  )


def test_c22_plain_means_of_parts_would_not_agree():
  tokens = np.array([[1.0], [1.0], [0.0], [1.0]])
  losses = jnp.array([1.0, 3.0, 9.0, 8.0])
  present = oflax.presence(tokens)
  parts = [
    oflax.present_mean(losses[part], present[part])
    for part in (slice(0, 2), slice(2, 4))
  ]
  assert oflax.present_mean(losses, present) == pytest.approx(4)
  assert sum(parts) / 2 == pytest.approx(5)


def deterministic_loss(variables, tokens, rng):
  out = OFFN(8).apply(variables, tokens)
  present = oflax.presence(tokens)
  losses = jnp.sum(jnp.square(out - 1), axis=-1)
  return oflax.present_mean(losses, present), {"weight": jnp.sum(present)}


def token_state():
  return training.create_state(
    OFFN(8), optax.sgd(1.0), jax.random.key(0), jnp.ones((1, 1, 4))
  )


def assert_close(actual, expected):
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
    actual,
    expected,
  )


def test_the_state_passed_in_stays_usable():
  state = toy.create_state()
  first, _ = toy.STEP(state, toy.batch_at(0))
  again, _ = toy.STEP(state, toy.batch_at(0))
  jax.tree.map(np.testing.assert_array_equal, first.params, again.params)


def test_every_step_has_a_key_of_its_own():
  step = training.train_step(
    lambda variables, batch, rng: (
      0.0 * jax.tree.leaves(variables["params"])[0].sum(),
      {"noise": jax.random.uniform(rng)},
    )
  )
  state = toy.create_state()
  state, first = step(state, None)
  state, second = step(state, None)
  assert first["noise"] != second["noise"]


def test_calibration_starts_the_optimizer_afresh():
  module = toy.MODULE.clone(learnable_tau=True)
  ema = optax.contrib.schedule_free_sgd(0.1)
  state = toy.create_state(module, tx=ema).calibrate(toy.batch_at(0))
  jax.tree.map(np.testing.assert_array_equal, state.opt_state.z, state.params)


def test_given_variables_are_kept():
  variables = {"params": {"log_tau": jnp.float32(2.0)}}
  state = training.create_state(
    oflax.linen.OPresence(learnable=True),
    optax.sgd(0.1),
    jax.random.key(0),
    jnp.ones((1, 2)),
    variables=variables,
  )
  assert state.variables == variables


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"key": 0}, "key must come from jax.random.key, got 0"),
    ({"variables": {"calibration": {}}}, "variables lack 'params'"),
  ],
)
def test_a_wrong_argument_of_create_state_is_refused(change, message):
  arguments = {
    "module": OFFN(8),
    "tx": optax.sgd(1.0),
    "key": jax.random.key(0),
    "batch": jnp.ones((2, 4)),
  }
  with pytest.raises(ValueError, match=message):
    training.create_state(**{**arguments, **change})


def test_wrong_microbatches_are_refused():
  with pytest.raises(ValueError, match="microbatches must be at least 1"):
    training.train_step(toy.loss_fn, microbatches=0)
  step = training.train_step(toy.loss_fn, microbatches=3)
  with pytest.raises(ValueError, match=r"got 3 for shape \(2, 4, 4\)"):
    step(toy.create_state(), toy.batch_at(0))
  step = training.train_step(
    lambda *args: (toy.loss_fn(*args)[0], {}), microbatches=2
  )
  with pytest.raises(ValueError, match="need the metric 'weight'"):
    step(toy.create_state(), toy.batch_at(0))
