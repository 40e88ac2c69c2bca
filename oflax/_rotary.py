"""Rotary position embedding."""

import jax
import jax.numpy as jnp


def rotate(x: jax.Array, positions: jax.Array, base: float) -> jax.Array:
  r"""Turns feature pairs (i, i + H/2) by position · base^(−2i/H).

  Args:
    x: Queries or keys, ``[..., n, N, H]``, H even.
    positions: ``[..., n]``.
    base: Of the geometric sequence of frequencies.

  Returns:
    ``[..., n, N, H]`` in the dtype of `x`. Zeros stay zeros.

  Reference: Su et al. 2021, in the layout of two halves.
  """
  half = x.shape[-1] // 2
  wide = jnp.promote_types(x.dtype, jnp.float32)
  frequency = base ** (-jnp.arange(half, dtype=wide) / max(half, 1))
  shape = (*positions.shape, 1, half)
  angle = jnp.broadcast_to(positions[..., None, None].astype(wide), shape)
  return turn(x, angle * jnp.broadcast_to(frequency, shape))


def turn(x: jax.Array, angle: jax.Array) -> jax.Array:
  """Turns feature pairs (i, i + H/2) by an angle.

  Args:
    x: Queries or keys, ``[..., n, N, H]``, H even.
    angle: Of the rank of `x`, broadcastable to ``[..., n, N, H/2]``.

  Returns:
    ``[..., n, N, H]`` in the dtype of `x`. Zeros stay zeros.
  """
  half = x.shape[-1] // 2
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  first, second = (
    part.astype(angle.dtype) for part in (x[..., :half], x[..., half:])
  )
  turned = (first * cos - second * sin, second * cos + first * sin)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)
