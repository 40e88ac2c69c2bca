"""Packed sequences are computed as if each were alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax
from oflax.linen import OTransformer
from oflax.sequences import pack
from oflax.sequences import unpack

RNG = np.random.default_rng(0)
SEQUENCES = [
  RNG.normal(size=(n, 8)).astype(np.float32) for n in (5, 2, 7, 1, 4, 3)
]
MODEL = OTransformer(
  num_layers=2,
  num_heads=2,
  mlp_dim=12,
  rotary=True,
  is_causal=True,
  bias_init=jax.nn.initializers.normal(0.3),
)
VARIABLES = jax.jit(MODEL.init)(jax.random.key(0), SEQUENCES[0])
PACKED = pack(SEQUENCES, 8)


@jax.jit
def run(variables):
  return MODEL.apply(
    variables,
    PACKED.tokens,
    positions=PACKED.positions,
    segments=PACKED.segments,
  )


@jax.jit
def apart(variables):
  return [MODEL.apply(variables, sequence) for sequence in SEQUENCES]


def test_rows_are_as_few_as_first_fit_decreasing_finds():
  assert PACKED.tokens.shape == (3, 8, 8)
  for sequence, part in zip(
    SEQUENCES, unpack(PACKED.tokens, PACKED), strict=True
  ):
    np.testing.assert_array_equal(part, sequence)
  used = PACKED.segments > 0
  assert used.sum() == sum(map(len, SEQUENCES))
  assert not PACKED.tokens[~used].any()


def test_outputs_are_those_of_the_sequences_apart():
  parts = unpack(run(VARIABLES), PACKED)
  for got, want in zip(parts, apart(VARIABLES), strict=True):
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_losses_and_gradients_are_those_of_the_sequences_apart():
  def errors(out):
    return jnp.sum(jnp.sin(out), axis=-1)

  def packed_loss(params):
    out = run({**VARIABLES, "params": params})
    present = (PACKED.segments > 0).astype(np.float32)
    return oflax.present_mean(errors(out), present)

  def loss_apart(params):
    variables = {**VARIABLES, "params": params}
    each = [jnp.sum(errors(out)) for out in apart(variables)]
    return sum(each) / sum(map(len, SEQUENCES))

  got = jax.jit(jax.value_and_grad(packed_loss))(VARIABLES["params"])
  want = jax.jit(jax.value_and_grad(loss_apart))(VARIABLES["params"])
  largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * largest),
    got,
    want,
  )


def test_nothing_packs_into_nothing():
  packed = pack([], 4)
  assert packed.tokens.shape == (0, 4)
  assert unpack(packed.tokens, packed) == []
  packed = pack([np.zeros((0, 2)), np.ones((3, 2))], 4)
  assert [len(part) for part in unpack(packed.tokens, packed)] == [0, 3]


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: pack([[1, 2, 3]], 2), "length must hold .* 3, got 2"),
    (lambda: pack([[1]], 0), "length must be .*got 0"),
    (
      lambda: pack([np.ones(2), np.ones((2, 1))], 4),
      "sequences must be .*alike",
    ),
    (lambda: pack([1], 4), r"sequences must be .*got .*\(\(\), 'int64'\)"),
    (
      lambda: unpack(np.ones((2, 8)), PACKED),
      r"values must be \(3, 8\) first, got shape \(2, 8\)",
    ),
  ],
)
def test_wrong_input_is_named_with_its_value(call, message):
  with pytest.raises(ValueError, match=message):
    call()
