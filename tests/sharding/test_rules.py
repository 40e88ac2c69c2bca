"""Every parameter of every module has names, and plain arrays stay plain."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import pytest

from oflax import linen
from oflax import sharding
from oflax.linen import placement

H = jnp.ones((2, 4, 8))
BODY = {"num_layers": 2, "num_heads": 2, "mlp_dim": 8, "final_norm": True}
MODULES = {
  "ONorm": (linen.ONorm(learnable_tau=True), H),
  "OFFN": (linen.OFFN(12, gated=True), H),
  "OAttention": (linen.OAttention(2, num_kv_heads=1, normalize_qk=True), H),
  "OTransformer": (linen.OTransformer(**BODY, gated=True), H),
  "scanned": (linen.OTransformer(**BODY, scan_layers=True), H),
  "OEmbed": (linen.OEmbed(10, 8), jnp.ones((2, 4), int)),
  "OLanguageModel": (
    linen.OLanguageModel(10, 8, num_layers=1, num_heads=2, mlp_dim=8),
    jnp.ones((2, 4), int),
  ),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_axis_of_every_parameter_has_a_name(name):
  module, inputs = MODULES[name]
  shapes = jax.eval_shape(module.init, jax.random.key(0), inputs)["params"]
  known = {axis for axis, _ in sharding.RULES}
  for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
    assert isinstance(leaf, jax.ShapeDtypeStruct)
    path = jax.tree_util.keystr(path, simple=True, separator="/")
    names = sharding.names_of(path, leaf.ndim)
    assert len(names) == leaf.ndim
    assert set(names) <= known, path


def test_rules_pass_over_what_a_mesh_lacks_or_does_not_divide():
  def spec(names, shape, **sizes):
    return placement.spec(names, shape, sizes, sharding.RULES)

  names = ("embed", "heads", "head_features")
  assert spec(names, (8, 4, 2), tensor=4, fsdp=2) == P("fsdp", "tensor", None)
  assert spec(names, (8, 4, 2), tensor=4) == P(None, "tensor", None)
  assert spec(names, (8, 3, 2), tensor=4) == P(None, None, None)
  assert spec(names, (8, 4, 2), tensor=1) == P(None, None, None)
  batch = spec(("batch", None), (8, 3), data=2, fsdp=4, tensor=1)
  assert batch == P(("data", "fsdp"), None)
