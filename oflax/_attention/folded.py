"""OAttention by a fused kernel: the presence becomes a part of the key.

A query has ones and a key has log p as further features, so that no bias of
T × S numbers is needed. What fused kernels lack is not promised here: second
derivatives, forward mode, and the derivative by the presence of a null.
Kernels compute in float32 at most, float64 inputs included.
"""

from typing import Any
from typing import Literal

import jax
from jax import lax
import jax.numpy as jnp

from oflax._attention import reference
from oflax._attention.operands import Operands

# cuDNN wants the features to be a multiple of this.
MULTIPLE = 8
# Scales that a kernel may take for itself: log p is divided by them.
SCALES = (1e-3, 1e3)


def attend(operands: Operands) -> tuple[jax.Array, jax.Array]:
  """As `reference.attend`, by `jax.nn.dot_product_attention`."""
  for name in ("dropout_rate", "precision"):
    value = getattr(operands, name)
    if value:
      raise ValueError(
        f'{name} is not for implementation="folded", got {value!r}.'
      )
  if 0 in operands.sizes:
    return reference.attend(operands)
  bias, visible = reference.additive(operands)
  query = operands.finite_query()
  key, value = operands.finite_sources()
  dtype = jnp.result_type(query, key, value)
  scale = operands.scale
  # Kernels want it to be static.
  if not (isinstance(scale, float) and SCALES[0] <= scale <= SCALES[1]):
    query, scale = query * scale, 1.0
  columns = _log_presence(operands.source_presence, scale, dtype)
  columns = jnp.moveaxis(columns, 1, 2)
  columns = jnp.broadcast_to(columns, (*key.shape[:-1], columns.shape[-1]))
  ones = jnp.ones((*query.shape[:-1], columns.shape[-1] - 1), dtype)
  far = jnp.full_like(ones[..., :1], _far(dtype))
  query = jnp.concatenate([query.astype(dtype), far, ones], axis=-1)
  key = jnp.concatenate([key.astype(dtype), columns], axis=-1)
  # Kernels take values as wide as keys.
  features = max(key.shape[-1], value.shape[-1])
  features += -features % MULTIPLE
  shape = operands.sizes[2:]
  outputs = jax.nn.dot_product_attention(
    _padded(query, features),
    _padded(key, features),
    _padded(value.astype(dtype), features),
    bias=None if bias is None else _whole(_bounded(bias, dtype), shape),
    mask=None if visible is None else _whole(visible, shape),
    scale=scale,
    implementation=_kernel(dtype),
  )
  means = outputs[..., : value.shape[-1]]
  supporting = operands.source_presence != 0
  if visible is not None:
    supporting = supporting & visible
  support = jnp.moveaxis(jnp.any(supporting, axis=-1), 1, 2)
  support = jnp.broadcast_to(support, means.shape[:-1])
  return operands.gated(jnp.where(support[..., None], means, 0)), support


def _log_presence(
  presence: jax.Array, scale: float, dtype: jnp.dtype
) -> jax.Array:
  """How far off a null is, and parts that add up to log p / scale.

  Each part survives a product of low precision. No score makes up for how far a
  null is, times its like in the query. ``[B, 1, S, 1 + parts]``.
  """
  absent = presence == 0
  exact = jnp.log(jnp.where(absent, 1, presence)) / scale
  short, count = jnp.bfloat16, 3
  if dtype == jnp.float16:
    short, count = dtype, 2
  parts, rest = [], lax.stop_gradient(exact)
  for _ in range(count):
    parts.append(rest.astype(short).astype(rest.dtype))
    rest = rest - parts[-1]
  # All of the derivative goes through the first part.
  parts[0] = exact + lax.stop_gradient(parts[0] - exact)
  distance = jnp.where(absent, -_far(dtype), 0)
  columns = [distance, *(jnp.where(absent, 0, part) for part in parts)]
  return jnp.concatenate(columns, axis=-2).mT.astype(dtype)


def _far(dtype: jnp.dtype) -> float:
  """A number whose square is more than scores are, and finite in float32."""
  return min(1e17, float(jnp.finfo(dtype).max) / 2)


def _bounded(bias: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """The bias, so that it is finite in a dtype and nearer than a null is."""
  most = min(1e29, float(jnp.finfo(dtype).max) / 2)
  return jnp.clip(bias, -most, most).astype(dtype)


def _padded(x: jax.Array, features: int) -> jax.Array:
  return jnp.pad(x, [(0, 0)] * 3 + [(0, features - x.shape[-1])])


def _whole(pairs: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  return jnp.broadcast_to(pairs, (*pairs.shape[:2], *shape))


def _kernel(dtype: Any) -> Literal["cudnn", "xla"]:
  """The flash attention of cuDNN where it is; else what XLA makes of it."""
  short = dtype.itemsize == 2
  return "cudnn" if short and jax.default_backend() == "gpu" else "xla"
