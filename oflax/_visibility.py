"""Visibility: who may look at whom, as one value."""

from collections.abc import Sequence
import dataclasses
import functools
import numbers
from typing import Any

import jax
import jax.numpy as jnp

from oflax import _checks
from oflax import _presence


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=("mask", "positions", "segments"),
  meta_fields=("is_causal", "window"),
)
@dataclasses.dataclass(frozen=True)
class Visibility:
  """Mask, order and segments between T receivers and S sources.

  Attributes:
    mask: Boolean, broadcastable to ``[..., N, T, S]`` and of its rank, or None.
    positions: ``[..., T]`` and ``[..., S]``, or None where order is free.
    segments: ``[..., T]`` and ``[..., S]``, or None.
    is_causal: Whether sources after a receiver are invisible.
    window: How far a receiver sees to the left and right, inclusive, or None.
  """

  mask: jax.Array | None
  positions: tuple[jax.Array, jax.Array] | None
  segments: tuple[jax.Array, jax.Array] | None
  is_causal: bool
  window: tuple[int, int] | None

  def relation(self) -> jax.Array | None:
    """The relation, broadcastable to ``[..., N, T, S]``; None: all visible."""
    terms = [] if self.mask is None else [self.mask]
    if self.positions is not None:
      receivers, sources = _pairs(self.positions)
      if self.is_causal:
        terms.append(sources <= receivers)
      if self.window is not None:
        left, right = self.window
        terms.append(sources >= receivers - left)
        terms.append(sources <= receivers + right)
    if self.segments is not None:
      receivers, sources = _pairs(self.segments)
      terms.append(receivers == sources)
    return functools.reduce(jnp.logical_and, terms) if terms else None


def visibility(
  receiver_presence: jax.Array,
  source_presence: jax.Array,
  *,
  num_heads: int,
  mask: Any = None,
  is_causal: bool = False,
  local_window_size: int | tuple[int, int] | None = None,
  receiver_positions: Any = None,
  source_positions: Any = None,
  receiver_segments: Any = None,
  source_segments: Any = None,
) -> Visibility:
  """Checks the visibility arguments of `o_attention` and gathers them.

  Positions default to the presence ranks of each side, ``[..., T]`` and
  ``[..., S]``, so that nulls shift nobody.
  """
  receivers, sources = receiver_presence.shape, source_presence.shape
  scores = (*receivers[:-1], num_heads, receivers[-1], sources[-1])
  if mask is not None:
    mask = pairwise("mask", jnp.asarray(mask), scores)
    if mask.dtype != jnp.bool_:
      raise ValueError(
        f"mask must be boolean, True where visible, got {mask.dtype}; pass"
        " additive scores as bias."
      )
  window = _window(local_window_size)

  positions = None
  if is_causal or window is not None:
    if receiver_positions is None:
      receiver_positions = _presence.presence_rank(receiver_presence)
    if source_positions is None:
      source_positions = _presence.presence_rank(source_presence)
    positions = (
      _checks.per_token("receiver_positions", receiver_positions, receivers),
      _checks.per_token("source_positions", source_positions, sources),
    )

  segments = None
  if (receiver_segments is None) != (source_segments is None):
    name = "source" if source_segments is None else "receiver"
    raise ValueError(
      "receiver_segments and source_segments go together, got"
      f" {name}_segments=None."
    )
  if receiver_segments is not None:
    segments = (
      _checks.per_token("receiver_segments", receiver_segments, receivers),
      _checks.per_token("source_segments", source_segments, sources),
    )
  return Visibility(mask, positions, segments, bool(is_causal), window)


def pairwise(name: str, array: jax.Array, scores: tuple[int, ...]) -> jax.Array:
  """`array` in the rank of `scores`: from ``[T, S]`` or that rank, with ones.

  Any other rank is refused: a ``[B, T, S]`` mask would be read as heads.
  """
  shape = array.shape
  if array.ndim == 2:
    array = array.reshape((1,) * (len(scores) - 2) + shape)
  fits = array.ndim == len(scores) and all(
    size in (1, wanted)
    for size, wanted in zip(array.shape, scores, strict=True)
  )
  if not fits:
    raise ValueError(
      f"{name} must have shape {scores[-2:]} or {scores}, with ones where it"
      f" broadcasts, got {shape}."
    )
  return array


def _window(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
  if size is None:
    return None
  window = tuple(size) if isinstance(size, Sequence) else (size, size)
  whole = all(isinstance(side, numbers.Integral) for side in window)
  if len(window) != 2 or not whole or min(window) < 0:
    raise ValueError(
      "local_window_size must be an integer w or (left, right), not negative,"
      f" got {size!r}."
    )
  return int(window[0]), int(window[1])


def _pairs(
  sides: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
  """``[..., T]``, ``[..., S]`` as ``[..., 1, T, 1]``, ``[..., 1, 1, S]``."""
  receivers, sources = sides
  return receivers[..., None, :, None], sources[..., None, None, :]
