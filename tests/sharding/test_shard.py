"""To train on a mesh is to train on one device, whatever the mesh."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np
import optax
import pytest

import oflax
from oflax import sharding
from oflax import training
from oflax.linen import OTransformer

MESHES = {
  "data": ((8,), ("data",)),
  "fsdp": ((8,), ("fsdp",)),
  "tensor": ((8,), ("tensor",)),
  "sequence": ((8,), ("sequence",)),
  "all three": ((2, 2, 2), ("data", "tensor", "sequence")),
}
STEPS = 20
FEATURES = 16
MODEL = OTransformer(
  num_layers=2,
  num_heads=8,
  mlp_dim=16,
  rotary=True,
  is_causal=True,
  scan_layers=True,
  final_norm=True,
)
TX = optax.sgd(0.05)
KEY = jax.random.key(0)


def mesh_of(name):
  shape, axes = MESHES[name]
  return Mesh(np.array(jax.devices()).reshape(shape), axes)


def tokens(length, samples=8):
  """30 % nulls, an empty sample, and the last eighth of all: nothing."""
  rng = np.random.default_rng(length)
  h = rng.normal(size=(samples, length, FEATURES)).astype(np.float32)
  h *= rng.random((samples, length, 1)) > 0.3
  h[:, -(-length // 8) * 7 :] = 0
  h[1:2] = 0
  return h


def loss_fn(variables, h, rng):
  outputs = MODEL.apply(variables, h)
  errors = jnp.mean(jnp.square(outputs - jnp.roll(h, 1, axis=-1)), axis=-1)
  return oflax.present_mean(errors, oflax.presence(h)), {}


def shard(name, h, tx=TX):
  return sharding.shard(
    MODEL, mesh_of(name), tx=tx, key=KEY, batch=h, loss_fn=loss_fn
  )


def trained(state, step, h, steps=STEPS):
  losses = []
  for _ in range(steps):
    state, metrics = step(state, h)
    losses.append(float(metrics["loss"]))
  return state, losses


@pytest.fixture(scope="module")
def alone():
  """What one device makes of each length."""
  found = {}

  def of(length):
    if length not in found:
      h = tokens(length)
      state = training.create_state(MODEL, TX, KEY, h)
      found[length] = trained(state, training.train_step(loss_fn), h)
    return found[length]

  return of


def agree(got, want, atol=1e-5):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=0), got, want
  )


@pytest.mark.parametrize(
  ("name", "length"),
  [
    # 16 tokens all meshes divide, 13 none.
    ("data", 16),
    ("fsdp", 13),
    ("tensor", 16),
    ("sequence", 13),
    ("all three", 16),
    ("all three", 13),
  ],
)
def test_twenty_steps_are_those_of_one_device(name, length, alone):
  """Losses, and parameters under SGD: so forward and gradients, too."""
  state, step, *_ = shard(name, tokens(length))
  state, losses = trained(state, step, tokens(length))
  want, want_losses = alone(length)
  assert losses[-1] < 0.9 * losses[0]
  agree(losses, want_losses)
  agree(state.params, want.params)


def test_twenty_steps_of_adam_are_those_of_one_device():
  """But for the bias of the keys: its gradient is 0, and rounding decides."""
  h = tokens(13)
  tx = optax.adam(1e-3)
  want = training.create_state(MODEL, tx, KEY, h)
  want, want_losses = trained(want, training.train_step(loss_fn), h)
  state, step, *_ = shard("all three", h, tx)
  state, losses = trained(state, step, h)
  agree(losses, want_losses)
  for params in (state.params, want.params):
    del params["blocks"]["attention"]["key"]["bias"]
  agree(state.params, want.params)


@pytest.mark.parametrize("name", ["sequence", "all three"])
def test_outputs_are_those_of_one_device_and_nulls_are_0(name):
  h = tokens(13)
  placed = shard(name, h)
  with sharding.on_mesh(placed.mesh, placed.rules):
    got = jax.jit(MODEL.apply)(placed.state.variables, h)
  variables = jax.device_get(placed.state.variables)
  agree(got, jax.jit(MODEL.apply)(variables, h))
  assert not np.any(np.asarray(got)[~np.any(h, axis=-1)])


def test_an_empty_batch_changes_nothing():
  h = np.zeros_like(tokens(16))
  state, step, *_ = shard("all three", h)
  after, metrics = step(state, h)
  assert metrics["loss"] == 0
  agree(after.params, jax.device_get(state.params), atol=0)


def test_parameters_and_moments_are_cut_from_the_start():
  mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("fsdp", "tensor"))
  state, *_ = sharding.shard(
    MODEL,
    mesh,
    tx=optax.adam(1e-3),
    key=KEY,
    batch=tokens(16),
    loss_fn=loss_fn,
  )
  for tree in (state.params, state.opt_state[0].mu):
    kernel = tree["blocks"]["ffn"]["up"]["kernel"]
    assert kernel.shape == (2, FEATURES, 16)
    assert kernel.addressable_shards[0].data.shape == (2, FEATURES // 2, 4)


def test_the_state_is_that_of_create_state():
  h = tokens(16)
  want = training.create_state(MODEL, TX, KEY, h)
  got = shard("all three", h).state
  assert jax.random.key_data(got.key).tolist() == (
    jax.random.key_data(want.key).tolist()
  )
  agree(got.variables, want.variables, atol=1e-7)


def test_what_no_rule_names_is_refused():
  mesh = Mesh(np.array(jax.devices()), ("pipeline",))
  with pytest.raises(ValueError, match="mesh has the axis 'pipeline'"):
    sharding.shard(
      MODEL, mesh, tx=TX, key=KEY, batch=tokens(16), loss_fn=loss_fn
    )


def test_fit_calibrates_saves_and_goes_on_on_a_mesh(tmp_path):
  """And what one mesh saved, another goes on with."""
  h = tokens(13)
  options = {"num_steps": 2, "log_every": 1, "checkpoint_every": 1}
  state, step, *_ = shard("all three", h, optax.adam(1e-2))
  after = training.fit(state, step, lambda i: h, directory=tmp_path, **options)
  taus = jax.tree.leaves(after.collections["calibration"])
  assert all(np.all(np.asarray(tau) != 1) for tau in taus)
  mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tensor"))
  state, step, *_ = sharding.shard(
    MODEL,
    mesh,
    tx=optax.adam(1e-2),
    key=KEY,
    batch=h,
    loss_fn=loss_fn,
  )
  _, restored = training.Checkpoints(tmp_path / "checkpoints").restore(state)
  agree(restored.params, after.params, atol=0)
  kernel = restored.params["blocks"]["ffn"]["up"]["kernel"]
  assert kernel.addressable_shards[0].data.shape == (2, FEATURES // 4, 8)


def test_a_compacted_model_is_itself_on_a_mesh():
  model = MODEL.clone(compact=True, scan_layers=False, num_layers=1)
  h = tokens(13)
  variables = jax.jit(model.init)(KEY, h)
  with sharding.on_mesh(mesh_of("all three")):
    got = jax.jit(model.apply)(variables, h)
  agree(got, jax.jit(model.apply)(variables, h))
