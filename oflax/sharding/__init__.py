"""Sharding: one model on many devices, by JAX's own engine.

A user trains an OTransformer on a data × tensor × sequence mesh::

  import jax, jax.numpy as jnp, numpy as np, optax, oflax
  from oflax import sharding
  from oflax.linen import OTransformer

  model = OTransformer(2, num_heads=4, mlp_dim=64, rotary=True, is_causal=True)

  def loss_fn(variables, h, rng):
    errors = jnp.sum((model.apply(variables, h) - h) ** 2, axis=-1)
    return oflax.present_mean(errors, oflax.presence(h)), {}

  mesh = jax.make_mesh((2, 2, 2), ("data", "tensor", "sequence"))
  h = np.random.default_rng(0).normal(size=(4, 50, 32)).astype(np.float32)
  state, step, *_ = sharding.shard(
    model, mesh, tx=optax.adam(1e-3), key=jax.random.key(0), batch=h,
    loss_fn=loss_fn,
  )
  for _ in range(10):
    state, metrics = step(state, h)

Parameters have no boxes: ``variables["params"]`` are plain arrays, and the
trees are those of Flax's modules and of checkpoints. The names of their axes
come from a table of paths (``NAMES``), which only this package reads; what cuts
them is in another (``RULES``).
"""

from oflax.sharding.rules import NAMES as NAMES
from oflax.sharding.rules import RULES as RULES
from oflax.sharding.rules import names_of
from oflax.sharding.shard import Sharded
from oflax.sharding.shard import on_mesh
from oflax.sharding.shard import put
from oflax.sharding.shard import shard

__all__ = ("Sharded", "names_of", "on_mesh", "put", "shard")
