"""Folded attention is the definition, as exactly as 16 bits allow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax

B, T, S, N, K, H, V = 2, 5, 6, 4, 2, 12, 3
RNG = np.random.default_rng(0)
ARRAYS = [
  RNG.normal(size=shape).astype(np.float32)
  for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, V))
]
P_T = RNG.random((B, T)).astype(np.float32)
P_S = RNG.random((B, S)).astype(np.float32) * (RNG.random((B, S)) > 0.3)
MASK = RNG.random((B, N, T, S)) > 0.5
BIAS = RNG.normal(size=(B, 1, T, S)).astype(np.float32)


def attend(arrays, p=P_S, implementation="folded", **arguments):
  return oflax.o_attention(
    *arrays, P_T, p, implementation=implementation, **arguments
  )


@pytest.mark.parametrize(
  "arguments",
  [{}, {"mask": MASK}, {"bias": BIAS}, {"is_causal": True}, {"scale": 0.7}],
)
def test_it_is_the_reference(arguments):
  def both(implementation):
    def loss(arrays, p):
      out = attend(arrays, p, implementation, **arguments)
      return jnp.sum(jnp.sin(out)), out

    gradient = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    (arrays, p), out = gradient(ARRAYS, P_S)
    # The derivative by the presence of a null is not promised.
    return out, arrays, jnp.where(P_S == 0, 0, p)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5),
    both("folded"),
    both("reference"),
  )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_are_within_an_ulp_of_float64(dtype):
  arrays = [jnp.asarray(x, dtype) for x in ARRAYS]
  with jax.enable_x64(True):
    exact = attend([jnp.asarray(x, jnp.float64) for x in arrays])
  got = attend(arrays)
  assert got.dtype == dtype
  eps = float(jnp.finfo(dtype).eps)
  np.testing.assert_allclose(np.asarray(got, np.float64), exact, atol=eps)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_empty_support_gives_exactly_zero(dtype):
  arrays = [jnp.asarray(x, dtype) for x in ARRAYS]
  nobody = np.zeros_like(P_S)
  loss = lambda arrays: jnp.sum(attend(arrays, nobody).astype(jnp.float32))
  out, gradient = jax.value_and_grad(loss)(arrays)
  assert out == 0
  assert not any(np.any(np.asarray(x, np.float32)) for x in gradient)
  hidden = attend(arrays, mask=np.zeros((T, S), bool))
  assert not np.any(np.asarray(hidden, np.float32))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_null_far_above_the_present_scores_has_no_weight(dtype):
  q = jnp.ones((1, 1, 1), dtype)
  k = jnp.array([-640.0, 0.0], dtype)[:, None, None]
  v = jnp.array([1.0, 100.0], dtype)[:, None, None]
  p = jnp.array([1.0, 0.0])
  out = oflax.o_attention(q, k, v, p[:1], p, implementation="folded")
  assert out.tolist() == [[[1.0]]]


@pytest.mark.parametrize("scale", [-1.0, 0.0, 1e-30, 1e30])
def test_any_scale_is_that_of_the_reference(scale):
  got, want = (
    attend(ARRAYS, implementation=name, scale=scale)
    for name in ("folded", "reference")
  )
  np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("fill", [-3.4e38, -1e9, 1e9])
def test_a_finite_mask_fill_wakes_no_null(dtype, fill):
  q, k, v = (jnp.asarray(x[:1], dtype) for x in ARRAYS)
  bias = np.full((1, 1, T, S), fill, np.float32)
  other = v.at[:, P_S[0] == 0].set(50)
  got, changed = (
    oflax.o_attention(
      q, k, x, P_T[:1], P_S[:1], bias=bias, implementation="folded"
    ).astype(jnp.float32)
    for x in (v, other)
  )
  np.testing.assert_array_equal(got, changed)
  assert bool(jnp.all(jnp.isfinite(got)))


@pytest.mark.parametrize("null_key", [0.0, 100.0])
def test_in_float16_no_finite_score_wakes_a_null(null_key):
  q = jnp.full((5, 2, 4), 100.0, jnp.float16)
  k = jnp.full((5, 2, 4), -100.0, jnp.float16).at[2].set(null_key)
  v = jnp.asarray(RNG.normal(size=(5, 2, 4)), jnp.float16)
  p = jnp.array([1.0, 0.5, 0.0, 0.9, 0.2])
  got, want = (
    oflax.o_attention(q, k, v, p, p, implementation=name)
    for name in ("folded", "reference")
  )
  np.testing.assert_allclose(got, want, atol=2e-3)


def test_what_kernels_lack_is_refused():
  key = jax.random.key(0)
  with pytest.raises(ValueError, match=r"dropout_rate is not .*got 0\.5"):
    attend(ARRAYS, dropout_rate=0.5, dropout_key=key)
  with pytest.raises(ValueError, match=r"precision is not .*got 'highest'"):
    attend(ARRAYS, precision="highest")
