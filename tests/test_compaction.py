"""Compaction is exact: to the bit, for every insertion, in every bucket."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax
from oflax import laws
from oflax import linen

MODEL = linen.OTransformer(1, 2, 12, rotary=True, is_causal=True)
VARIABLES = MODEL.init(jax.random.key(0), jnp.ones((2, 8)))


@jax.jit
def compacted_model(h):
  model = oflax.compacted(
    lambda h: MODEL.apply(VARIABLES, h), buckets=(4, 8, 16, 32)
  )
  return model(h)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("count", [1, 4, 5, 8])
def test_closure_holds_bit_for_bit(dtype, count):
  h = jax.random.normal(jax.random.key(count), (count, 8), dtype)
  for positions in ([0], [count], [0, 2, 3], list(range(1, 9))):
    positions = [p for p in positions if p < count + len(positions)]
    laws.assert_o_closure(compacted_model, h, positions, bitwise=True)


def test_it_agrees_with_the_plain_model_in_a_batch():
  h = jax.random.normal(jax.random.key(1), (3, 9, 8))
  h = oflax.nullify(h, jax.random.bernoulli(jax.random.key(2), 0.5, (3, 9)))
  want = MODEL.apply(VARIABLES, h)
  np.testing.assert_allclose(compacted_model(h), want, atol=2e-6)


def test_parameter_gradients_agree_and_nulls_get_none():
  h = jax.random.normal(jax.random.key(1), (9, 8)).at[3:6].set(0)

  def loss(variables, h, compacted):
    apply = lambda h: MODEL.apply(variables, h)
    return jnp.sum((oflax.compacted(apply) if compacted else apply)(h) ** 2)

  gradient = jax.jit(jax.grad(loss, (0, 1)), static_argnums=2)
  got, got_h = gradient(VARIABLES, h, True)
  want, want_h = gradient(VARIABLES, h, False)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), got, want
  )
  np.testing.assert_allclose(got_h, want_h, atol=2e-5)
  assert not np.any(got_h[3:6])


def test_aligned_arguments_follow_their_tokens():
  h = jnp.arange(6.0)[:, None]  # token 0 is null
  other = {"a": jnp.arange(6), "b": jnp.arange(12).reshape(6, 2)}
  fn = oflax.compacted(
    lambda h, other, nothing, *, factor: (
      h * factor + (other["a"] + other["b"][:, 1])[:, None]
    )
  )
  got = fn(h, other, None, factor=2.0)[:, 0]
  want = jnp.where(h[:, 0] == 0, 0, 2 * h[:, 0] + 3 * jnp.arange(6) + 1)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(0, 2), (3, 0, 2), (0, 4, 2)])
def test_empty_axes(shape):
  out = jax.jit(oflax.compacted(lambda h: 2 * h))(jnp.ones(shape))
  assert out.shape == shape


def test_nan_and_vanished_presence_are_not_null():
  h = jnp.array([[0.0, 0.0], [jnp.nan, 1.0], [1e-25, 0.0], [0.0, 0.0]])
  front, _, index = oflax.compact(h, 3)
  assert index.tolist() == [1, 2, 4]
  np.testing.assert_array_equal(front[:2], h[1:3])
  np.testing.assert_array_equal(oflax.expand(front, index, 4), h)


def test_nothing_is_lost_silently():
  h = jnp.ones((2, 4, 1)).at[0].set(0)
  with pytest.raises(ValueError, match=r"size must hold .* 4, got 3"):
    oflax.compact(h, 3)
  front, _, _ = jax.jit(oflax.compact, static_argnums=1)(h, 3)
  assert jnp.isnan(front).all((1, 2)).tolist() == [False, True]


def test_a_changing_share_of_nulls_does_not_recompile():
  traces = []

  @jax.jit
  def run(h):
    traces.append(h.shape)
    return oflax.compacted(lambda h: h + h)(h)

  for count in (0, 1, 40, 100):
    h = jnp.where(jnp.arange(100)[:, None] < count, 1.0, 0.0)
    np.testing.assert_array_equal(run(h), 2 * h)
  assert len(traces) == 1


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: oflax.compacted(abs, buckets=(4, 4)), r"buckets .*\(4, 4\)"),
    (lambda: oflax.compacted(abs, buckets=()), r"buckets .*got \(\)"),
    (
      lambda: oflax.compacted(abs, buckets=(4,))(jnp.ones((5, 1))),
      r"buckets must hold 5 tokens, got \(4,\)",
    ),
    (lambda: oflax.compacted(abs, buckets=(2.5, 8)), r"buckets .*\(2\.5, 8\)"),
    (lambda: oflax.compacted(abs, buckets=8), r"buckets .*got 8"),
    (lambda: oflax.compact(jnp.ones((5, 1)), -1), "size must be .*got -1"),
    (lambda: oflax.compact(jnp.ones((5, 1)), 2.0), r"size must be .*got 2\.0"),
    (
      lambda: oflax.compact(jnp.ones((5, 1), int), 5),
      "carrier must be .*int32",
    ),
    (
      lambda: oflax.expand(jnp.ones((5, 1)), jnp.arange(5), -3),
      "n must be .*got -3",
    ),
    (
      lambda: oflax.expand(jnp.ones((5, 1)), jnp.ones(5), 5),
      "index must be of integers, got float32",
    ),
    (
      lambda: oflax.compact(jnp.ones((5, 1)), 5, jnp.ones(4)),
      r"aligned arrays .*\(5,\) first, got shape \(4,\)",
    ),
    (
      lambda: oflax.expand(jnp.ones((5, 1)), jnp.ones(4, int), 5),
      r"values must have shape .*got \(5, 1\)",
    ),
  ],
)
def test_wrong_input_is_named_with_its_value(call, message):
  with pytest.raises(ValueError, match=message):
    call()
