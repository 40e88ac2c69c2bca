"""The loss of a language model does not know of padding, gaps and packing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.linen import OLanguageModel
from oflax.sequences import pack

MODEL = OLanguageModel(11, 8, num_layers=1, num_heads=2, mlp_dim=8)
RNG = np.random.default_rng(0)
SEQUENCES = [RNG.integers(1, 11, size=n) for n in (6, 4, 2, 1)]
VARIABLES = jax.jit(MODEL.init)(jax.random.key(0), SEQUENCES[0][None])
APPLY = jax.jit(MODEL.apply)
PLACES = {
  "right": lambda n: range(n),
  "left": lambda n: range(8 - n, 8),
  "gaps": lambda n: [0, 2, 3, 5, 6, 7][:n],
}


def padded(padding):
  rows = np.zeros((4, 8), int)
  for row, ids in zip(rows, SEQUENCES, strict=True):
    row[list(PLACES[padding](len(ids)))] = ids
  return rows


@jax.jit
def loss(ids, positions=None, segments=None):
  return MODEL.apply(
    VARIABLES, ids, positions=positions, segments=segments, method="loss"
  )


def bits_apart():
  """Of every id but the first of each sequence, by the definition."""
  found = []
  for ids in SEQUENCES:
    logits = np.asarray(APPLY(VARIABLES, ids[None]))[0].astype(float)
    each = np.log2(np.sum(np.exp(logits), axis=-1))[:-1]
    found += list(each - logits[np.arange(len(ids) - 1), ids[1:]] / np.log(2))
  return np.array(found)


@pytest.mark.parametrize("compact", [False, True])
def test_padding_changes_no_logit_and_when_compacted_no_bit(compact):
  apply = jax.jit(MODEL.clone(compact=compact).apply)
  right, *others = (
    np.asarray(apply(VARIABLES, padded(padding)))[padded(padding) != 0]
    for padding in PLACES
  )
  assert len(right) == 13
  for other in others:
    np.testing.assert_allclose(
      other, right, rtol=0, atol=0 if compact else 1e-5
    )


@pytest.mark.parametrize("compact", [False, True])
def test_what_batch_mates_hold_changes_no_bit(compact):
  apply = jax.jit(MODEL.clone(compact=compact).apply)
  rows = padded("gaps")
  others = rows.copy()
  others[1:] = np.where(rows[1:], 1 + (rows[1:] + 4) % 10, 0)
  want, got = apply(VARIABLES, rows), apply(VARIABLES, others)
  np.testing.assert_array_equal(got[0], want[0])
  assert np.any(got[1] != want[1])


@pytest.mark.parametrize("padding", PLACES)
def test_padding_changes_nothing(padding):
  bits, weight = loss(padded(padding))
  want = bits_apart()
  assert weight == len(want) == 9
  np.testing.assert_allclose(bits, np.mean(want), rtol=1e-5)


def test_packed_sequences_cost_what_they_cost_apart():
  packed = pack(SEQUENCES, 7)
  bits, weight = loss(packed.tokens, packed.positions, packed.segments)
  want = bits_apart()
  assert weight == len(want)
  np.testing.assert_allclose(bits, np.mean(want), rtol=1e-5)


def test_without_a_next_token_the_loss_is_0():
  for ids in ([[0, 3, 0]], [[0, 0]], [[4]]):
    bits, weight = loss(jnp.array(ids))
    assert bits == weight == 0
