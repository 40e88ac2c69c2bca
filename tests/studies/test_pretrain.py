"""Pretraining: stopped or not the result is one, and its file loads."""

import dataclasses
import functools
import shutil

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from oflax.retrofit import tabpfn_v3
from oflax.retrofit.tabpfn_v3 import blocks
from oflax.retrofit.tabpfn_v3 import files
from oflax.retrofit.tabpfn_v3.stages import constant
from oflax.studies import pretrain
from oflax.studies import pretrain_loss
from oflax.studies import pretrain_optimizer
from oflax.studies import pretrain_report
from oflax.studies import prior
from oflax.training.metrics import read_metrics
from tests.retrofit import host

CONFIG = dataclasses.replace(host.TINY, num_buckets=10, softmax_temperature=1.0)
STEPS = 5


class StopError(Exception):
  pass


class Rows(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.RMSNorm(name="output_norm")(x)


class Toy(nn.Module):
  """Stands in for the network, whose gradient takes long to compile."""

  config: tabpfn_v3.V3Config
  variant: str = "host"
  implementation: str | None = None

  @nn.compact
  def __call__(self, x, y):
    borders = tabpfn_v3.default_borders(self.config.num_buckets)
    constant(self, "borders", lambda: jnp.asarray(borders))
    tokens = Rows(name="row_embedder")(x[..., y.shape[-1] :, :1])
    return nn.Dense(self.config.num_buckets, name="row_target")(tokens)


def draw(key, *, tables, rows, columns, train):
  """A prior that takes no time to compile."""
  x = jax.random.normal(key, (tables, rows, columns))
  return x, x[:, :train, 0], x[:, train:, 0]


WAKING = pretrain_loss.waking


@pytest.fixture(scope="module", autouse=True)
def small():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(prior, "draw", draw)
    patch.setattr(pretrain, "TabPFNV3", Toy)
    patch.setattr(pretrain_loss, "waking", lambda *_: jnp.float32(0))
    patch.setattr(pretrain, "TABLES", 2)
    patch.setattr(pretrain, "ROWS", 12)
    patch.setattr(pretrain, "CHECKPOINT_EVERY", 2)
    patch.setattr(pretrain, "LOG_EVERY", 1)
    patch.setattr(pretrain, "VALID_EVERY", 2)
    patch.setattr(pretrain, "VALID_TABLES", 2)
    patch.setattr(pretrain, "VALID_SHAPE", (3, 8))
    yield


def train(folder, resume=False, on_row=None):
  return pretrain.train(
    steps=STEPS,
    directory=folder,
    resume=resume,
    config=CONFIG,
    shapes=[(3, 8)],
    on_row=on_row,
  )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  folder = tmp_path_factory.mktemp("unbroken")
  return folder, train(folder)


def test_a_stopped_run_resumes_bit_for_bit(tmp_path, unbroken):
  def stop(step, row):
    if step == 3:
      raise StopError

  with pytest.raises(StopError):
    train(tmp_path, on_row=stop)
  state = train(tmp_path, resume=True)
  folder, expected = unbroken
  for x, y in zip(
    jax.tree.leaves((state.variables, state.opt_state)),
    jax.tree.leaves((expected.variables, expected.opt_state)),
    strict=True,
  ):
    np.testing.assert_array_equal(x, y)
  written = [f / "metrics.csv" for f in (tmp_path, folder)]
  assert written[0].read_text() == written[1].read_text()


def test_the_average_is_validated_now_and_then(unbroken):
  rows = read_metrics(unbroken[0] / pretrain_report.METRICS)
  assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
  known = [row["step"] for row in rows if np.isfinite(row["valid_loss"])]
  assert known == [2, 4, 5]
  assert all(np.isfinite(row["loss"]) for row in rows)


@pytest.fixture(scope="module")
def fresh():
  """The real network, before its first step."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(pretrain, "TabPFNV3", tabpfn_v3.TabPFNV3)
    patch.setattr(pretrain_loss, "waking", WAKING)
    pretrain._programs.cache_clear()
    state = pretrain.fresh_state(0, STEPS, CONFIG)
    *_, loss_fn = pretrain._programs(CONFIG, STEPS)
    pretrain._programs.cache_clear()
  return state, loss_fn, pretrain.batches(0, [(3, 8)])(0)


def test_the_loss_of_the_network_starts_near_that_of_chance(fresh):
  state, loss_fn, batch = fresh
  loss, metrics = loss_fn(state.variables, batch, None)
  assert 1 < loss < 4
  assert 0 < metrics["mse"] < 10


def test_the_weights_written_load_strictly(tmp_path, unbroken, fresh):
  state, *_ = fresh
  shutil.copy(unbroken[0] / "metrics.csv", tmp_path)
  (tmp_path / pretrain_report.SOURCE).write_text('{"commit": "c0ffee"}')
  pretrain_report.write(tmp_path, state, seed=0)
  assert (tmp_path / "curves.png").stat().st_size > 1000
  path = tmp_path / pretrain_report.WEIGHTS
  module, variables = tabpfn_v3.load(path)
  assert module.config == CONFIG
  expected = pretrain.averaged_variables(state)
  jax.tree.map(
    np.testing.assert_array_equal, variables["params"], expected["params"]
  )
  np.testing.assert_array_equal(
    variables["constants"]["borders"], pretrain.borders(10)
  )
  assert all(tau != 1 for tau in jax.tree.leaves(variables["calibration"]))
  notes = files.read(path).entries["pretraining"]
  assert notes == {"seed": 0, "steps": 0, "commit": "c0ffee"}


def test_any_checkpoint_can_be_exported(tmp_path, unbroken, monkeypatch):
  folder, _ = unbroken
  shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
  (tmp_path / "settings.json").write_text(f'{{"seed": 0, "steps": {STEPS}}}')
  shutil.rmtree(tmp_path / "checkpoints" / str(STEPS))
  fresh_state = functools.partial(pretrain.fresh_state, config=CONFIG)
  monkeypatch.setattr(pretrain, "fresh_state", fresh_state)
  seen = []
  monkeypatch.setattr(
    pretrain_report, "write", lambda *arguments: seen.append(arguments)
  )
  assert pretrain_report.export(tmp_path) == 4
  ((where, exported, seed),) = seen
  assert (where, seed, int(exported.step)) == (tmp_path, 0, 4)
  shutil.rmtree(tmp_path / "checkpoints" / "4")
  with pytest.raises(ValueError, match="no checkpoint"):
    pretrain_report.export(tmp_path)


def test_batches_depend_on_their_index_alone():
  batch_at = pretrain.batches(0, [(3, 8)])
  first = batch_at(0)
  batch_at(1)
  jax.tree.map(np.testing.assert_array_equal, batch_at(0), first)
  assert not np.array_equal(batch_at(1)[1], first[1])


def test_every_shape_occurs(monkeypatch):
  monkeypatch.setattr(
    prior, "draw", lambda key, **shape: (shape["columns"], shape["train"])
  )
  batch_at = pretrain.batches(0)
  assert {batch_at(i)[:2] for i in range(100)} == set(pretrain.SHAPES)


def test_what_wakes_null_rows_costs_something_later():
  batch_at = pretrain.batches(0, [(3, 8)])
  costs = [float(batch_at(i)[-1]) for i in (0, pretrain.WAKING_FROM)]
  assert costs == [0, pytest.approx(pretrain.WAKING_COST)]


def test_waking_is_what_a_row_of_zeros_gets(fresh):
  state, *_ = fresh
  params = state.params
  block = blocks.SelfBlock(
    CONFIG, "host", num_heads=CONFIG.icl_num_heads, scaled=True
  )
  rows = jax.random.normal(jax.random.key(0), (9, CONFIG.row_dim))
  rows = rows.at[-1].set(0)
  _, seen = block.apply(
    {"params": params["block_0"]},
    rows,
    num_sources=8,
    mutable=["intermediates"],
    capture_intermediates=lambda part, _: len(part.path) <= 1,
  )
  seen = seen["intermediates"]
  update = seen["attention"]["__call__"][0][-1]
  got = WAKING(
    {"block_0": params["block_0"]},
    {"row_target_inject": {"__call__": (rows[:-1],)}, "block_0": seen},
    num_train=8,
  )
  length = jnp.mean(jnp.sum(rows[:-1] ** 2, axis=-1))
  np.testing.assert_allclose(got, jnp.sum(update**2) / length, rtol=1e-4)


def test_borders_are_fine_where_targets_are():
  borders = pretrain.borders(pretrain.CONFIG.num_buckets)
  width = np.diff(borders)
  assert np.max(width[np.abs(borders[:-1]) < 1]) < 0.1
  assert borders[0] == -prior.LIMIT
  np.testing.assert_allclose(borders, -borders[::-1], atol=1e-6)


def test_the_average_follows_the_parameters():
  tx = optax.chain(optax.sgd(1.0), pretrain_optimizer.weight_average(decay=0.5))
  params = np.float32(0)
  state = tx.init(params)
  for _ in range(30):
    updates, state = tx.update(np.float32(-1), state, params)
    params = optax.apply_updates(params, updates)
  # A constant speed of 1 is followed 1 / (1 − 0.5) − 1 behind.
  np.testing.assert_allclose(params, 30)
  np.testing.assert_allclose(pretrain_optimizer.averaged(state), 29, atol=1e-3)
