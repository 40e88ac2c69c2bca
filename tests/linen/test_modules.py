"""Modules: Flax's conventions, trees and options."""

from flax import linen as nn
from flax import nnx
from flax import traverse_util
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import pytest

import oflax
from oflax import laws
from oflax import linen

D = 8
H = jax.random.normal(jax.random.key(0), (2, 5, D)).at[0, 3].set(0)
KEY = jax.random.key(1)
VARIANTS = ("host", "attention", "full")


def randomised(variables, seed=2):
  params = variables["params"]
  leaves, structure = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  leaves = [
    x + 0.3 * jax.random.normal(k, x.shape, x.dtype)
    for x, k in zip(leaves, keys, strict=True)
  ]
  return {**variables, "params": jax.tree.unflatten(structure, leaves)}


def shapes(tree):
  flat = traverse_util.flatten_dict(tree, sep="/")
  return {name: leaf.shape for name, leaf in flat.items()}


@pytest.mark.parametrize("normalize_qk", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_flax_checkpoint_agrees_as_tau_vanishes(normalize_qk, dtype):
  flax_module = nn.MultiHeadDotProductAttention(
    2, normalize_qk=normalize_qk, dtype=dtype
  )
  h = jnp.where(H == 0, 1.0, H)
  variables = randomised(flax_module.init(KEY, h))
  module = linen.OAttention(2, normalize_qk=normalize_qk, dtype=dtype)
  ours = module.init(KEY, h)
  assert shapes(ours["params"]) == shapes(variables["params"])
  want = flax_module.apply(variables, h).astype(jnp.float32)
  tau = {"presence": {"tau": jnp.float32(1e-12)}}
  got = module.apply({**variables, "calibration": tau}, h).astype(jnp.float32)
  # One bfloat16 step of a probability is far coarser than ours.
  tolerance = 1e-6 if dtype == jnp.float32 else 2e-2
  largest = float(jnp.max(jnp.abs(want)))
  np.testing.assert_allclose(got, want, atol=tolerance * largest)


def test_a_module_passes_through_the_nnx_bridge_with_its_laws():
  module = linen.OTransformer(2, 2, 12)
  bridged = nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(H[0])
  laws.assert_o_closure(bridged, H[0], [0, 4])
  variables = module.init(KEY, H[0])
  assert bridged.block_0["attention_presence"]["tau"].shape == ()
  assert variables["calibration"]["block_0"]["attention_presence"]


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_variants_share_one_tree(norm_placement):
  trees = [
    shapes(
      linen.OTransformer(
        2, 2, 12, variant=variant, norm_placement=norm_placement
      ).init(KEY, H)
    )
    for variant in VARIANTS
  ]
  assert trees[0] == trees[1] == trees[2]
  norms = {"attention_norm", "ffn_norm"}
  own = {name.split("/")[2] for name in trees[0] if "calibration" in name}
  assert norms.issubset(own) == (norm_placement == "post")
  blocks = {name.split("/")[2] for name in trees[0] if "params" in name}
  assert blocks == {"attention_norm", "attention", "ffn_norm", "ffn"}


def test_the_host_is_an_ordinary_transformer_block():
  block = linen.OBlock(2, 12, variant="host")
  variables = randomised(block.init(KEY, H))
  params = variables["params"]
  mask = jax.random.bernoulli(KEY, 0.7, (5, 5)) | jnp.eye(5, dtype=bool)
  norm = nn.LayerNorm()
  attention = nn.MultiHeadDotProductAttention(2)

  def dense(name, x):
    layer = params["ffn"][name]
    return x @ layer["kernel"] + jnp.broadcast_to(
      layer["bias"], (*x.shape[:-1], layer["bias"].size)
    )

  h = norm.apply({"params": params["attention_norm"]}, H)
  mask_4d = mask[None, None]
  h = H + attention.apply({"params": params["attention"]}, h, mask=mask_4d)
  update = norm.apply({"params": params["ffn_norm"]}, h)
  want = h + dense("down", nn.gelu(dense("up", update)))
  got = block.apply(variables, H, mask=mask)
  np.testing.assert_allclose(got, want, atol=5e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_full_variant_is_closed(variant):
  module = linen.OTransformer(2, 2, 12, variant=variant)
  variables = randomised(module.init(KEY, H))
  apply = lambda h: module.apply(variables, h)
  if variant == "full":
    laws.assert_o_closure(apply, H, [0, 3, 7])
  else:
    with pytest.raises(AssertionError, match="O-closure"):
      laws.assert_o_closure(apply, H, [0, 3, 7])


def test_the_output_is_gated_once_and_its_bias_with_it():
  module = linen.OAttention(2)
  variables = randomised(module.init(KEY, H))
  p = jnp.linspace(0.1, 1.0, 5)
  gated = module.apply(
    variables, H, receiver_presence=p, source_presence=jnp.ones(5)
  )
  plain = module.apply(variables, H, receiver_presence=jnp.ones(5))
  want = plain * jnp.broadcast_to(p[:, None], plain.shape)
  np.testing.assert_allclose(gated, want, atol=1e-6)


def test_a_receiver_presence_serves_both_sides_of_self_attention():
  module = linen.OAttention(2)
  variables = module.init(KEY, H)
  p = jnp.linspace(0.1, 1.0, 5)
  np.testing.assert_array_equal(
    module.apply(variables, H, receiver_presence=p),
    module.apply(variables, H, receiver_presence=p, source_presence=p),
  )


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("learnable", [False, True])
def test_calibration_sets_every_tau_from_what_it_saw(scan, learnable):
  module = linen.OTransformer(
    2, 2, 12, scan_layers=scan, learnable_tau=learnable, final_norm=True
  )
  variables = module.init(KEY, H)
  result = oflax.calibrate(module, variables, H, presence=0.5, quantile=0.5)
  block = "blocks" if scan else "block_0"
  name = (block, "attention_presence")
  if learnable:
    tau = np.exp(result["params"][name[0]][name[1]]["log_tau"])
    assert "calibration" not in result
  else:
    tau = np.asarray(result["calibration"][name[0]][name[1]]["tau"])
  squares = np.sum(np.square(H), axis=-1)
  want = np.median(squares[squares > 0])
  np.testing.assert_allclose(tau[0] if scan else tau, want, rtol=1e-5)
  assert tau.shape == ((2,) if scan else ())
  assert jax.tree.structure(result) == jax.tree.structure(dict(variables))


def test_calibration_works_without_the_collection_and_names_an_empty_site():
  module = linen.OTransformer(1, 2, 12)
  variables = module.init(KEY, H)
  bare = {"params": variables["params"]}
  assert shapes(oflax.calibrate(module, bare, H)) == shapes(variables)
  with pytest.raises(ValueError, match="block_0/attention_presence: carriers"):
    oflax.calibrate(module, variables, 0 * H)
  with pytest.raises(ValueError, match="calls no OPresence, got Dense"):
    oflax.calibrate(nn.Dense(3), nn.Dense(3).init(KEY, H), H)


def test_each_side_has_the_ranks_of_its_own_presence():
  h = jax.random.normal(jax.random.key(0), (1, 4, 8))
  module = linen.OAttention(2, is_causal=True)
  variables = module.init(jax.random.key(1), h)
  receivers, sources = jnp.ones((1, 4)), jnp.array([[1.0, 0.0, 1.0, 1.0]])
  presences = {"receiver_presence": receivers, "source_presence": sources}
  ranks = {
    "receiver_positions": jnp.array([[0, 1, 2, 3]]),
    "source_positions": jnp.array([[0, 0, 1, 2]]),
  }
  np.testing.assert_array_equal(
    module.apply(variables, h, **presences),
    module.apply(variables, h, **presences, **ranks),
  )


def test_presence_and_weights_are_sown_on_request():
  module = linen.OTransformer(2, 2, 12)
  variables = module.init(KEY, H)
  out, state = module.apply(
    variables, H, sow_weights=True, mutable=["intermediates"]
  )
  block = state["intermediates"]["block_1"]
  (weights,) = block["attention"]["attention_weights"]
  (p,) = block["attention_presence"]["presence"]
  assert weights.shape == (2, 2, 5, 5)
  np.testing.assert_allclose(jnp.sum(weights, -1), 1, atol=1e-6)
  assert p.shape == (2, 5)
  np.testing.assert_array_equal(out, module.apply(variables, H))


def test_logical_axes_attach_through_the_initialisers():
  init = nn.with_logical_partitioning(
    nn.initializers.lecun_normal(), ("embed", "heads", "kv")
  )
  module = linen.OAttention(2, kernel_init=init)
  spec = nn.get_partition_spec(module.init(KEY, H))
  assert spec["params"]["query"]["kernel"] == PartitionSpec(
    "embed", "heads", "kv"
  )
  variables = nn.meta.unbox(module.init(KEY, H))
  assert module.apply(variables, H).shape == H.shape


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_mixed_precision_keeps_the_residual_stream(dtype):
  module = linen.OTransformer(1, 2, 12, dtype=dtype, final_norm=True)
  variables = module.init(KEY, H)
  assert {x.dtype.name for x in jax.tree.leaves(variables)} == {"float32"}
  assert linen.OBlock(2, 12, dtype=dtype).init_with_output(KEY, H)[0].dtype == (
    jnp.float32
  )
  out = module.apply(variables, H)
  assert out.dtype == dtype
  np.testing.assert_array_equal(out[0, 3], np.zeros(D))


def test_embeddings_of_null_ids_are_exact_zeros_without_gradient():
  module = linen.OEmbed(10, 4)
  ids = jnp.array([3, 0, -1, -7, 9])
  variables = module.init(KEY, ids)
  out = module.apply(variables, ids)
  assert (jnp.abs(out).sum(-1) > 0).tolist() == [
    True,
    False,
    False,
    False,
    True,
  ]
  gradient = jax.grad(lambda v: jnp.sum(module.apply(v, ids)))(variables)
  rows = np.abs(gradient["params"]["embedding"]).sum(-1) > 0
  assert np.flatnonzero(rows).tolist() == [3, 9]
  flax_out = nn.Embed(10, 4).apply(variables, ids[:1])
  np.testing.assert_array_equal(out[:1], flax_out)
  assert bool(jnp.isnan(jax.jit(module.apply)(variables, ids + 1)).any())


def test_stacking_has_an_inverse():
  variables = linen.OTransformer(3, 2, 12).init(KEY, H)
  back = linen.unstack_blocks(linen.stack_blocks(variables))
  jax.tree.map(np.testing.assert_array_equal, back, dict(variables))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: linen.OAttention(3).init(KEY, H), "num_heads=3 must divide"),
    (lambda: linen.OAttention(2, num_kv_heads=0).init(KEY, H), "kv_heads=0"),
    (
      lambda: linen.OAttention(2, rotary_base=0.0).init(KEY, H),
      "rotary_base must be positive .*got 0.0",
    ),
    (
      lambda: linen.OAttention(2).init(KEY, H, H, H[:, :3]),
      r"same tokens, got shapes \(2, 5, 8\) and \(2, 3, 8\)",
    ),
    (
      lambda: linen.OTransformer(1, 2, 12).init(KEY, H[0, 0]),
      r"carriers must be .*got shape \(8,\)",
    ),
    (
      lambda: linen.OTransformer(1, 2, 12, norm="batch").init(KEY, H),
      "norm must be .*'batch'",
    ),
    (lambda: linen.OAttention(0).init(KEY, H), "num_heads=0"),
    (
      lambda: linen.OAttention(4, num_kv_heads=3).init(KEY, H),
      "num_kv_heads=3 must divide num_heads=4",
    ),
    (
      lambda: linen.OAttention(8, rotary=True).init(KEY, H),
      "rotary needs an even number .*got 1",
    ),
    (
      lambda: linen.OAttention(2).init(KEY, H, inputs_v=H),
      "inputs_v needs inputs_k, got inputs_k=None",
    ),
    (lambda: linen.OAttention(2).init(KEY, H[0, 0]), r"got shape \(8,\)"),
    (
      lambda: linen.OAttention(2, dropout_rate=1.5).init(KEY, H),
      r"dropout_rate must be in \[0, 1\), got 1.5",
    ),
    (lambda: linen.OPresence(tau=-2.0).init(KEY, H), "tau must be .*-2.0"),
    (lambda: linen.ONorm(kind="batch").init(KEY, H), "kind must be .*'batch'"),
    (lambda: linen.OFFN(0).init(KEY, H), "hidden_features must be .*got 0"),
    (
      lambda: linen.OBlock(2, 12, variant="half").init(KEY, H),
      "variant must be .*'half'",
    ),
    (
      lambda: linen.OTransformer(1, 2, 12, norm_placement="mid").init(KEY, H),
      "norm_placement must be .*'mid'",
    ),
    (
      lambda: linen.OTransformer(-1, 2, 12).init(KEY, H),
      "num_layers must not be negative, got -1",
    ),
    (
      lambda: linen.OEmbed(4, 2).init(KEY, jnp.array([4])),
      "ids must be below num_embeddings=4, got 4",
    ),
    (lambda: linen.OEmbed(4, 2).init(KEY, H), "ids must be integers.*float32"),
    (
      lambda: linen.stack_blocks({"block_0": 0, "block_2": 0}),
      r"blocks \[0, 2\], with gaps",
    ),
  ],
)
def test_wrong_input_is_named_with_its_value(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_a_missing_dropout_rng_is_named():
  module = linen.OTransformer(1, 2, 12, dropout_rate=0.5)
  variables = module.init(KEY, H)
  with pytest.raises(Exception, match='"dropout"'):
    module.apply(variables, H, deterministic=False)


@pytest.mark.parametrize("field", [None, True, False])
def test_the_deterministic_field_and_argument_decide_on_dropout(field):
  module = linen.OTransformer(1, 2, 12, dropout_rate=0.5, deterministic=field)
  rngs = {"params": KEY, "dropout": jax.random.key(3)}
  variables = module.init(rngs, H)
  outs = [
    module.apply(variables, H, rngs=rngs)
    for rngs in (
      {"dropout": jax.random.key(1)},
      {"dropout": jax.random.key(2)},
    )
  ]
  assert bool(jnp.all(outs[0] == outs[1])) == (field is not False)
  assert module.apply(variables, H, deterministic=True).shape == H.shape


@pytest.mark.parametrize("large", [jnp.nan, 1e30, 3e38])
@pytest.mark.parametrize(
  "module", [linen.OAttention(2, normalize_qk=True), linen.OFFN(16, gated=True)]
)
def test_absent_rows_may_hold_anything_in_modules(module, large):
  name = "presence"
  if isinstance(module, linen.OAttention):
    name = "receiver_presence"
  variables = randomised(module.init(KEY, H))
  p = {name: jnp.array([1.0, 0.0, 1.0, 1.0, 1.0])}
  loss = lambda v, h: jnp.sum(module.apply(v, h, **p) ** 2)
  want = jax.grad(loss)(variables, H.at[:, 1].set(0))
  got = jax.grad(loss)(variables, H.at[:, 1].set(large))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
    got["params"],
    want["params"],
  )


def test_ordinary_variants_take_positions_by_index():
  rotary = {"num_layers": 1, "num_heads": 2, "mlp_dim": 12, "rotary": True}
  host = linen.OTransformer(variant="host", **rotary)
  variables = host.init(KEY, H)
  np.testing.assert_array_equal(
    host.apply(variables, H),
    linen.OTransformer(closed=False, **rotary).apply(variables, H),
  )


def test_a_null_id_may_lie_outside_of_the_table():
  module = linen.OEmbed(10, 4, null_id=10)
  ids = jnp.array([3, 10])
  out, _ = module.init_with_output(KEY, ids)
  assert (jnp.abs(out).sum(-1) > 0).tolist() == [True, False]
