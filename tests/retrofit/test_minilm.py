"""MiniLM is BERT as PyTorch computes it, and padding does not exist in it."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.retrofit import minilm

TINY = pathlib.Path(__file__).with_name("tiny_bert")
EXPECTED = np.load(TINY / "expected.npz")
IDS, VECTORS = EXPECTED["ids"], EXPECTED["vectors"]


@pytest.fixture(scope="module")
def host():
  return minilm.load(TINY, "host")


@pytest.fixture(scope="module")
def tau(host):
  return minilm.measure_tau(host.encoder, host.variables, IDS)


def moved(ids, length, seed=None):
  """The sentences padded to a length: at the end, or in places by a seed."""
  out = np.zeros((len(ids), length), ids.dtype)
  for row, sentence in zip(out, ids, strict=True):
    tokens = sentence[sentence != 0]
    places = np.arange(len(tokens))
    if seed is not None:
      rng = np.random.default_rng(seed)
      places = np.sort(rng.choice(length, len(tokens), replace=False))
    row[places] = tokens
  return out


def test_the_host_is_bert_as_pytorch_computes_it(host):
  np.testing.assert_allclose(host.embed(IDS), VECTORS, atol=1e-5)
  padded = host.embed(moved(IDS, 40))
  np.testing.assert_allclose(padded, VECTORS, atol=1e-5)


@pytest.mark.parametrize("compact", [True, False])
def test_full_tends_to_the_masked_host_as_tau_falls(host, compact):
  tau = minilm.measure_tau(host.encoder, host.variables, IDS, alpha=1e-7)
  full = minilm.load(TINY, compact=compact, tau=tau)
  np.testing.assert_allclose(full.embed(IDS), VECTORS, atol=1e-5)


def test_padding_changes_no_bit_of_full(tau):
  """At the end, in front or in between; more of it than there are positions."""
  model = minilm.load(TINY, tau=tau)
  want = np.asarray(model.embed(IDS))
  for seed in (None, 0, 1):
    np.testing.assert_array_equal(model.embed(moved(IDS, 64, seed)), want)


def test_padding_changes_dense_full_by_rounding_and_attention_by_much(tau):
  full = minilm.load(TINY, compact=False, tau=tau)
  np.testing.assert_allclose(
    full.embed(moved(IDS, 64, seed=0)), full.embed(IDS), atol=1e-5
  )
  attention = minilm.load(TINY, "attention", tau=tau)
  change = attention.embed(moved(IDS, 40)) - attention.embed(IDS)
  assert np.max(np.abs(change)) > 0.01


def test_batch_mates_change_nothing(tau):
  model = minilm.load(TINY, tau=tau)
  ids = moved(IDS, 64)
  want = np.asarray(model.embed(ids))
  # Other mates in the same bucket: no bit.
  others = ids.copy()
  others[1:] = np.where(ids[1:] != 0, 59 - ids[1:], 0)
  np.testing.assert_array_equal(model.embed(others)[0], want[0])
  # No mates, or one that asks for a larger bucket: rounding.
  alone = model.embed(ids[1:2, :12])
  np.testing.assert_allclose(alone[0], want[1], atol=1e-5)
  others[3, :48] = 7
  np.testing.assert_allclose(model.embed(others)[0], want[0], atol=1e-5)


@pytest.mark.parametrize("variant", ["host", "attention", "full"])
def test_no_tokens_are_the_vector_zero(tau, variant):
  model = minilm.load(TINY, variant, tau=tau)
  ids = np.stack([IDS[0], 0 * IDS[0]])
  vectors = np.asarray(model.embed(ids))
  assert np.all(np.isfinite(vectors))
  assert np.linalg.norm(vectors[0]) == pytest.approx(1, abs=1e-6)
  if variant == "full":
    np.testing.assert_array_equal(vectors[1], 0)
    assert model.embed(np.zeros((0, 5), int)).shape == (0, 24)
    assert model.embed(np.zeros((2, 0), int)).shape == (2, 24)


def test_it_may_be_embedded_and_differentiated_inside_jit(tau):
  model = minilm.load(TINY, tau=tau)

  def loss(params, ids):
    variables = {**model.variables, "params": params}
    vectors = minilm.MiniLM(model.encoder, variables).embed(ids)
    return jnp.sum(vectors[0] * vectors[1])

  empty = np.concatenate([IDS[:2], 0 * IDS[:1]])
  gradient = jax.jit(jax.grad(loss))(model.variables["params"], empty)
  leaves = jax.tree.leaves(gradient)
  assert all(np.all(np.isfinite(x)) for x in leaves)
  # The pad's own row is not part of the model.
  np.testing.assert_array_equal(gradient["words"]["embedding"][0], 0)
  assert np.any(gradient["words"]["embedding"][IDS[0, 0]] != 0)


@pytest.mark.parametrize(
  ("ids", "message"),
  [
    (np.ones((2, 3)), "ids must be integers, got float64"),
    (np.ones(3, int), r"ids must be \[B, n\], got shape \(3,\)"),
    (np.full((1, 3), 56), r"ids must be in \[0, 56\), got 56"),
    (np.full((1, 3), -1), r"ids must be in \[0, 56\), got -1"),
    (np.ones((1, 49), int), "ids must have at most 48 tokens .*, got 49"),
  ],
)
def test_what_are_no_ids_is_refused(tau, ids, message):
  with pytest.raises(ValueError, match=message):
    minilm.load(TINY, tau=tau).embed(ids)


def test_ordinary_positions_end_with_the_table(host):
  with pytest.raises(ValueError, match="ids must be at most 48 long"):
    host.embed(np.zeros((1, 49), int))
