"""The cases C01 to C38: small inputs from public bug reports about masks,
padding, norms and packing, and what must come out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax
from oflax import _numerics
from oflax import laws
from oflax import linen
from oflax._attention import partition as partitions
from oflax._attention import reference

MODEL = linen.OTransformer(num_layers=2, num_heads=2, mlp_dim=12)
D = 8


def normal(seed, *shape, dtype=jnp.float32):
  return jax.random.normal(jax.random.key(seed), shape, dtype)


def carriers(*lengths, size=None, seed=0):
  """A batch of random carriers, padded behind with nulls."""
  size = size or max(lengths)
  h = normal(seed, len(lengths), size, D)
  present = np.arange(size) < np.array(lengths)[:, None]
  return oflax.nullify(h, jnp.asarray(present))


def shaken(variables, seed=1):
  """Variables with every parameter random and non-zero, biases included."""
  params = variables["params"]
  leaves, structure = jax.tree.flatten(params)
  leaves = [
    x + 0.3 * normal(seed + i, *x.shape, dtype=x.dtype)
    for i, x in enumerate(leaves)
  ]
  return {**variables, "params": jax.tree.unflatten(structure, leaves)}


def initialised(module, *inputs, **kwargs):
  return shaken(jax.jit(module.init)(jax.random.key(7), *inputs, **kwargs))


def attend(h, p=None, **kwargs):
  """Self-attention of two heads on the carriers as they are."""
  p = oflax.presence(h) if p is None else p
  x = h.reshape(*h.shape[:-1], 2, -1)
  return oflax.o_attention(x, x, x, p, p, **kwargs).reshape(h.shape)


def assert_close(a, b, tolerance=2e-6):
  np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


def assert_finite(tree):
  assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(tree))


def assert_zero(tree):
  assert all(bool(jnp.all(x == 0)) for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(
  "module", [linen.OAttention(2), linen.OBlock(2, 12), MODEL]
)
def test_c01_a_null_sample_stays_zero_and_disturbs_nobody(module):
  h = carriers(5, 0)
  variables = initialised(module, h)
  apply = jax.jit(module.apply)
  out = apply(variables, h)
  assert_zero(out[1])
  assert_close(out[0], apply(variables, h[:1])[0])


def test_c02_presence_is_the_mass_of_a_source_and_the_gate_of_a_receiver():
  q, k = jnp.zeros((1, 1, 4)), jnp.zeros((2, 1, 4))
  v, p = jnp.eye(2)[:, None], jnp.array([0.5, 1.0])
  for gate, want in ((1.0, [1 / 3, 2 / 3]), (0.5, [1 / 6, 1 / 3])):
    out = oflax.o_attention(q, k, v, jnp.array([gate]), p)
    assert_close(out[0, 0], want, 1e-6)


def test_c03_a_null_memory_an_empty_one_and_none_are_the_same_bit_for_bit():
  h = carriers(5, 3)
  module = linen.OAttention(2)
  variables = initialised(module, h, h)

  params = variables["params"]
  for size in (4, 0):
    memory = jnp.zeros((2, size, D))
    out = jax.jit(lambda p, m=memory: h + module.apply({"params": p}, h, m))
    np.testing.assert_array_equal(out(params), h)
    loss = lambda p, out=out: jnp.sum(out(p) ** 2)
    assert_zero(jax.jit(jax.grad(loss))(params))


def test_c04_an_empty_sample_changes_no_parameter_gradient():
  h = carriers(5, 0, 3)
  variables = initialised(MODEL, h)

  def gradient(h):
    loss = lambda v: jnp.sum(MODEL.apply(v, h) ** 2)
    return jax.jit(jax.grad(loss))(variables)

  with_empty, without = gradient(h), gradient(h[jnp.array([0, 2])])
  scale = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(without))
  assert_finite(with_empty)
  jax.tree.map(
    lambda a, b: assert_close(a, b, 1e-5 * scale), with_empty, without
  )


def test_c05_gradients_at_nulls_are_zero_and_transforms_agree():
  h = carriers(3, 0, 5)
  module = linen.OAttention(2)
  variables = initialised(module, h)

  def loss(h):
    return jnp.mean(module.apply(variables, h) ** 2)

  def scanned(h):
    return jax.lax.scan(lambda c, x: (c, jax.grad(loss)(x)), None, h)[1]

  plain = jnp.stack([jax.grad(loss)(x) for x in h])
  jitted = jax.jit(jax.grad(loss))
  results = [
    plain,
    jnp.stack([jitted(x) for x in h]),
    jax.jit(jax.vmap(jax.grad(loss)))(h),
    jax.jit(scanned)(h),
    jax.jit(jax.vmap(jax.grad(jax.checkpoint(loss))))(h),
  ]
  for result in results:
    assert_finite(result)
    assert_zero(jnp.where(jnp.all(h == 0, -1, keepdims=True), result, 0))
    assert_close(result, plain)


@pytest.mark.parametrize(
  "fn",
  [
    oflax.presence,
    lambda h: oflax.o_norm(h, oflax.presence(h), bias=jnp.ones(D)),
    lambda h: oflax.o_standardize(h, oflax.presence(h)),
    lambda h: oflax.o_pool(h, oflax.presence(h)),
  ],
)
@pytest.mark.parametrize("h", [jnp.zeros((3, D)), carriers(2, size=3)[0]])
def test_c06_the_gradient_at_a_null_is_zero(fn, h):
  gradient = jax.grad(lambda h: jnp.sum(fn(h)))(h)
  assert_finite(gradient)
  assert_zero(jnp.where(jnp.all(h == 0, -1, keepdims=True), gradient, 0))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("side", ["source", "receiver"])
def test_c07_absent_rows_may_hold_anything(bad, side):
  h = normal(0, 4, D)
  poisoned = h.at[1].set(bad)
  present = jnp.array([True, False, True, True])
  p = present.astype(jnp.float32)
  np.testing.assert_array_equal(
    oflax.nullify(poisoned, present), oflax.nullify(h, present)
  )
  clean = oflax.nullify(h, present)
  module = linen.OAttention(2)
  variables = initialised(module, h)

  def function(x, y):
    heads = lambda x: x.reshape(4, 2, 4)
    sides = (x, y) if side == "receiver" else (y, x)
    q, k = map(heads, sides)
    return oflax.o_attention(q, k, k, p, p)

  def applied(x, y):
    q, k = (x, y) if side == "receiver" else (y, x)
    return module.apply(variables, q, k, receiver_presence=p, source_presence=p)

  for fn in (jax.jit(function), jax.jit(applied)):
    np.testing.assert_array_equal(fn(poisoned, clean), fn(clean, clean))
    loss = lambda *h, fn=fn: jnp.sum(fn(*h) ** 2)
    assert_finite(jax.jit(jax.grad(loss, (0, 1)))(poisoned, clean))
  loss = lambda v: jnp.sum(module.apply(v, poisoned, receiver_presence=p) ** 2)
  assert_finite(jax.jit(jax.grad(loss))(variables))


@pytest.mark.parametrize(
  "fn",
  [
    lambda h, p: oflax.o_gate(h, p),
    lambda h, p: oflax.o_ffn(h, p, jnp.tanh),
    lambda h, p: oflax.o_norm(h, p),
    lambda h, p: oflax.o_inject(h, h, p),
    lambda h, p: oflax.o_standardize(h, p),
    lambda h, p: oflax.o_pool(h, p),
    lambda h, p: oflax.present_mean(h[:, 0], p),
  ],
)
def test_c07_components_quarantine_absent_rows(fn):
  h = normal(0, 4, D)
  p = jnp.array([1.0, 0.0, 0.5, 1.0])
  poisoned, clean = h.at[1].set(jnp.nan), h.at[1].set(0)
  np.testing.assert_array_equal(fn(poisoned, p), fn(clean, p))
  assert_finite(jax.grad(lambda h: jnp.sum(fn(h, p)))(poisoned))


def test_c08_standardising_far_from_zero():
  x = 2000 + normal(0, 512, 1)
  p = jnp.ones(512)
  wide = np.asarray(x, np.float64)
  want = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-6)
  np.testing.assert_allclose(oflax.o_standardize(x, p), want, atol=1e-2)
  uneven = jax.random.uniform(jax.random.key(1), (512,), minval=0.01)
  constant = oflax.o_standardize(jnp.full((512, 1), 2000.0), uneven)
  assert float(jnp.max(jnp.abs(constant))) <= 1e-5


def test_c09_statistics_do_not_count_nulls():
  x = jnp.concatenate([jnp.arange(1.0, 6.0), jnp.zeros(5)])[:, None]
  p = (x[:, 0] > 0).astype(jnp.float32)
  out = oflax.o_standardize(x, p, epsilon=1e-12)
  np.testing.assert_allclose(out[:5, 0], (np.arange(5) - 2) / np.sqrt(2), 1e-6)
  assert float(oflax.o_pool(x, p)[0]) == pytest.approx(3)


def test_c10_pooling_ignores_nulls_and_survives_nothing():
  h = jnp.array([[1.0, 0], [1, 0], [0, 0], [0, 0]])
  np.testing.assert_array_equal(oflax.o_pool(h, oflax.presence(h)), [1, 0])
  pool = lambda h: oflax.o_pool(h, oflax.presence(h))
  nothing = jnp.zeros((4, 2))
  assert_zero(pool(nothing))
  assert_finite(jax.grad(lambda h: jnp.sum(pool(h)))(nothing))


@pytest.mark.parametrize("places", [[0, 1, 2], [4, 5, 6], [0, 2, 5]])
def test_c11_left_right_and_gappy_padding_agree_under_every_order(places):
  h = normal(0, 4, D)
  module = linen.OTransformer(
    2, 2, 12, rotary=True, is_causal=True, local_window_size=(2, 0)
  )
  variables = initialised(module, h)
  apply = jax.jit(lambda h: module.apply(variables, h))
  laws.assert_o_closure(apply, h, places, rtol=2e-6, atol=2e-6)


def test_c12_positions_are_ranks_and_enter_present_tokens_only():
  table = normal(1, 4, D)
  a_b = normal(0, 2, D)
  left = laws.insert_nulls(a_b, [0, 1])
  right = laws.insert_nulls(a_b, [2, 3])
  outputs = []
  for h in (left, right):
    p = oflax.presence(h)
    outputs.append(oflax.o_inject(h, table[oflax.presence_rank(p)], p))
  np.testing.assert_array_equal(outputs[0][2:], outputs[1][:2])
  assert_zero((outputs[0][:2], outputs[1][2:]))


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("shape", [(2, 0, D), (0, 5, D), (0, D), (0, 0, D)])
def test_c13_empty_axes(shape, scan):
  h = jnp.zeros(shape)
  module = linen.OTransformer(2, 2, 12, scan_layers=scan)
  variables = jax.jit(module.init)(jax.random.key(0), h)
  out = jax.jit(module.apply)(variables, h)
  assert out.shape == shape
  gradient = jax.jit(jax.grad(lambda v: jnp.sum(module.apply(v, h))))
  assert_finite(gradient(variables))


@pytest.mark.parametrize(("receivers", "sources"), [(0, 3), (3, 0), (0, 0)])
def test_c13_attention_without_receivers_or_sources(receivers, sources):
  q, k = jnp.zeros((receivers, 2, 4)), jnp.ones((sources, 2, 4))
  out, support = oflax.o_attention(
    q, k, k, jnp.ones(receivers), jnp.ones(sources), return_support=True
  )
  assert out.shape == q.shape
  assert_zero(out)
  assert support.tolist() == [False] * receivers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tau", [1.0, np.float64(1.0), "jax"])
def test_c14_x64_mode_widens_nothing(dtype, tau):
  with jax.enable_x64(True):
    tau = jnp.asarray(1.0) if tau == "jax" else tau
    h = normal(0, 5, D, dtype=dtype)
    p = oflax.presence(h, tau)
    assert p.dtype == jnp.float32
    results = [
      attend(h, p, scale=np.float64(0.5)),
      oflax.o_norm(h, p, epsilon=np.float64(1e-6)),
      oflax.o_standardize(h, p),
      oflax.o_pool(h, p),
      oflax.o_inject(h, h, p),
      oflax.o_ffn(h, p, jnp.tanh),
    ]
    module = linen.OTransformer(
      1, 2, 12, tau=float(tau), rotary=True, learnable_tau=True, norm="rms"
    )
    variables = module.init(jax.random.key(0), h)
    results.append(module.apply(variables, h))
    assert {x.dtype.name for x in results} == {dtype}
    assert {x.dtype.name for x in jax.tree.leaves(variables)} == {"float32"}


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_c15_zero_maps_to_zero_with_every_bias_and_scale_one(
  norm_placement, norm
):
  module = linen.OTransformer(
    2,
    2,
    12,
    norm_placement=norm_placement,
    norm=norm,
    final_norm=True,
    normalize_qk=True,
    gated=True,
    rotary=True,
  )
  h = normal(0, 4, D)
  variables = module.init(jax.random.key(0), h)
  variables = jax.tree_util.tree_map_with_path(
    lambda path, x: (
      jnp.ones_like(x) if path[-1].key in ("bias", "scale") else x
    ),
    variables,
  )
  apply = jax.jit(lambda h: module.apply(variables, h))
  assert_zero(apply(jnp.zeros_like(h)))
  laws.assert_o_closure(apply, h, [0, 2, 5])


def test_c16_dropout_keeps_nulls_null():
  module = linen.OTransformer(2, 2, 12, dropout_rate=0.5)
  h = carriers(3, 5)
  variables = initialised(module, h)
  out = module.apply(
    variables, h, deterministic=False, rngs={"dropout": jax.random.key(0)}
  )
  assert_zero(out[0, 3:])
  assert not jnp.allclose(out, module.apply(variables, h))


def test_c16_all_weights_dropped_give_zero():
  x, p = normal(0, 2, 1, 4), jnp.ones(2)
  drop = lambda seed: oflax.o_attention(
    x, x, x, p, p, dropout_rate=0.9, dropout_key=jax.random.key(seed)
  )
  dropped = [drop(seed) for seed in range(20)]
  assert any(bool(jnp.all(out == 0)) for out in dropped)
  assert_finite(dropped)


@pytest.mark.parametrize("broadcast", [False, True])
def test_c16_samples_share_dropout_masks_only_when_asked(broadcast):
  x = jnp.broadcast_to(normal(0, 4, 1, 4), (2, 4, 1, 4))
  p = jnp.ones(4)
  out = oflax.o_attention(
    x,
    x,
    x,
    p,
    p,
    dropout_rate=0.5,
    dropout_key=jax.random.key(0),
    broadcast_dropout=broadcast,
  )
  assert bool(jnp.all(out[0] == out[1])) == broadcast


def test_c17_an_observed_zero_is_not_a_missing_value():
  direction, observed = normal(0, D), normal(1, D)
  value, is_observed = jnp.array([0.0, 0.0, 2.0]), jnp.array([1.0, 0.0, 1.0])
  h = is_observed[:, None] * observed[None]
  h = oflax.o_inject(h, value[:, None] * direction[None], oflax.presence(h))
  assert (oflax.presence(h) > 0).tolist() == [True, False, True]


def test_c18_padded_lengths_share_one_compilation():
  variables = initialised(MODEL, carriers(16))
  apply = jax.jit(MODEL.apply)
  for length in range(1, 17):
    h = carriers(length, size=16, seed=length)
    out = apply(variables, h)
    assert_zero(out[:, length:])
    if length % 5 == 0:
      alone = jax.jit(lambda v, h: MODEL.apply(v, h))(variables, h[:, :length])
      assert_close(out[:, :length], alone, 4e-6)
  assert apply._cache_size() == 1


def test_c19_tau_presence_pattern_and_rng_do_not_retrace():
  module = linen.OTransformer(1, 2, 12, dropout_rate=0.5)
  h = carriers(5, 3)
  variables = initialised(module, h)
  traces = []

  @jax.jit
  def step(variables, h, rng):
    traces.append(h.shape)
    return module.apply(
      variables, h, deterministic=False, rngs={"dropout": rng}
    )

  step(variables, h, jax.random.key(0))
  step(oflax.calibrate(module, variables, h), h, jax.random.key(0))
  step(variables, carriers(1, 0, size=5), jax.random.key(1))
  assert len(traces) == 1


@pytest.mark.parametrize(
  ("h", "jit"),
  [
    (carriers(3, 0, 5), True),
    (carriers(3, 0, 5), False),
    (carriers(0, 0, size=4), True),
  ],
)
def test_c20_clean_under_debug_nans_and_infs(h, jit):
  module = linen.OTransformer(
    1, 2, 12, rotary=True, is_causal=True, final_norm=True
  )
  variables = initialised(module, h)
  bias = jnp.where(jnp.eye(h.shape[1], dtype=bool), -jnp.inf, 0.0)

  def loss(variables, h):
    out = module.apply(variables, h)
    p = oflax.presence(out)
    out = oflax.o_standardize(out + attend(out, p, bias=bias), p)
    pooled = jnp.sum(oflax.o_pool(out, p) ** 2)
    return pooled + oflax.present_mean(jnp.sum(out**2, -1), p)

  gradient = jax.value_and_grad(loss, argnums=(0, 1))
  with jax.debug_nans(True), jax.debug_infs(True):
    if jit:
      assert_finite(jax.jit(gradient)(variables, h))
    else:
      with jax.disable_jit():
        assert_finite(gradient(variables, h))


def test_c21_nothing_present_gives_no_loss_and_no_gradient():
  h = carriers(0, 0, size=4)
  variables = initialised(MODEL, h)

  def loss(variables):
    out = MODEL.apply(variables, h)
    return oflax.present_mean(jnp.sum(out**2, -1), oflax.presence(h))

  value, gradient = jax.jit(jax.value_and_grad(loss))(variables)
  assert value == 0
  assert_zero(gradient)


def test_c22_microbatches_weighted_by_their_presence_agree():
  losses = normal(0, 6) ** 2
  p = jax.random.uniform(jax.random.key(1), (6,))
  results = []
  for batches in ((1, 6), (2, 3), (3, 2)):
    parts = zip(losses.reshape(batches), p.reshape(batches), strict=True)
    total = sum(oflax.present_mean(a, b) * jnp.sum(b) for a, b in parts)
    results.append(float(total / jnp.sum(p)))
  assert results == pytest.approx([results[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("size", [8, 64, 512])
def test_c23_padding_and_batch_mates_do_not_change_a_text(size):
  module = linen.OTransformer(2, 2, 12, rotary=True)
  h = normal(0, 6, D)
  variables = initialised(module, h)
  apply = jax.jit(module.apply)
  alone = apply(variables, h)
  batch = carriers(*range(1, 9), size=size, seed=5)
  batch = batch.at[3].set(laws.insert_nulls(h, range(6, size)))
  out = apply(variables, batch)[3, :6]
  assert_close(out, alone, 1e-5)
  cosine = jnp.sum(out * alone) / jnp.linalg.norm(out) / jnp.linalg.norm(alone)
  assert float(cosine) > 1 - 1e-6


def test_c23_the_content_of_batch_mates_changes_nothing_bit_for_bit():
  variables = initialised(MODEL, carriers(8))
  apply = jax.jit(MODEL.apply)
  a, b = carriers(5, 8), carriers(5, 2, size=8)
  b = b.at[0].set(a[0])
  np.testing.assert_array_equal(apply(variables, a)[0], apply(variables, b)[0])


def test_c24_presence_neither_overflows_nor_vanishes_in_float16():
  h = jnp.array([[300.0] * 8, [1e-4] * 8], jnp.float16)
  large, small = oflax.presence(h).tolist()
  assert 0.9999 < large <= 1
  assert small == pytest.approx(8.0e-8, rel=1e-2)


def test_c25_a_mask_over_sources_equals_their_presence():
  x = normal(0, 4, 5, 4, 8)
  present = jax.random.bernoulli(jax.random.key(1), 0.6, (4, 5))
  ones = jnp.ones((4, 5))
  masked = oflax.o_attention(x, x, x, ones, ones, mask=present[:, None, None])
  weighed = oflax.o_attention(x, x, x, ones, present.astype(jnp.float32))
  assert_close(masked, weighed, 1e-6)
  with pytest.raises(ValueError, match=r"mask must be boolean.*float32"):
    oflax.o_attention(x, x, x, ones, ones, mask=ones[:, None, None])


@pytest.mark.parametrize("is_causal", [False, True])
def test_c27_grouped_heads_equal_repeated_ones(is_causal):
  q, k, v = normal(0, 5, 6, 4), normal(1, 5, 2, 4), normal(2, 5, 2, 3)
  p = jnp.array([1.0, 0.5, 0.0, 1.0, 1.0])
  grouped = oflax.o_attention(q, k, v, p, p, is_causal=is_causal)
  k, v = (jnp.repeat(x, 3, axis=1) for x in (k, v))
  repeated = oflax.o_attention(q, k, v, p, p, is_causal=is_causal)
  assert_close(grouped, repeated, 1e-6)


def test_c28_packed_segments_equal_running_them_apart():
  module = linen.OTransformer(2, 2, 12, rotary=True, is_causal=True)
  first, second = normal(0, 2, D), normal(1, 3, D)
  packed = jnp.concatenate([first, second, jnp.zeros((2, D))])
  segments = jnp.array([0, 0, 1, 1, 1, 1, 1])
  variables = initialised(module, packed)
  apply = jax.jit(module.apply)
  out = apply(variables, packed, segments=segments)
  assert_close(out[:2], apply(variables, first), 4e-6)
  assert_close(out[2:5], apply(variables, second), 4e-6)
  assert_zero(out[5:])


@pytest.mark.parametrize("remat", [False, True])
def test_c29_scan_and_remat_equal_the_unrolled_stack(remat):
  h = carriers(5, 3)
  plain = linen.OTransformer(3, 2, 12)
  scanned = linen.OTransformer(3, 2, 12, scan_layers=True, remat=remat)
  variables = oflax.calibrate(plain, initialised(plain, h), h)
  stacked = linen.stack_blocks(variables)
  shapes = jax.tree.map(jnp.shape, scanned.init(jax.random.key(0), h))
  assert jax.tree.map(jnp.shape, stacked) == shapes

  def value(module):
    return lambda v: jnp.sum(module.apply(v, h) ** 2)

  want, want_gradient = jax.jit(jax.value_and_grad(value(plain)))(variables)
  got, got_gradient = jax.jit(jax.value_and_grad(value(scanned)))(stacked)
  assert float(got) == pytest.approx(float(want), rel=1e-6)
  jax.tree.map(
    lambda a, b: assert_close(a, b, 1e-4),
    linen.unstack_blocks(got_gradient),
    want_gradient,
  )


def test_c30_chunks_of_sources_merge_to_one_pass():
  q, k, v = normal(0, 2, 3, 4), normal(1, 2, 6, 4), normal(2, 2, 6, 5)
  p = jnp.array([1.0, 0.2, 0.0, 0.0, 0.7, 1e-30])

  def chunk(k, v, p, start, stop):
    part = slice(start, stop)
    presence = p[None, None, part]
    mass, _ = _numerics.split_mass(presence)
    keys, values = k[:, part].mT, v[:, part].mT * mass
    return reference.partition(q, keys, values, presence, None, None)

  def merged(k, v, p):
    chunks = [
      chunk(k, v, p, *ends) for ends in ((0, 2), (2, 4), (4, 4), (4, 6))
    ]
    result = partitions.identity_like(chunks[0])
    for part in reversed(chunks):
      result = partitions.merge(part, result)
    return result.mean()

  one_pass = lambda k, v, p: chunk(k, v, p, 0, 6).mean()
  with jax.debug_nans(True), jax.debug_infs(True):
    assert_close(merged(k, v, p), one_pass(k, v, p), 1e-6)
    loss = lambda fn: jax.grad(lambda *a: jnp.sum(fn(*a) ** 2), (0, 1))
    gradient = jax.jit(loss(merged))(k, v, p)
  assert_finite(gradient)
  jax.tree.map(assert_close, gradient, jax.jit(loss(one_pass))(k, v, p))


def test_c31_biases_do_not_leak_from_a_null_memory():
  h, memory = carriers(5), jnp.zeros((1, 4, D))
  module = linen.OAttention(2)
  params = jax.tree.map(
    jnp.ones_like, module.init(jax.random.key(0), h, memory)["params"]
  )
  out = jax.jit(lambda params: module.apply({"params": params}, h, memory))
  assert_zero(out(params))
  gradient = jax.jit(jax.grad(lambda p: jnp.sum(out(p) ** 2 + out(p))))
  assert_zero(gradient(params))


def test_c32_the_curvature_at_a_null_counts_its_key_and_value():
  with jax.enable_x64(True):
    module = linen.OAttention(2, param_dtype=jnp.float64)
    h = normal(0, 4, D, dtype="float64").at[1].set(0)
    variables = initialised(module, h)
    others = jnp.array([0, 2, 3])

    def output(null):
      return jnp.sum(module.apply(variables, h.at[1].set(null))[others] ** 2)

    null = jnp.zeros(D)
    step = 1e-4 * jnp.eye(D)
    gradient = jax.jit(jax.grad(output))
    differences = jnp.stack(
      [(gradient(null + e) - gradient(null - e)) / 2e-4 for e in step]
    )
    hessian = jax.jit(jax.hessian(output))(null)
    assert float(jnp.max(jnp.abs(hessian))) > 1e-2
    assert_close(hessian, differences, 1e-6)


def test_c33_tiny_presences_compete_as_large_ones():
  q = jnp.ones((1, 1, 1))
  k = jnp.array([0.0, 5.0])[:, None, None]
  for p in (1e-36, 1.0):
    weights = oflax.o_attention_weights(q, k, jnp.full(2, p), scale=1.0)
    np.testing.assert_allclose(weights[0, 0], [0.0067, 0.9933], atol=1e-4)
  out = lambda p: oflax.o_attention(q, k, k, jnp.ones(1), p, scale=1.0)
  gradient = jax.grad(lambda p: jnp.sum(out(p)))(jnp.full(2, 1e-30))
  assert_finite(gradient)
  assert float(gradient[1]) > 1e27


def test_c34_nan_is_not_absent():
  h = normal(0, 4, D).at[1, 0].set(jnp.nan)
  variables = initialised(MODEL, jnp.zeros_like(h))
  assert bool(jnp.all(jnp.isnan(MODEL.apply(variables, h)[1])))
  p = oflax.presence(h)
  assert jnp.isnan(p).tolist() == [False, True, False, False]
  for out in (
    attend(h, p),
    oflax.o_pool(h, p),
    oflax.o_standardize(h, p),
    oflax.present_mean(h[:, 1], p),
  ):
    assert bool(jnp.any(jnp.isnan(out)))


def test_c35_a_row_of_vanished_presence_passes_through_unchanged():
  h = normal(0, 4, D).at[1].set(1e-25)
  variables = initialised(MODEL, h)
  assert oflax.presence(h)[1] == 0
  out = MODEL.apply(variables, h)
  np.testing.assert_array_equal(out[1], h[1])


def test_c36_ambiguous_visibility_is_refused():
  x, p = jnp.ones((4, 5, 4, 8)), jnp.ones((4, 5))
  with pytest.raises(ValueError, match=r"mask must have shape .*\(4, 5, 5\)"):
    oflax.o_attention(x, x, x, p, p, mask=jnp.ones((4, 5, 5), bool))
  with pytest.raises(ValueError, match="receiver_segments and source_segments"):
    oflax.o_attention(x, x, x, p, p, receiver_segments=jnp.zeros(5, int))


def test_c37_without_the_collection_the_field_is_the_threshold():
  h = normal(0, 4, D)
  module = linen.OTransformer(1, 2, 12, tau=3.0)
  variables = initialised(module, h)
  np.testing.assert_array_equal(
    module.apply({"params": variables["params"]}, h),
    module.apply(variables, h),
  )


def test_c38_receiver_presence_does_not_serve_other_sources():
  h, memory = normal(0, 5, D), normal(1, 5, D).at[2].set(0)
  module = linen.OAttention(2)
  variables = initialised(module, h, memory)
  p = jnp.full(5, 0.5)
  got = module.apply(variables, h, memory, receiver_presence=p)
  want = module.apply(
    variables,
    h,
    memory,
    receiver_presence=p,
    source_presence=oflax.presence(memory),
  )
  np.testing.assert_array_equal(got, want)
