"""Visibility: who may look at whom, as one value."""

from collections.abc import Sequence
import dataclasses
import functools
import math
import numbers
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax import _presence
from oflax._numerics import AxisName


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=("masks", "positions", "segments"),
  meta_fields=("is_causal", "window"),
)
@dataclasses.dataclass(frozen=True)
class Visibility:
  """Mask, order and segments between T receivers and S sources.

  All batch axes are one, B.

  Attributes:
    masks: Boolean, each ``[B, N, T, S]`` with ones where it broadcasts.
    positions: ``[B, 1, T, 1]`` and ``[B, 1, 1, S]``; None where order is free.
    segments: Likewise, or None.
    is_causal: Whether sources after a receiver are invisible.
    window: How far a receiver sees to the left and right, inclusive, or None.
  """

  masks: tuple[jax.Array, ...]
  positions: tuple[jax.Array, jax.Array] | None
  segments: tuple[jax.Array, jax.Array] | None
  is_causal: bool
  window: tuple[int, int] | None

  def relation(self) -> jax.Array | None:
    """The relation, broadcastable to ``[B, N, T, S]``; None: all visible."""
    terms = [*self.masks]
    if self.positions is not None:
      receivers, sources = self.positions
      if self.is_causal:
        terms.append(sources <= receivers)
      if self.window is not None:
        left, right = self.window
        terms.append(sources >= _lower(receivers, left))
        terms.append(sources <= _higher(receivers, right))
    if self.segments is not None:
      receivers, sources = self.segments
      terms.append(receivers == sources)
    return functools.reduce(jnp.logical_and, terms) if terms else None

  def reach(self) -> jax.Array | None:
    """Which sources any receiver sees, or more, ``[B, 1, 1, S]``.

    None where order and segments rule out nothing. A NaN, as the position of an
    absent token may be, sees nothing and says nothing of the others.
    """
    terms = []
    if self.positions is not None:
      receivers, sources = self.positions
      left, right = self.window or (None, None)
      if self.is_causal:
        right = 0 if right is None else min(right, 0)
      if left is not None:
        first = jnp.nanmin(receivers, -2, keepdims=True)
        terms.append(sources >= _lower(first, left))
      if right is not None:
        last = jnp.nanmax(receivers, -2, keepdims=True)
        terms.append(sources <= _higher(last, right))
    if self.segments is not None:
      receivers, sources = self.segments
      terms.append(sources >= jnp.nanmin(receivers, -2, keepdims=True))
      terms.append(sources <= jnp.nanmax(receivers, -2, keepdims=True))
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
  axis_name: AxisName | None = None,
) -> Visibility:
  """Checks the visibility arguments of `o_attention` and gathers them.

  Presences are ``[..., T]`` and ``[..., S]``; positions default to the ranks
  in them, so that nulls shift nobody.
  """
  shapes = receivers, sources = receiver_presence.shape, source_presence.shape
  count = sources[-1] * (lax.axis_size(axis_name) if axis_name else 1)
  scores = (*receivers[:-1], num_heads, receivers[-1], count)
  if mask is not None:
    mask = pairwise("mask", jnp.asarray(mask), scores)
    if mask.dtype != jnp.bool_:
      raise ValueError(
        f"mask must be boolean, True where visible, got {mask.dtype}; pass"
        " additive scores as bias."
      )
  if not isinstance(is_causal, bool | np.bool_):
    raise ValueError(f"is_causal must be True or False, got {is_causal!r}.")
  window = window_sides(local_window_size)

  positions = None
  if is_causal or window is not None:
    if receiver_positions is None:
      receiver_positions = _presence.presence_rank(
        receiver_presence, axis_name=axis_name
      )
    if source_positions is None:
      source_positions = _presence.presence_rank(
        source_presence, axis_name=axis_name
      )
    # Signed, since a window reaches below 0.
    positions = _pair(
      "positions",
      _signed(receiver_positions),
      _signed(source_positions),
      shapes,
    )

  segments = None
  if (receiver_segments is None) != (source_segments is None):
    name = "source" if source_segments is None else "receiver"
    raise ValueError(
      "receiver_segments and source_segments go together, got"
      f" {name}_segments=None."
    )
  if receiver_segments is not None:
    segments = _pair("segments", receiver_segments, source_segments, shapes)
  masks = () if mask is None else (mask,)
  return Visibility(masks, positions, segments, bool(is_causal), window)


def pairwise(name: str, array: jax.Array, scores: tuple[int, ...]) -> jax.Array:
  """From ``[T, S]`` or the rank of `scores`, with ones, to ``[B, N, T, S]``.

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
  batch = scores[:-3]
  if any(size != 1 for size in array.shape[:-3]):
    array = jnp.broadcast_to(array, (*batch, *array.shape[-3:]))
    return array.reshape(math.prod(batch), *array.shape[-3:])
  return array.reshape(1, *array.shape[-3:])


def taken(mask: jax.Array, place: jax.Array) -> jax.Array:
  """A mask between the tokens at given places, ``[..., size]``.

  From ``[n, n]`` or ``[..., N, n, n]`` with ones to ``[..., N, size, size]``.
  """
  if mask.ndim == 2:
    mask = mask.reshape((1,) * place.ndim + mask.shape)
  for axis, index in ((-2, place[..., :, None]), (-1, place[..., None, :])):
    if mask.shape[axis] != 1:
      index = jnp.expand_dims(index, -3)
      mask = jnp.take_along_axis(mask, index, axis)
  return mask


def window_sides(
  size: int | tuple[int, int] | None,
) -> tuple[int, int] | None:
  """How far a window reaches to the left and right."""
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


def _signed(positions: Any) -> jax.Array:
  """Integers so wide that a window is one of them."""
  positions = jnp.asarray(positions)
  if jnp.issubdtype(positions.dtype, jnp.integer):
    return positions.astype(jnp.promote_types(positions.dtype, jnp.int32))
  return positions


def _lower(positions: jax.Array, by: int) -> jax.Array:
  """Positions − by, not below the least integer: it must not wrap around."""
  if jnp.issubdtype(positions.dtype, jnp.integer):
    limits = jnp.iinfo(positions.dtype)
    by = min(by, limits.max)
    positions = jnp.maximum(positions, limits.min + by)
  return positions - by


def _higher(positions: jax.Array, by: int) -> jax.Array:
  """Positions + by, not above the largest integer."""
  if jnp.issubdtype(positions.dtype, jnp.integer):
    limits = jnp.iinfo(positions.dtype)
    by = min(by, limits.max)
    positions = jnp.minimum(positions, limits.max - by)
  return positions + by


def _pair(
  kind: str, receivers: Any, sources: Any, shapes: tuple[tuple[int, ...], ...]
) -> tuple[jax.Array, jax.Array]:
  """``[..., T]`` and ``[..., S]`` as ``[B, 1, T, 1]`` and ``[B, 1, 1, S]``."""
  receivers = _checks.per_token(f"receiver_{kind}", receivers, shapes[0])
  sources = _checks.per_token(f"source_{kind}", sources, shapes[1])
  batch = math.prod(shapes[0][:-1])
  return (
    receivers.reshape(batch, 1, shapes[0][-1], 1),
    sources.reshape(batch, 1, 1, shapes[1][-1]),
  )
