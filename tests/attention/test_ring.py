"""Attention among shards is attention: values, derivatives, zeros, memory."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

import oflax
from oflax._attention import ring as ring_module
from oflax.studies import ring_memory

SHARDS = 8
B, T, N, K, H, V = 2, 16, 4, 2, 4, 3
RNG = np.random.default_rng(0)
Q, KEY, VALUE = (
  RNG.normal(size=shape).astype(np.float32)
  for shape in ((B, T, N, H), (B, T, K, H), (B, T, K, V))
)


def presences():
  """30 % nulls, and one shard of nothing else."""
  p = RNG.random((B, T)).astype(np.float32) * (RNG.random((B, T)) > 0.3)
  p[:, 4:6] = 0
  return p


P_T, P_S = presences(), presences()
OPERANDS = (Q, KEY, VALUE, P_T, P_S)
MASK = RNG.random((B, N, T, T)) > 0.5
BIAS = np.where(
  RNG.random((B, 1, T, T)) > 0.8, -np.inf, RNG.normal(size=(B, 1, T, T))
).astype(np.float32)
POSITIONS = RNG.permutation(T), RNG.permutation(T)
SEGMENTS = np.arange(T) // 5
BLOCKS = oflax.BlockSizes(1, 2, 2)
# Options, and the arrays among them with the axis of their receivers.
CASES = {
  "nothing": ({}, {}),
  "causal in blocks": ({"is_causal": True, "implementation": BLOCKS}, {}),
  "window": ({"local_window_size": (3, 1)}, {}),
  "a mask of heads, a bias": (
    {},
    {"mask": (MASK, P(None, None, "s")), "bias": (BIAS, P(None, None, "s"))},
  ),
  "a mask of pairs": ({}, {"mask": (MASK[0, 0], P("s"))}),
  "positions, segments": (
    {"is_causal": True},
    {
      "receiver_positions": (POSITIONS[0], P("s")),
      "source_positions": (POSITIONS[1], P("s")),
      "receiver_segments": (SEGMENTS, P("s")),
      "source_segments": (SEGMENTS, P("s")),
    },
  ),
}


@pytest.fixture(scope="module")
def mesh():
  return Mesh(np.array(jax.devices()[:SHARDS]), ("s",))


def sharded(mesh, check=True, specs=(), **options):
  """`o_attention` with every token axis cut along the mesh."""
  names = [name for name, _ in specs]

  def attend(operands, arrays):
    return oflax.o_attention(
      *operands,
      axis_name="s",
      return_support=True,
      **options,
      **dict(zip(names, arrays, strict=True)),
    )

  tokens = P(None, "s")
  return jax.shard_map(
    attend,
    mesh=mesh,
    in_specs=((tokens,) * 5, tuple(spec for _, spec in specs)),
    out_specs=tokens,
    check_vma=check,
  )


def with_gradients(attend):
  """Outputs, support and gradients, in one program."""

  def loss(operands):
    outputs, support = attend(operands)
    return jnp.sum(jnp.sin(outputs)), (outputs, support)

  return jax.jit(jax.value_and_grad(loss, has_aux=True))


def close(got, want):
  """To rounding: 8 · eps of the largest value, or of 1."""

  def one(a, b):
    largest = np.max(np.abs(b), initial=1)
    atol = 8 * np.finfo(np.float32).eps * largest
    np.testing.assert_allclose(a, b, atol=atol, rtol=0)

  jax.tree.map(one, got, want)


@pytest.mark.parametrize("name", CASES)
def test_it_is_attention_on_one_device(mesh, name, monkeypatch):
  if name in ("causal in blocks", "a mask of heads, a bias"):
    # Heads go round in two turns.
    monkeypatch.setattr(ring_module, "AT_ONCE", T // SHARDS * 2)
  options, arrays = CASES[name]
  specs = [(name, spec) for name, (_, spec) in arrays.items()]
  arrays = {name: jnp.asarray(array) for name, (array, _) in arrays.items()}
  ring = sharded(mesh, specs=specs, check=name != "nothing", **options)
  got = with_gradients(lambda x: ring(x, tuple(arrays.values())))(OPERANDS)
  want = with_gradients(
    lambda x: oflax.o_attention(*x, **options, **arrays, return_support=True)
  )(OPERANDS)
  close(got, want)
  assert np.all(np.asarray(got[0][1][0])[P_T == 0] == 0)


def test_a_bias_gets_its_gradient_back_from_all_shards(mesh):
  bias = jnp.where(jnp.isfinite(BIAS), BIAS, 0)
  ring = sharded(mesh, specs=[("bias", P(None, None, "s"))])

  def gradient(attend):
    return jax.jit(jax.grad(lambda b: jnp.sum(jnp.sin(attend(b)[0]))))(bias)

  got = gradient(lambda b: ring(OPERANDS, (b,)))
  want = gradient(
    lambda b: oflax.o_attention(*OPERANDS, bias=b, return_support=True)
  )
  close(got, want)


def test_nothing_present_is_0_and_has_no_derivative(mesh):
  nothing = (Q, KEY, VALUE, P_T, np.zeros_like(P_S))
  ring = sharded(mesh)
  (_, (outputs, support)), gradients = with_gradients(lambda x: ring(x, ()))(
    nothing
  )
  assert not np.any(support)
  assert not np.any(outputs)
  assert not any(np.any(x) for x in jax.tree.leaves(gradients))


def test_an_empty_batch_has_the_right_shapes(mesh):
  empty = tuple(x[:0] for x in OPERANDS)
  outputs, support = jax.jit(sharded(mesh))(empty, ())
  assert outputs.shape == (0, T, N, V)
  assert support.shape == (0, T)


def test_a_nan_among_the_sources_of_one_shard_is_seen_by_all(mesh):
  p = P_S.copy()
  p[:, 9] = np.nan
  outputs, _ = jax.jit(sharded(mesh))((*OPERANDS[:4], p), ())
  assert np.all(np.isnan(outputs[P_T != 0]))


def test_second_derivatives_are_those_of_one_device(mesh):
  ring = sharded(mesh)
  direction = jnp.cos(jnp.arange(P_S.size)).reshape(P_S.shape)

  def curvature(attend):
    def loss(p):
      return jnp.sum(attend((*OPERANDS[:4], p))[0] ** 2)

    def slope(p):
      return jnp.sum(direction * jax.grad(loss)(p))

    return jax.jit(jax.grad(slope))(P_S)

  got = curvature(lambda x: ring(x, ()))
  want = curvature(lambda x: oflax.o_attention(*x, return_support=True))
  assert np.any(np.asarray(want)[P_S == 0])
  np.testing.assert_allclose(got, want, atol=1e-3, rtol=1e-4)


def test_dropout_drops_the_same_weights_backward(mesh):
  key = jax.random.key(0)
  specs = [("dropout_key", P())]
  ring = sharded(mesh, specs=specs, dropout_rate=0.5)
  ones = jnp.ones_like(VALUE)
  whole = jnp.ones((B, T))

  def total(value):
    outputs, _ = ring((Q, KEY, value, whole, whole), (key,))
    return jnp.sum(outputs[..., 0] * jnp.asarray(Q[..., 0])), outputs

  (value, outputs), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(
    ones
  )
  # Outputs are linear in values: the derivative tells the outputs.
  np.testing.assert_allclose(jnp.sum(ones * gradient), value, rtol=1e-4)
  # With all values 1, an output is the weight that is kept, 1 in the mean.
  assert 0.9 < np.mean(outputs) < 1.1
  assert len(np.unique(np.round(outputs[..., 0], 5))) > B * T * N / 2


def test_shards_may_be_a_mapped_axis_of_one_device():
  def cut(x):
    return x.reshape(B, 4, 4, *x.shape[2:]).swapaxes(0, 1)

  attend = functools.partial(oflax.o_attention, is_causal=True)
  ring = jax.vmap(functools.partial(attend, axis_name="s"), axis_name="s")
  got = jax.jit(ring)(*map(cut, OPERANDS)).swapaxes(0, 1).reshape(B, T, N, V)
  close(got, attend(*OPERANDS))


@pytest.mark.parametrize("backward", [False, True])
def test_memory_is_linear_in_the_share(backward):
  """And a quarter of one device's at most, as its terms say."""
  found = functools.partial(ring_memory.temporaries, backward=backward)
  among_shards = found(SHARDS, 32768)
  assert among_shards < found(1, 32768) / 4
  assert among_shards < 2.2 * found(SHARDS, 16384)
  terms = ring_memory.BOTH if backward else ring_memory.FORWARD
  assert abs(among_shards / ring_memory.MIB / terms.size - 1) < 0.1


def test_what_it_cannot_do_is_refused(mesh):
  with pytest.raises(ValueError, match=r"axis_name must be .* got 'folded'"):
    sharded(mesh, implementation="folded")(OPERANDS, ())
  specs = [("mask", P(None, "s"))]
  with pytest.raises(ValueError, match=r"mask must have shape \(2, 16\)"):
    sharded(mesh, specs=specs)(OPERANDS, (MASK[0, 0],))


def test_the_ring_sends_sources_only_to_the_next(mesh):
  """No collective but the ring's: what is gathered would not be linear."""
  text = str(jax.make_jaxpr(sharded(mesh))(OPERANDS, ()))
  assert "ppermute" in text
  assert "all_gather" not in text
