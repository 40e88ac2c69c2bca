"""The host variant is the network of the package `tabpfn`, to 1e-5."""

import jax
import numpy as np
import pytest

from oflax.retrofit.tabpfn_v3 import BarDistribution
from oflax.retrofit.tabpfn_v3 import default_borders
from oflax.retrofit.tabpfn_v3 import files
from oflax.retrofit.tabpfn_v3 import load
from oflax.retrofit.tabpfn_v3 import save
from tests.retrofit import host
from tests.retrofit import oracle

TABLES = tuple(oracle.tables())


def tabpfn():
  return pytest.importorskip(
    "tabpfn", reason="compares with the package tabpfn, which is no dependency"
  )


def ported(folder, config, net, variant="host"):
  path = folder / "model.safetensors"
  entries = {"architecture_name": "tabpfn_v3", "config": config}
  files.write(path, oracle.state(net), entries)
  return load(path, variant)


@pytest.mark.parametrize("name", TABLES)
def test_the_fixture_agrees(name):
  stored = host.expected()
  x, y, want = (stored[f"{name}/{part}"] for part in ("x", "y", "logits"))
  got = host.program("host")(host.model()[1], x, y)
  assert np.std(want) > 0.1
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_bars_agree_with_the_package():
  stored = host.expected()
  bars = BarDistribution(host.model()[1]["constants"]["borders"])
  logits = stored["ordinary/logits"]
  np.testing.assert_allclose(
    bars.mean(logits), stored["bars/mean"], rtol=1e-5, atol=1e-5
  )
  np.testing.assert_allclose(
    bars.log_density(logits, stored["bars/y"]),
    stored["bars/log_density"],
    rtol=1e-5,
    atol=1e-5,
  )
  # In its outer buckets the package takes quantiles of a uniform density.
  want = stored["bars/quantiles"]
  inner = (want > bars.borders[1]) & (want < bars.borders[-2])
  got = bars.quantiles(logits, stored["bars/levels"])
  assert inner.any()
  np.testing.assert_allclose(got[inner], want[inner], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("constant", [0.7, 0.1, -1234.567, 3.0, 1e-3], ids=str)
def test_a_constant_column_is_that_of_zeros(constant):
  # The package does so where the mean is exact, and else blows up an ulp of it.
  x, y = oracle.table(14, 3, 9)
  x[:, 1] = 0.0
  want = host.program("host")(host.model()[1], x, y)
  x[:, 1] = constant
  got = host.program("host")(host.model()[1], x, y)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", oracle.CONFIGS)
def test_the_package_agrees_in_every_configuration(tmp_path, name):
  tabpfn()
  config = {**oracle.SMALL, **oracle.CONFIGS[name]}
  net = oracle.network(config, seed=1)
  module, variables = ported(tmp_path, config, net)
  run = jax.jit(module.apply)
  for table, (x, y) in oracle.tables().items():
    got = run(variables, x, y)
    np.testing.assert_allclose(
      got, oracle.predict(net, x, y), atol=1e-5, err_msg=table
    )


def test_far_from_0_the_port_is_nearer_to_float64_than_the_package(tmp_path):
  tabpfn()
  net = oracle.network(oracle.SMALL)
  module, variables = ported(tmp_path, oracle.SMALL, net)
  x, y = oracle.table(14, 3, 9)
  x[:, 0] += 3e4
  got, theirs = (
    jax.jit(module.apply)(variables, x, y),
    oracle.predict(net, x, y),
  )
  want = oracle.predict(net.double(), np.float64(x), np.float64(y))
  assert np.abs(got - want).max() < np.abs(theirs - want).max()


def test_the_default_borders_are_those_of_the_package():
  tabpfn()
  for buckets in (20, 100, 5000):
    net = oracle.network({**oracle.SMALL, "num_buckets": buckets})
    want = oracle.state(net)["regression_borders"]
    np.testing.assert_array_equal(default_borders(buckets), want)


def test_the_package_reads_what_save_writes(tmp_path):
  tabpfn()
  from tabpfn import model_loading
  import torch

  module, variables = host.model()
  path = tmp_path / "model.safetensors"
  save(path, module, variables)
  net = model_loading.load_model(path=path, estimator_type="regressor")[0]
  x, y = oracle.table(9, 3, 6)
  with torch.inference_mode():
    want = oracle.predict(net.eval(), x, y)
  got = host.program("host")(variables, x, y)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_full_size_agrees(tmp_path):
  tabpfn()
  config = {"num_buckets": 5000, "icl_num_kv_heads_test": 1}
  net = oracle.network(config)
  module, variables = ported(tmp_path, config, net)
  size = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
  assert size > 58e6
  x, y = oracle.table(80, 7, 60)
  x[3, 2], x[70, 1] = np.nan, np.inf
  got = jax.jit(module.apply)(variables, x, y)
  np.testing.assert_allclose(got, oracle.predict(net, x, y), atol=1e-5)
