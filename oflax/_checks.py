"""Refusals: each names the argument and its value."""

from collections.abc import Sequence
import numbers
import typing

import jax
import jax.numpy as jnp
import numpy as np


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
  if value not in choices:
    options = ", ".join(repr(choice) for choice in choices)
    raise ValueError(f"{name} must be one of {options}, got {value!r}.")


def check_scalar(name: str, value: typing.Any) -> None:
  if jnp.ndim(value) != 0:
    raise ValueError(f"{name} must be a scalar, got shape {jnp.shape(value)}.")


def check_positive(name: str, value: typing.Any) -> None:
  """Refuses values that are not normal in float32; lets tracers pass."""
  check_scalar(name, value)
  if isinstance(value, jax.core.Tracer):
    return
  with np.errstate(over="ignore"):
    rounded = np.asarray(value).astype(np.float32)
  if not (np.finfo(np.float32).tiny <= rounded < np.inf):
    raise ValueError(f"{name} must be positive and finite, got {value!r}.")


def check_at_least(name: str, value: typing.Any, minimum: int) -> None:
  if not isinstance(value, numbers.Integral) or value < minimum:
    raise ValueError(
      f"{name} must be a whole number of at least {minimum}, got {value!r}."
    )


def check_interval(
  name: str, value: float, low: float, high: float, ends: str = "[]"
) -> None:
  """Refuses values outside an interval; `ends` such as "[)" says which kind."""
  above = value >= low if ends[0] == "[" else value > low
  below = value <= high if ends[1] == "]" else value < high
  if not (above and below):
    interval = f"{ends[0]}{low}, {high}{ends[1]}"
    raise ValueError(f"{name} must be in {interval}, got {value!r}.")


def check_floating(name: str, array: jax.Array) -> None:
  if not jnp.issubdtype(array.dtype, jnp.floating):
    raise ValueError(f"{name} must be floating point, got {array.dtype}.")


def check_rank(name: str, array: jax.Array, rank: int, shape: str) -> None:
  if array.ndim < rank:
    raise ValueError(f"{name} must be {shape}, got shape {array.shape}.")


def per_token(
  name: str, value: typing.Any, tokens: tuple[int, ...]
) -> jax.Array:
  """`value`, one entry a token: in shape `tokens`, or without batch axes."""
  array = jnp.asarray(value)
  if array.shape not in (tokens, tokens[-1:]):
    raise ValueError(
      f"{name} must have shape {tokens} or {tokens[-1:]}, got {array.shape}."
    )
  return jnp.broadcast_to(array, tokens)


def presence_of(
  name: str, value: typing.Any, tokens: tuple[int, ...]
) -> jax.Array:
  """A presence with one entry a token, in float32 or wider."""
  array = per_token(name, value, tokens)
  return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def carriers_and_presence(
  name: str, tokens: typing.Any, presence: typing.Any
) -> tuple[jax.Array, jax.Array]:
  tokens = jnp.asarray(tokens)
  check_floating(name, tokens)
  check_rank(name, tokens, 2, "[..., n, d]")
  return tokens, presence_of("presence", presence, tokens.shape[:-1])
