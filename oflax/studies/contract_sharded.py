"""What the contract tries on several devices: all that is cut over them."""

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

import oflax
from oflax import linen
from oflax.linen import placement
from oflax.studies import contract_subjects as subjects
from oflax.studies.contract_subjects import Subject

TOKENS = P("sequence")


def mesh_of(devices: int) -> Mesh:
  """Heads over two of the devices, if they are even, and tokens over the rest.

  Args:
    devices: How many.

  Returns:
    A mesh with the axes "tensor" and "sequence".

  Raises:
    ValueError: There are not so many devices.
  """
  found = jax.devices()
  if not 1 < devices <= len(found):
    raise ValueError(
      f"devices must be 2 to {len(found)}, as many as there are, got {devices}."
    )
  heads = 2 if devices % 2 == 0 and devices > 2 else 1
  grid = np.array(found[:devices]).reshape(heads, -1)
  return Mesh(grid, ("tensor", "sequence"))


def functions(mesh: Mesh) -> list[Subject]:
  """Attention in a ring, and the statistics of tokens."""

  def attention(*operands: jax.Array, **options: Any) -> jax.Array:
    return placement.attend(*operands, **options)[0]

  attentions: dict[str, dict[str, Any]] = {
    "o_attention": {},
    "mask": {"options": subjects.pair_mask},
    "bias": {"options": subjects.pair_bias},
    "segments": {"options": subjects.segments},
    "causal": {"is_causal": True, "unordered": False},
    "window": {"local_window_size": (1, 2), "unordered": False},
    "grouped heads": {"kv_heads": 1},
    "large scores": {"scores": 30.0},
    "cross": {"cross": True},
    "blocks": {"implementation": oflax.BlockSizes(1, 1, 1)},
  }
  statistics = {
    "o_standardize": lambda h, p, w, b: oflax.o_standardize(
      h, p, axis_name="sequence"
    ),
    "o_pool": _pool,
    "o_inject": _inject,
  }
  return [
    *(
      subjects.attention_subject(
        f"{name}, sharded", attention=attention, **options
      )
      for name, options in attentions.items()
    ),
    *(
      subjects.local_subject(
        f"{name}, sharded", _cut(mesh, fn), unordered=name != "o_inject"
      )
      for name, fn in statistics.items()
    ),
  ]


def modules() -> list[Subject]:
  """Modules, which cut their tokens and heads by themselves."""
  model: dict[str, Any] = {
    "num_layers": 2,
    "num_heads": subjects.HEADS,
    "mlp_dim": 12,
  }
  ordered: dict[str, Any] = {"rotary": True, "is_causal": True}
  return [
    subjects.module_subject(
      "OAttention, sharded", linen.OAttention(subjects.HEADS)
    ),
    subjects.module_subject(
      "OAttention cross, sharded", linen.OAttention(subjects.HEADS), cross=True
    ),
    subjects.module_subject(
      "OTransformer, sharded", linen.OTransformer(**model)
    ),
    subjects.module_subject(
      "OTransformer ordered, sharded",
      linen.OTransformer(gated=True, final_norm=True, **ordered, **model),
      unordered=False,
    ),
    subjects.module_subject(
      "OTransformer post, scanned, sharded",
      linen.OTransformer(norm_placement="post", scan_layers=True, **model),
    ),
  ]


def _pool(h: jax.Array, p: jax.Array, *_: jax.Array) -> jax.Array:
  mean = oflax.o_pool(h, p, axis_name="sequence")
  return oflax.o_gate(jax.numpy.broadcast_to(mean, h.shape), p)


def _inject(
  h: jax.Array, p: jax.Array, kernel: jax.Array, bias: jax.Array
) -> jax.Array:
  del bias
  rank = oflax.presence_rank(p, axis_name="sequence")
  return oflax.o_inject(h, kernel[rank], p)


def _cut(mesh: Mesh, fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """A function of a shard, on tokens filled up with nulls and cut."""

  def run(h: jax.Array, p: jax.Array, *rest: jax.Array) -> jax.Array:
    filled = functools.partial(
      placement.filled, axis=0, shards=mesh.shape["sequence"]
    )
    outputs = jax.shard_map(
      fn,
      mesh=mesh,
      in_specs=(TOKENS, TOKENS, *[P()] * len(rest)),
      out_specs=TOKENS,
    )(filled(h), filled(p), *rest)
    return outputs[: h.shape[0]]

  return run
