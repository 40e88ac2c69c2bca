"""Files: read whole, with every tensor used and checked, or refused."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save as serialised

from oflax.retrofit.tabpfn_v3 import V3Config
from oflax.retrofit.tabpfn_v3 import load
from oflax.retrofit.tabpfn_v3 import save
from oflax.retrofit.tabpfn_v3 import thresholds
from tests.retrofit import host

BIAS = "x_embed.bias"


@pytest.fixture
def contents():
  """Tensors and header of the fixture, to be changed and written again."""
  with safetensors.safe_open(host.FILE, framework="numpy") as file:
    tensors = {name: file.get_tensor(name) for name in file.keys()}
    header = {k: json.loads(v) for k, v in file.metadata().items()}
  return tensors, header


@pytest.fixture
def path(tmp_path):
  return tmp_path / "model.safetensors"


def write(path, tensors, header):
  metadata = {name: json.dumps(entry) for name, entry in header.items()}
  path.write_bytes(serialised(tensors, metadata))


def test_nothing_of_a_model_is_lost(path):
  module, variables = host.model()
  save(path, module, variables)
  again, loaded = load(path)
  assert again == module
  jax.tree.map(np.testing.assert_array_equal, loaded, variables)


def drop(tensors, header):
  del tensors[BIAS]


def add(tensors, header):
  tensors["x_embed.more"] = np.zeros(2, np.float32)


def reshape(tensors, header):
  tensors["x_embed.weight"] = tensors["x_embed.weight"].T.copy()


def count(tensors, header):
  tensors[BIAS] = tensors[BIAS].astype(np.int32)


def disorder(tensors, header):
  tensors["regression_borders"] = -tensors["regression_borders"]


def unbound(tensors, header):
  tensors["regression_borders"][-1] = np.inf


def diverge(tensors, header):
  tensors[BIAS][3] = np.nan


def misconfigure(tensors, header):
  header["inference_config"] = "mine"


def rename(tensors, header):
  header["architecture_name"] = "tabpfn_v3_5"


def anonymous(tensors, header):
  del header["architecture_name"]


def unconfigured(tensors, header):
  del header["config"]


def unsized(tensors, header):
  del header["config"]["num_buckets"]


def classify(tensors, header):
  header["config"]["max_num_classes"] = 10


def deepen(tensors, header):
  header["config"]["nlayers"] = 2


def misalign(tensors, header):
  header["config"]["icl_num_heads"] = 5


def forget_thresholds(tensors, header):
  header["oflax_calibration"] = {"calibration/output_presence/tau": 1.0}


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (drop, r"lacks 1 tensors: x_embed\.bias"),
    (add, r"has, beyond its config, 1 tensors: x_embed\.more"),
    (reshape, r"x_embed\.weight must have shape \(12, 6\), got \(6, 12\)"),
    (count, r"x_embed\.bias must be floating point, got int32"),
    (disorder, r"regression_borders: borders must be finite and increase"),
    (unbound, r"regression_borders must be finite, 1 are not"),
    (diverge, r"x_embed\.bias must be finite, 1 are not"),
    (misconfigure, r"inference_config must be a mapping, got 'mine'"),
    (rename, r"must have architecture_name 'tabpfn_v3', got 'tabpfn_v3_5'"),
    (anonymous, r"must have architecture_name 'tabpfn_v3', got None"),
    (unconfigured, r"has no config, got only \['architecture_name'"),
    (unsized, r"config lacks num_buckets, got only"),
    (classify, r"max_num_classes=10 is a classifier"),
    (deepen, r"lacks 16 tensors: icl_blocks\.1\."),
    (misalign, r"icl_num_heads=5 must divide a width of 24"),
    (forget_thresholds, r"must have \d+ thresholds in oflax_calibration"),
  ],
)
def test_a_file_that_does_not_fit_is_refused(path, contents, change, message):
  change(*contents)
  write(path, *contents)
  with pytest.raises(ValueError, match=message) as error:
    load(path)
  assert str(path) in str(error.value)


@pytest.mark.parametrize("share", [0, 1e-4, 0.01, 0.5, 0.999])
def test_a_file_cut_short_is_refused(path, share):
  whole = host.FILE.read_bytes()
  path.write_bytes(whole[: int(share * len(whole))])
  with pytest.raises(ValueError, match="cannot be read"):
    load(path)


def test_a_file_that_is_no_file_of_weights_is_refused(tmp_path):
  with pytest.raises(ValueError, match=r"must end in .* got .*model\.pt"):
    load(tmp_path / "model.pt")
  with pytest.raises(FileNotFoundError, match=r"names no file, got .*\.ckpt"):
    load(tmp_path / "model.ckpt")
  with pytest.raises(ValueError, match=r"variant must be .*'half'"):
    load(host.FILE, "half")


def test_a_header_too_deep_to_be_read_is_refused(path, contents):
  tensors, header = contents
  metadata = {name: json.dumps(entry) for name, entry in header.items()}
  metadata["config"] = 100_000 * "["
  path.write_bytes(serialised(tensors, metadata))
  with pytest.raises(ValueError, match="an entry that is no JSON"):
    load(path)


def test_the_state_of_a_training_loss_is_set_aside(path, contents):
  tensors, header = contents
  write(path, {**tensors, "criterion.borders": np.zeros(3)}, header)
  jax.tree.map(np.testing.assert_array_equal, load(path)[1], host.model()[1])


def test_half_precision_is_read_into_float32(path, contents):
  tensors, header = contents
  half = {k: v.astype(np.float16) for k, v in tensors.items()}
  half["regression_borders"] = tensors["regression_borders"]
  write(path, half, header)
  _, variables = load(path)
  assert {leaf.dtype.name for leaf in jax.tree.leaves(variables)} == {"float32"}
  got = variables["params"]["cell_embed"]["bias"]
  np.testing.assert_allclose(got, tensors[BIAS], rtol=1e-3)


def test_thresholds_are_computed_once_and_again_for_other_weights(
  path, contents, monkeypatch
):
  calls = []

  def counted(module, variables):
    calls.append(1)
    fill = lambda tau: jnp.full_like(tau, len(calls) / 3)
    taus = jax.tree.map(fill, host.model()[1]["calibration"])
    return {**variables, "calibration": taus}

  monkeypatch.setattr(thresholds, "calibrated", counted)
  write(path, *contents)
  module, variables = load(path, "full")
  assert module.variant == "full"
  again = load(path, "attention")[1]
  jax.tree.map(np.testing.assert_array_equal, again, variables)
  assert len(calls) == 1
  contents[0][BIAS] += 1
  write(path, *contents)
  other = load(path, "full")[1]
  assert len(calls) == 2
  assert jax.tree.structure(other) == jax.tree.structure(variables)
  pathlib.Path(f"{path}.tau.json").write_text("{")
  load(path, "full")
  assert len(calls) == 3
  # Saved, they are in the file itself.
  save(path.with_stem("saved"), module, variables)
  saved = load(path.with_stem("saved"), "full")[1]
  jax.tree.map(np.testing.assert_array_equal, saved, variables)
  assert len(calls) == 3


def test_other_variables_than_the_modules_are_not_saved(path):
  module, variables = host.model()
  config = dataclasses.replace(module.config, num_buckets=7)
  with pytest.raises(ValueError, match=r"variables must hold .* of shape \(8,"):
    save(path, module.clone(config=config), variables)
  more = {**variables, "params": {**variables["params"], "block_9": {"a": 1.0}}}
  with pytest.raises(ValueError, match="those of module, got params/block_9/a"):
    save(path, module, more)
  wrong = jax.tree.map(lambda tau: -tau, variables["calibration"])
  with pytest.raises(ValueError, match=r"variables: .*tau must be positive"):
    save(path, module, {**variables, "calibration": wrong})
  with pytest.raises(ValueError, match=r"notes must .* got \['config'\]"):
    save(path, module, variables, notes={"config": 1, "mine": 2})
  with pytest.raises(ValueError, match=r"must end in .safetensors, got .*npz"):
    save(path.with_suffix(".npz"), module, variables)
  assert not list(path.parent.iterdir())


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"num_buckets": 1}, "num_buckets must be .* at least 2, got 1"),
    ({"embed_dim": 12.0}, r"embed_dim must be int, got 12\.0"),
    ({"nlayers": True}, "nlayers must be int, got True"),
    ({"use_rope": 1}, "use_rope must be bool, got 1"),
    ({"embed_dim": 20}, "dist_embed_num_heads=8 must divide a width of 20"),
    ({"embed_dim": 8}, "even number of features a head, got 1"),
    ({"icl_num_kv_heads": 3}, "icl_num_kv_heads=3 must divide"),
    (
      {"icl_num_kv_heads": 2, "icl_num_kv_heads_test": 4},
      "icl_num_kv_heads_test=4 must be at most the 2",
    ),
    ({"softmax_temperature": 0.0}, r"softmax_temperature must be .*got 0\.0"),
  ],
)
def test_a_configuration_that_does_not_fit_is_named(fields, message):
  with pytest.raises(ValueError, match=message):
    V3Config(**{"num_buckets": 10, **fields})


def test_a_ckpt_is_read_by_torch_and_nothing_in_it_is_run(tmp_path, contents):
  torch = pytest.importorskip("torch", reason="a .ckpt is a file of PyTorch's")
  tensors, header = contents
  path = tmp_path / "model.ckpt"
  state = {k: torch.tensor(v) for k, v in tensors.items()}
  torch.save({"state_dict": state, **header}, path)
  jax.tree.map(np.testing.assert_array_equal, load(path)[1], host.model()[1])
  whole = path.read_bytes()
  path.write_bytes(whole[: len(whole) // 2])
  with pytest.raises(ValueError, match="is damaged"):
    load(path)

  class Trap:
    def __reduce__(self):
      return (pathlib.Path.touch, (tmp_path / "sprung",))

  torch.save({"state_dict": state, **header, "trap": Trap()}, path)
  with pytest.raises(ValueError, match="more than tensors and plain types"):
    load(path)
  torch.save([1, 2], path)
  with pytest.raises(ValueError, match="has no state_dict"):
    load(path)
  assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("absent", ["safetensors", "sklearn"])
def test_what_is_not_installed_is_named(absent):
  command = f"import sys; sys.modules[{absent!r}] = None"
  command += "; import oflax.retrofit.tabpfn_v3"
  result = subprocess.run(
    [sys.executable, "-c", command], capture_output=True, text=True
  )
  assert f"oflax.retrofit.tabpfn_v3 needs {absent}" in result.stderr
  assert "pip install 'oflax[retrofit]'" in result.stderr


def test_a_ckpt_without_torch_names_what_is_missing(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  path = tmp_path / "model.ckpt"
  path.touch()
  with pytest.raises(ImportError, match="torch, or convert the file"):
    load(path)


def test_the_temperature_is_that_of_the_file():
  assert host.model()[0].config.softmax_temperature == 0.8
