"""Blocked attention is the reference, in linear memory, dropout included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax
from oflax import BlockSizes
from oflax import _visibility
from oflax._attention import blocked
from oflax._attention.operands import prepare

B, T, S, N, K, H, V = 2, 7, 10, 4, 2, 4, 3
RNG = np.random.default_rng(0)
Q, KEY, VALUE = (
  RNG.normal(size=shape).astype(np.float32)
  for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, V))
)
P_T = RNG.random((B, T)).astype(np.float32) * (RNG.random((B, T)) > 0.3)
P_S = RNG.random((B, S)).astype(np.float32) * (RNG.random((B, S)) > 0.3)
MASK = RNG.random((B, N, T, S)) > 0.5
BIAS = np.where(
  RNG.random((B, 1, T, S)) > 0.8, -np.inf, RNG.normal(size=(B, 1, T, S))
).astype(np.float32)
POSITIONS = RNG.permutation(T), RNG.permutation(S)
ARGUMENTS = {
  "nothing": {},
  "mask": {"mask": MASK},
  "a mask of pairs": {"mask": MASK[0, 0]},
  "bias": {"bias": BIAS},
  "causal": {"is_causal": True},
  "positions": {
    "is_causal": True,
    "receiver_positions": POSITIONS[0],
    "source_positions": POSITIONS[1],
  },
  "window": {"local_window_size": (2, 1)},
  "segments": {
    "receiver_segments": np.arange(T) // 3,
    "source_segments": np.arange(S) // 4,
  },
}


@pytest.fixture(autouse=True)
def few_parts(monkeypatch):
  """Sources out of reach are left out of small blocks, too."""
  monkeypatch.setattr(blocked, "PARTS", 3)


def both(implementation, **arguments):
  """Outputs, support and gradients."""

  def attend(*arrays):
    return oflax.o_attention(
      *arrays, implementation=implementation, return_support=True, **arguments
    )

  def loss(*arrays):
    return jnp.sum(jnp.sin(attend(*arrays)[0]))

  run = jax.jit(lambda *a: (attend(*a), jax.grad(loss, (0, 1, 2, 3, 4))(*a)))
  return run(Q, KEY, VALUE, P_T, P_S)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_is_the_reference(name):
  want = both("reference", **ARGUMENTS[name])
  for sizes in (BlockSizes(1, 2, 3), BlockSizes(2, 4, 4)):
    got = both(sizes, **ARGUMENTS[name])
    # Some gradients exceed 1000: 8 eps of them, too.
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-6),
      got,
      want,
    )


@pytest.mark.parametrize("name", ["nothing", "causal"])
def test_second_derivatives_are_those_of_the_reference(name):
  def curvature(implementation):
    def loss(p):
      out = oflax.o_attention(
        Q, KEY, VALUE, P_T, p, implementation=implementation, **ARGUMENTS[name]
      )
      return jnp.sum(out**2)

    direction = np.cos(np.arange(P_S.size)).reshape(P_S.shape)
    direction = direction.astype(np.float32)
    return jax.jit(
      lambda p: jax.jvp(jax.grad(loss), (p,), (jnp.asarray(direction),))
    )(P_S)

  want = curvature("reference")
  assert np.any(np.asarray(want[1])[P_S == 0])
  for got, expected in zip(curvature(BlockSizes(1, 2, 3)), want, strict=True):
    np.testing.assert_allclose(got, expected, atol=1e-3, rtol=1e-4)


def test_memory_grows_with_the_tokens_not_with_their_pairs():
  def temporaries(n):
    x, p = jnp.ones((n, 2, 8)), jnp.ones(n)

    def loss(x, p):
      out = oflax.o_attention(
        x, x, x, p, p, implementation=BlockSizes(1, 1, 64)
      )
      return jnp.sum(out**2)

    program = jax.jit(jax.grad(loss)).lower(x, p).compile()
    return program.memory_analysis().temp_size_in_bytes

  assert temporaries(4096) < 2.5 * temporaries(2048)
  assert temporaries(4096) < 4096**2


@pytest.mark.parametrize("broadcast", [False, True])
def test_dropout_masks_are_shared_only_when_asked(broadcast):
  n = 16
  value = jnp.broadcast_to(jnp.eye(n)[None, :, None], (2, n, 2, n))
  zeros, p = jnp.zeros((2, n, 2, 4)), jnp.ones((2, n))
  weights = oflax.o_attention(
    zeros,
    zeros,
    value,
    p,
    p,
    dropout_rate=0.5,
    dropout_key=jax.random.key(0),
    broadcast_dropout=broadcast,
    implementation=BlockSizes(1, 1, 8),
  )
  dropped = np.moveaxis(np.asarray(weights) == 0, 2, 1)  # b, n, t, s
  assert 0.4 < dropped.mean() < 0.6
  np.testing.assert_allclose(weights.max(), 2 / n, rtol=1e-6)
  masks = dropped.reshape(4, n, n)
  same = [np.array_equal(masks[0], mask) for mask in masks[1:]]
  assert same == [broadcast] * 3
  assert not np.array_equal(masks[0, :8], masks[0, 8:])


def test_under_vmap_it_is_the_same_and_one_branch_runs():
  x = jnp.asarray(RNG.normal(size=(3, S, N, H)), jnp.float32)
  p = jnp.asarray(RNG.random((3, S)) * (RNG.random((3, S)) > 0.3), jnp.float32)

  def attend(x, p):
    sizes = BlockSizes(1, 2, 4)
    return oflax.o_attention(
      x, x, x, p, p, is_causal=True, implementation=sizes
    )

  def gradient(fn):
    return jax.grad(lambda x, p: jnp.sum(jnp.sin(fn(x, p))), (0, 1))

  mapped = jax.jit(gradient(jax.vmap(attend)))
  got, want = mapped(x, p), jax.jit(gradient(attend))(x, p)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want
  )
  assert "conditional" in mapped.lower(x, p).compile().as_text()


def test_a_shared_dropout_is_shared_whatever_is_in_reach():
  value = jnp.broadcast_to(jnp.eye(S)[None, :, None], (2, S, 2, S))
  zeros, p = jnp.zeros((2, S, 2, 4)), jnp.ones((2, S))
  positions = jnp.stack([jnp.arange(S), jnp.arange(S)[::-1]])
  weights = oflax.o_attention(
    zeros,
    zeros,
    value,
    p,
    p,
    is_causal=True,
    receiver_positions=jnp.full(S, S),
    source_positions=positions,
    dropout_rate=0.5,
    dropout_key=jax.random.key(0),
    broadcast_dropout=True,
    implementation=BlockSizes(1, 1, 4),
  )
  dropped = np.asarray(weights) == 0
  np.testing.assert_array_equal(dropped[0], dropped[1])


def test_unsigned_positions_reach_below_zero():
  arrays = (Q[0, :, :, :1], Q[0, :, :, :1], Q[0, :, :, :1])
  p = np.ones(T, np.float32)

  def attend(positions):
    return oflax.o_attention(
      *arrays,
      p,
      p,
      local_window_size=2,
      receiver_positions=positions,
      source_positions=positions,
    )

  unsigned = attend(np.arange(T, dtype=np.uint32))
  np.testing.assert_array_equal(unsigned, attend(np.arange(T)))


def test_reach_holds_all_that_is_visible():
  for name, arguments in ARGUMENTS.items():
    visibility = _visibility.visibility(
      jnp.asarray(P_T),
      jnp.asarray(P_S),
      num_heads=N,
      **{k: v for k, v in arguments.items() if k != "bias"},
    )
    reach = visibility.reach()
    if reach is None:
      assert name in ("nothing", "mask", "a mask of pairs", "bias")
    else:
      seen = jnp.any(visibility.relation(), axis=-2, keepdims=True)
      assert bool(jnp.all(reach | ~seen))


@pytest.mark.parametrize(
  ("arguments", "expected"),
  [
    ({"is_causal": True}, [0, 1, 2, 3, 4]),
    ({"local_window_size": (1, 2)}, [2, 3, 4, 5, 6]),
    ({"local_window_size": (1, 2), "is_causal": True}, [2, 3, 4]),
  ],
)
def test_reach_ends_where_order_and_window_do(arguments, expected):
  visibility = _visibility.visibility(
    jnp.ones(2),
    jnp.ones(S),
    num_heads=1,
    receiver_positions=np.array([3, 4]),
    source_positions=np.arange(S),
    **arguments,
  )
  assert np.flatnonzero(visibility.reach()).tolist() == expected


@pytest.mark.parametrize(
  ("dtype", "position", "arguments"),
  [
    (np.float32, np.nan, {"is_causal": True}),
    (np.int32, 2**31 - 1, {"local_window_size": (100, 3)}),
    (np.int32, -(2**31), {"local_window_size": (3, 100)}),
  ],
)
def test_the_position_of_an_absent_token_means_nothing(
  dtype, position, arguments
):
  x = RNG.normal(size=(2, 16, 1, 2)).astype(np.float32)
  p = np.ones((2, 16), np.float32)
  p[0, 6] = 0
  positions = np.stack([np.arange(16)[::-1], np.arange(16)]).astype(dtype)
  wild = positions.copy()
  wild[0, 6] = position

  def attend(positions, implementation):
    return oflax.o_attention(
      x,
      x,
      x,
      p,
      p,
      receiver_positions=positions,
      source_positions=positions,
      implementation=implementation,
      **arguments,
    )

  want = attend(positions, "reference")
  for implementation in ("reference", BlockSizes(2, 1, 8)):
    got = attend(wild, implementation)
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint32])
def test_a_window_does_not_wrap_around(dtype):
  x = RNG.normal(size=(4, 1, 2)).astype(np.float32)
  positions = np.array([0, 5, 60, 100], dtype)
  want = oflax.o_attention(x, x, x, np.ones(4), np.ones(4))
  for size in (127, 2**31 - 1, 2**31, 2**40):
    got = oflax.o_attention(
      x,
      x,
      x,
      np.ones(4),
      np.ones(4),
      local_window_size=size,
      receiver_positions=positions,
      source_positions=positions,
    )
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize(
  ("batch", "heads", "tokens", "holds"),
  [(8, 8, 128, True), (1, 8, 256, True), (4, 8, 512, False), (1, 1, 16384, 0)],
)
def test_small_attentions_are_dense_and_large_ones_blocked(
  batch, heads, tokens, holds
):
  def sizes(x, p):
    operands = prepare(x, x, x, p, p, bias=None, scale=None)
    chosen = blocked.block_sizes(operands)
    assert chosen.hold(operands) == holds
    assert heads % chosen.heads == batch % chosen.batch == 0
    return x

  x = jax.ShapeDtypeStruct((batch, tokens, heads, 64), jnp.float32)
  jax.eval_shape(sizes, x, jax.ShapeDtypeStruct((batch, tokens), jnp.float32))


@pytest.mark.parametrize("implementation", ["blocked", BlockSizes(1, 1, 2)])
@pytest.mark.parametrize("shape", [(0, 4), (2, 0)])
def test_empty_axes(shape, implementation):
  x, p = jnp.ones((*shape, 2, 4)), jnp.ones(shape)
  out = oflax.o_attention(x, x, x, p, p, implementation=implementation)
  assert out.shape == x.shape


@pytest.mark.parametrize("sizes", [BlockSizes(0), BlockSizes(receivers=2.5)])
def test_wrong_sizes_are_named_with_their_value(sizes):
  x, p = jnp.ones((4, 2, 4)), jnp.ones(4)
  with pytest.raises(ValueError, match=r"BlockSizes\.\w+ must be .*got"):
    oflax.o_attention(x, x, x, p, p, implementation=sizes)
