"""Small random tables, to set thresholds on: nothing of a user's data."""

from typing import NamedTuple

import numpy as np

COLUMNS = (3, 5, 8, 11)
TRAIN, TEST = 100, 50
NOISE = 0.3


class Tables(NamedTuple):
  """Several tables in one batch, padded to as many columns as the widest has.

  Attributes:
    x: ``[B, R, C]`` float32, train rows first; 0 where there is no column.
    y: Standardised targets of the train rows, ``[B, N]`` float32.
    column_present: Boolean ``[B, C]``.
  """

  x: np.ndarray
  y: np.ndarray
  column_present: np.ndarray


def tables(seed: int = 0) -> Tables:
  """Tables whose targets are random functions of correlated columns.

  Args:
    seed: Of everything in them.

  Returns:
    One table for each of several numbers of columns.

  Example:
    >>> [part.shape for part in tables()]
    [(4, 150, 11), (4, 100), (4, 11)]
  """
  random = np.random.default_rng(seed)
  rows, widest = TRAIN + TEST, max(COLUMNS)
  x = np.zeros((len(COLUMNS), rows, widest), np.float32)
  y = np.zeros((len(COLUMNS), TRAIN), np.float32)
  for i, columns in enumerate(COLUMNS):
    x[i, :, :columns] = _columns(random, rows, columns)
    target = _target(random, x[i, :, :columns])[:TRAIN]
    y[i] = (target - target.mean()) / target.std()
  return Tables(x, y, np.arange(widest) < np.array(COLUMNS)[:, None])


def _columns(
  random: np.random.Generator, rows: int, columns: int
) -> np.ndarray:
  """Correlated columns; some of them skewed, some of few values."""
  mixing = np.eye(columns) + 0.5 * random.normal(size=(columns, columns))
  x = random.normal(size=(rows, columns)) @ mixing
  x[:, ::3] = np.exp(0.5 * x[:, ::3])
  x[:, 1::4] = np.round(x[:, 1::4])
  return x


def _target(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
  """A linear part, a part of a small network, and noise."""
  x = (x - x.mean(0)) / (x.std(0) + 1e-6)
  linear = x @ random.normal(size=x.shape[1])
  hidden = np.tanh(x @ random.normal(size=(x.shape[1], 16)))
  curved = hidden @ random.normal(size=16)
  return linear + curved + NOISE * linear.std() * random.normal(size=len(x))
