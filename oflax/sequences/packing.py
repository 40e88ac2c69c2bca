"""Ragged sequences in rows of one length, and back."""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from oflax import _checks


class Packed(NamedTuple):
  """Sequences in rows, null tokens where there are none.

  Attributes:
    tokens: ``[rows, length, ...]``, 0 between and after sequences.
    segments: ``[rows, length]``, int32: which sequence of the row, from 1, or 0
      for none. As `segments` of a model.
    positions: ``[rows, length]``, int32: the place in the sequence. As
      `positions` of a model.
    places: Row, first token and length of each sequence, in the order given.

  Example:
    >>> pack([np.ones(2), np.ones(3)], 4).segments.tolist()
    [[1, 1, 1, 0], [1, 1, 0, 0]]

  Reference: Krell et al. 2021, arXiv 2107.02027.
  """

  tokens: np.ndarray
  segments: np.ndarray
  positions: np.ndarray
  places: tuple[tuple[int, int, int], ...]


def pack(sequences: Sequence[Any], length: int) -> Packed:
  """Packs sequences into as few rows as first-fit decreasing finds.

  Runs on the host. With its segments and positions a causal or unordered model
  computes for each sequence what it would compute for it alone.

  Args:
    sequences: Arrays ``[n_i, ...]`` of ids or carriers, alike but for n_i.
    length: Of a row; at least as long as the longest sequence.

  Returns:
    The rows.

  Raises:
    ValueError: A sequence is too long, or they are not alike.

  Example:
    >>> packed = pack([[5, 6], [7, 8, 9], [4]], 4)
    >>> packed.tokens.tolist()
    [[7, 8, 9, 4], [5, 6, 0, 0]]
    >>> [sequence.tolist() for sequence in unpack(packed.tokens, packed)]
    [[5, 6], [7, 8, 9], [4]]

  Reference: Johnson 1973, first-fit decreasing.
  """
  _checks.check_at_least("length", length, 1)
  arrays = [np.asarray(sequence) for sequence in sequences]
  # What has no entry, as [], says nothing of what its dtype would be.
  some = [array for array in arrays if array.shape != (0,)] or arrays
  kinds = {(array.ndim, array.shape[1:], array.dtype) for array in some}
  if len(kinds) > 1 or any(array.ndim == 0 for array in arrays):
    shapes = sorted({(array.shape, str(array.dtype)) for array in arrays})
    raise ValueError(
      "sequences must be arrays [n_i, ...], alike but for n_i, got shapes and"
      f" dtypes {shapes}."
    )
  longest = max((len(array) for array in arrays), default=0)
  if longest > length:
    raise ValueError(
      f"length must hold the longest sequence, {longest}, got {length}."
    )
  places, fill = _first_fit([len(array) for array in arrays], length)
  like = some[0] if some else np.zeros(0)
  rows = len(fill)
  tokens = np.zeros((rows, length, *like.shape[1:]), like.dtype)
  segments = np.zeros((rows, length), np.int32)
  positions = np.zeros((rows, length), np.int32)
  for array, (row, start, size) in zip(arrays, places, strict=True):
    if not size:
      continue
    part = slice(start, start + size)
    tokens[row, part] = array
    segments[row, part] = segments[row].max() + 1
    positions[row, part] = np.arange(size)
  return Packed(tokens, segments, positions, tuple(places))


def unpack(values: Any, packed: Packed) -> list[Any]:
  """What belongs to each sequence, in the order in which they were packed.

  Args:
    values: ``[rows, length, ...]``, such as the outputs of a model.
    packed: From `pack`.

  Returns:
    ``[n_i, ...]`` for each sequence.

  Raises:
    ValueError: `values` have other rows.

  Example:
    >>> packed = pack([[5, 6], [7]], 3)
    >>> [part.tolist() for part in unpack(10 * packed.tokens, packed)]
    [[50, 60], [70]]

  Reference: None.
  """
  values = values if hasattr(values, "shape") else np.asarray(values)
  if np.shape(values)[:2] != packed.segments.shape:
    raise ValueError(
      f"values must be {packed.segments.shape} first, got shape"
      f" {np.shape(values)}."
    )
  return [
    values[row, start : start + size] for row, start, size in packed.places
  ]


def _first_fit(
  sizes: Sequence[int], length: int
) -> tuple[list[tuple[int, int, int]], list[int]]:
  """A place for each size, and how full each row is: the largest go first."""
  fill: list[int] = []
  places = [(0, 0, 0)] * len(sizes)
  for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
    fitting = (
      row for row, used in enumerate(fill) if used + sizes[i] <= length
    )
    row = next(fitting, len(fill))
    if row == len(fill):
      fill.append(0)
    places[i] = (row, fill[row], sizes[i])
    fill[row] += sizes[i]
  return places, fill
