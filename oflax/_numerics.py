"""Numerical tricks, one function each, named for the failure it prevents."""

import math

import jax
from jax import lax
import jax.numpy as jnp

# e^60 is the largest weight a null source may carry in a derivative: float32
# then has room for sums, 10^12 times as large, before inf · 0 makes a NaN.
MAX_EXPONENT = 60.0

# A mapped axis, as of `jax.shard_map`, or several.
AxisName = str | tuple[str, ...]


def wide_dtype(*arrays: jax.Array) -> jnp.dtype:
  """float32 or wider: the dtype in which products with p are formed."""
  return jnp.result_type(jnp.float32, *(x.dtype for x in arrays))


def over(presence: jax.Array, like: jax.Array) -> jax.Array:
  """Presence `[..., n]` with trailing ones, to meet `like` `[..., n, ...]`."""
  return presence.reshape(presence.shape + (1,) * (like.ndim - presence.ndim))


def quarantine(x: jax.Array, presence: jax.Array) -> jax.Array:
  """Zeroes the non-finite entries of absent tokens, and nothing else.

  Prevents 0 · NaN in values and in cotangents. Finite entries stay: the key and
  value that a bias gives a null carry the curvature of its presence.
  """
  return jnp.where((over(presence, x) == 0) & ~jnp.isfinite(x), 0, x)


def quarantine_input(x: jax.Array, presence: jax.Array) -> jax.Array:
  """Also zeroes entries so large that a map of the token may overflow."""
  limit = math.sqrt(float(jnp.finfo(x.dtype).max))
  return jnp.where((over(presence, x) == 0) & ~(jnp.abs(x) < limit), 0, x)


def gate(update: jax.Array, presence: jax.Array) -> jax.Array:
  """The product p · u, wide; exactly 0, never 0 · NaN, where p is 0."""
  update = quarantine(update, presence)
  return over(presence, update) * update.astype(wide_dtype(update, presence))


@jax.custom_jvp
def bounded_exp(x: jax.Array) -> jax.Array:
  """exp(x), at most e^60, lest a null of a far larger score overflow.

  The derivative is the value itself: that of a minimum would cost a second
  pass, and what exceeds the bound has no mass.
  """
  return jnp.exp(jnp.minimum(x, MAX_EXPONENT))


@bounded_exp.defjvp
def _bounded_exp_jvp(
  primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
  value = bounded_exp(*primals)
  return value, value * tangents[0]


def split_mass(presence: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Splits p into a mass near 1 and a constant logarithm: p = mass · e^log.

  With the logarithm inside the softmax maximum, supports of presence 1e-37
  normalise. A null has mass 0 with derivative 1 and logarithm 0, so neither
  log 0 nor 0 / 0 arises and its curvature survives.
  """
  unit = lax.stop_gradient(jnp.where(presence == 0, 1, presence))
  return presence / unit, jnp.log(unit)


def safe_divide(numerator: jax.Array, total: jax.Array) -> jax.Array:
  """The quotient, and 0 with zero derivatives where total is 0."""
  empty = total == 0
  ratio = numerator / jnp.where(empty, 1, total)
  return jnp.where(empty, 0, ratio)


def total(
  x: jax.Array, axis: int | None, axis_name: AxisName | None
) -> jax.Array:
  """The sum over an array axis, kept, and over the shards."""
  result = jnp.sum(x, axis=axis, keepdims=True)
  return result if axis_name is None else lax.psum(result, axis_name)


def largest(
  x: jax.Array, axis: int | None, axis_name: AxisName | None
) -> jax.Array:
  """The largest of numbers that are not negative, a constant; kept as above."""
  x = lax.stop_gradient(x)
  result = jnp.max(x, axis=axis, keepdims=True, initial=0)
  return result if axis_name is None else lax.pmax(result, axis_name)


def shares(
  presence: jax.Array, axis: int | None, axis_name: AxisName | None = None
) -> jax.Array:
  """The shares p / Σ p; 0 with zero derivatives where nothing is present.

  Divides by the largest p first: (Σ p)² in the derivative would underflow.
  """
  top = largest(presence, axis, axis_name)
  mass = presence / jnp.where(top == 0, 1, top)
  return safe_divide(mass, total(mass, axis, axis_name))


def square_unit(
  x: jax.Array, axis: int, axis_name: AxisName | None = None
) -> jax.Array:
  """A constant to divide by, lest squares overflow: 1 for ordinary values."""
  top = largest(jnp.abs(x), axis, axis_name)
  return jnp.where(top > 1e15, top, 1)


def inverse_root(
  variance: jax.Array, epsilon: float, unit: jax.Array
) -> jax.Array:
  """1 / √(σ² + ε), where σ² is in squares of the unit; finite for σ = 0."""
  tiny = jnp.finfo(variance.dtype).tiny
  added = jnp.asarray(epsilon, variance.dtype) * jnp.square(1 / unit)
  return lax.rsqrt(variance + jnp.maximum(added, tiny))
