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
  if not isinstance(scale, float):  # Kernels want it to be static.
    query, scale = query * scale, 1.0
  columns = _log_presence(operands.source_presence, scale, dtype)
  columns = jnp.moveaxis(columns, 1, 2)
  columns = jnp.broadcast_to(columns, (*key.shape[:-1], columns.shape[-1]))
  ones = jnp.ones((*query.shape[:-1], columns.shape[-1]), dtype)
  query = jnp.concatenate([query.astype(dtype), ones], axis=-1)
  key = jnp.concatenate([key.astype(dtype), columns], axis=-1)
  # Kernels take values as wide as keys.
  features = max(key.shape[-1], value.shape[-1])
  features += -features % MULTIPLE
  shape = operands.sizes[2:]
  outputs = jax.nn.dot_product_attention(
    _padded(query, features),
    _padded(key, features),
    _padded(value.astype(dtype), features),
    bias=None if bias is None else _whole(bias, shape).astype(dtype),
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
  """Parts that add up to log p / scale, ``[B, 1, S, parts]``.

  Each part survives a product of low precision. A null has a finite number that
  no score makes up for.
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
  lowest = -min(1e30, float(jnp.finfo(dtype).max) / 2)
  nulls = [jnp.full_like(exact, lowest), *[jnp.zeros_like(exact)] * (count - 1)]
  columns = [
    jnp.where(absent, null, part)
    for null, part in zip(nulls, parts, strict=True)
  ]
  return jnp.concatenate(columns, axis=-2).mT.astype(dtype)


def _padded(x: jax.Array, features: int) -> jax.Array:
  return jnp.pad(x, [(0, 0)] * 3 + [(0, features - x.shape[-1])])


def _whole(pairs: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  return jnp.broadcast_to(pairs, (*pairs.shape[:2], *shape))


def _kernel(dtype: Any) -> Literal["cudnn", "xla"]:
  """The flash attention of cuDNN where it is; else what XLA makes of it."""
  short = dtype.itemsize == 2
  return "cudnn" if short and jax.default_backend() == "gpu" else "xla"
