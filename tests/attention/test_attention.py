"""OAttention is its definition, and standard attention when all is present."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax

T, S, N, K, H, V = 5, 6, 4, 2, 8, 3
RNG = np.random.default_rng(0)
Q, KEY, VALUE = (
  RNG.normal(size=shape).astype(np.float32)
  for shape in ((2, T, N, H), (2, S, K, H), (2, S, K, V))
)
P_T = RNG.random((2, T)).astype(np.float32) * (RNG.random((2, T)) > 0.3)
P_S = RNG.random((2, S)).astype(np.float32) * (RNG.random((2, S)) > 0.3)
ONES_T, ONES_S = np.ones(T, np.float32), np.ones(S, np.float32)
MASK = RNG.random((2, N, T, S)) > 0.5
BIAS = RNG.normal(size=(2, 1, T, S)).astype(np.float32)


def definition(visible=None, bias=0.0, scale=None):
  """The sums of the definition, in float64, token by token."""
  k, v = (np.repeat(x, N // K, axis=2).astype(float) for x in (KEY, VALUE))
  s = np.einsum("btnh,bsnh->bnts", Q.astype(float), k)
  s = s * (H**-0.5 if scale is None else scale) + bias
  e = np.exp(s) * P_S[:, None, None].astype(float)
  e = e if visible is None else e * np.broadcast_to(visible, s.shape)
  total = e.sum(-1, keepdims=True)
  weights = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
  out = np.einsum("bnts,bsnv->btnv", weights, v)
  return P_T[..., None, None] * out, weights


RANK_T, RANK_S = (np.maximum(np.cumsum(p > 0, -1) - 1, 0) for p in (P_T, P_S))
DISTANCE = (RANK_S[:, None] - RANK_T[:, :, None])[:, None]
SEGMENTS = (np.arange(T) // 2, np.arange(S) // 3)
SAME = (SEGMENTS[0][:, None] == SEGMENTS[1][None])[None, None]


@pytest.mark.parametrize(
  ("arguments", "visible"),
  [
    ({}, None),
    ({"scale": 0.7}, None),
    ({"mask": MASK}, MASK),
    ({"mask": MASK[0, 0]}, MASK[:1, :1]),
    ({"bias": BIAS}, None),
    ({"bias": np.where(MASK, 0.0, -np.inf)}, MASK),
    ({"is_causal": True}, DISTANCE <= 0),
    ({"local_window_size": 1}, np.abs(DISTANCE) <= 1),
    ({"local_window_size": (0, 2)}, (DISTANCE >= 0) & (DISTANCE <= 2)),
    ({"receiver_segments": SEGMENTS[0], "source_segments": SEGMENTS[1]}, SAME),
  ],
)
def test_it_is_its_definition(arguments, visible):
  bias = BIAS if np.shape(arguments.get("bias")) == BIAS.shape else 0.0
  want, weights = definition(visible, bias, arguments.get("scale"))
  got, support = jax.jit(
    lambda q, k, v: oflax.o_attention(
      q, k, v, P_T, P_S, return_support=True, **arguments
    )
  )(Q, KEY, VALUE)
  np.testing.assert_allclose(got, want, atol=2e-6)
  np.testing.assert_array_equal(support, weights.any((1, 3)))
  if arguments.get("is_causal") or "local_window_size" in arguments:
    arguments = {
      **arguments,
      "receiver_positions": RANK_T,
      "source_positions": RANK_S,
    }
  got = oflax.o_attention_weights(Q, KEY, P_S, **arguments)
  np.testing.assert_allclose(got, weights, atol=2e-6)


@pytest.mark.parametrize(
  "arguments",
  [
    {},
    {"is_causal": True},
    {"local_window_size": (2, 1)},
    {"bias": BIAS},
    {"mask": MASK | np.eye(T, S, dtype=bool)},
  ],
)
def test_with_all_present_it_is_standard_attention(arguments):
  got = oflax.o_attention(Q, KEY, KEY, ONES_T, ONES_S, **arguments)
  standard = jax.nn.dot_product_attention(Q, KEY, KEY, **arguments)
  np.testing.assert_allclose(got, standard, atol=2e-6)


@pytest.mark.parametrize("tau", [1e-2, 1e-4, 1e-6])
def test_as_tau_vanishes_it_converges_to_attention_over_the_present(tau):
  h = jnp.asarray(RNG.normal(size=(6, N * H)), jnp.float32).at[2].set(0)
  heads, p = h.reshape(6, N, H), oflax.presence(h, tau)
  present = np.array([0, 1, 3, 4, 5])
  got = oflax.o_attention(heads, heads, heads, p, p)[present]
  few = heads[None, present]
  standard = jax.nn.dot_product_attention(few, few, few)[0]
  np.testing.assert_allclose(got, standard, atol=2 * tau + 1e-6)


def test_explicit_positions_replace_ranks():
  positions = np.array([0, 4, 8, 12, 16])
  sources = np.array([0, 3, 6, 9, 12, 15])
  got = oflax.o_attention_weights(
    Q,
    KEY,
    ONES_S,
    local_window_size=(2, 1),
    receiver_positions=positions,
    source_positions=sources,
  )
  distance = sources[None] - positions[:, None]
  near = (distance >= -2) & (distance <= 1)
  np.testing.assert_array_equal(got > 0, np.broadcast_to(near, got.shape))


def test_self_attention_weights_take_the_ranks_of_the_sources():
  p = jnp.array([0.0, 1.0, 0.0, 1.0])
  x = jnp.zeros((4, 1, 2))
  weights = oflax.o_attention_weights(x, x, p, is_causal=True)[0]
  assert weights[1].tolist() == [0, 1, 0, 0]
  assert weights[3].tolist() == [0, 0.5, 0, 0.5]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bits_agree_with_float32_to_a_few_ulp(dtype):
  arrays = [jnp.asarray(x, dtype) for x in (Q, KEY, VALUE)]
  got = oflax.o_attention(*arrays, P_T, P_S)
  want = oflax.o_attention(*(x.astype(jnp.float32) for x in arrays), P_T, P_S)
  assert got.dtype == dtype
  eps = float(jnp.finfo(dtype).eps)
  np.testing.assert_allclose(got.astype(jnp.float32), want, atol=eps, rtol=eps)


def test_forward_and_reverse_mode_agree():
  fn = lambda p: jnp.sum(oflax.o_attention(Q, KEY, VALUE, P_T, p) ** 2)
  np.testing.assert_allclose(
    jax.jacfwd(fn)(P_S), jax.jacrev(fn)(P_S), rtol=1e-4, atol=1e-5
  )


def test_a_finite_mask_fill_of_a_user_is_respected():
  lowest = np.finfo(np.float32).min
  bias = np.where(MASK, 0.0, lowest).astype(np.float32)
  bias[:, :, 0] = lowest
  got = oflax.o_attention(Q, KEY, KEY, ONES_T, ONES_S, bias=bias)
  want = jax.nn.dot_product_attention(Q, KEY, KEY, bias=bias)
  np.testing.assert_allclose(got, want, atol=2e-6)


def test_a_nan_bias_propagates_between_present_tokens_only():
  bias = jnp.zeros((T, S)).at[1, 2].set(jnp.nan)
  out = oflax.o_attention(Q, KEY, VALUE, ONES_T, ONES_S, bias=bias)
  assert jnp.isnan(out).any((0, 2, 3)).tolist() == [False, True] + [False] * 3
  absent = jnp.ones(S).at[2].set(0)
  out = oflax.o_attention(Q, KEY, VALUE, ONES_T, absent, bias=bias)
  assert bool(jnp.all(jnp.isfinite(out)))


def test_a_bias_hidden_by_the_mask_may_be_nan():
  bias = jnp.where(MASK[0, 0], 0.0, jnp.nan)
  fn = lambda q: jnp.sum(
    oflax.o_attention(q, KEY, VALUE, P_T, P_S, bias=bias, mask=MASK[0, 0])
  )
  value, gradient = jax.value_and_grad(fn)(Q)
  assert bool(jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient)))


@pytest.mark.parametrize("gap", [60.0, 100.0, 640.0])
def test_the_gradient_at_a_null_far_above_the_present_scores_is_zero(gap):
  q = jnp.ones((256, 1, 1))
  k = jnp.array([-gap, 0.0])[:, None, None]
  v = jnp.full((2, 1, 1), 100.0)

  def loss(h):
    out = oflax.o_attention(q, k, v, jnp.ones(256), oflax.presence(h))
    return jnp.sum(out**2)

  gradient = jax.grad(loss)(jnp.array([[3.0], [0.0]]))
  np.testing.assert_array_equal(gradient, np.zeros((2, 1)))


def test_ranks_of_split_tokens_count_the_shards_before():
  p = jnp.asarray(P_S[0])
  split = jax.vmap(
    lambda p: oflax.presence_rank(p, axis_name="shards"), axis_name="shards"
  )(p.reshape(3, 2))
  np.testing.assert_array_equal(split.reshape(-1), oflax.presence_rank(p))


BATCH = np.ones((2, 4), np.float32)
X = np.ones((2, 4, 4, 8), np.float32)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"implementation": "fast"}, "implementation must be .*'fast'"),
    ({"dropout_rate": 1.0}, r"dropout_rate must be in \[0, 1\), got 1.0"),
    ({"dropout_rate": -0.1}, r"dropout_rate .*got -0.1"),
    ({"dropout_rate": 0.5}, "dropout_key must be a key .*got None"),
    ({"query": X[0, 0]}, r"query must be .*got shape \(4, 8\)"),
    ({"query": X.astype(int)}, "query must be floating point, got int"),
    ({"key": X[..., :3]}, r"query and key must agree .*\(2, 4, 4, 3\)"),
    ({"value": X[:, :3]}, r"key and value must agree .*\(2, 3, 4, 8\)"),
    ({"key": X[:, :, :3], "value": X[:, :, :3]}, r"key \(3\) must divide"),
    ({"receiver_presence": BATCH[:, :3]}, r"receiver_presence .*\(2, 3\)"),
    ({"source_presence": BATCH[:1]}, r"source_presence .*got \(1, 4\)"),
    ({"mask": np.ones((4, 4))}, "mask must be boolean.*float32"),
    ({"mask": np.ones((3, 4), bool)}, r"mask must have shape .*\(3, 4\)"),
    ({"bias": np.ones((2, 4, 4), np.float32)}, r"bias .*got \(2, 4, 4\)"),
    ({"local_window_size": -1}, "local_window_size .*got -1"),
    ({"local_window_size": (1, 2, 3)}, r"local_window_size .*\(1, 2, 3\)"),
    ({"local_window_size": 0.5}, "local_window_size .*got 0.5"),
    ({"scale": np.ones(4)}, r"scale must be a scalar, got shape \(4,\)"),
    ({"is_causal": True, "source_positions": BATCH[:, :2]}, "source_positions"),
    ({"source_segments": BATCH}, "receiver_segments=None"),
  ],
)
def test_wrong_input_is_named_with_its_value(change, message):
  arguments = {
    "query": X,
    "key": X,
    "value": X,
    "receiver_presence": BATCH,
    "source_presence": BATCH,
  }
  with pytest.raises(ValueError, match=message):
    oflax.o_attention(**{**arguments, **change})
