"""H ⊕ 0: null tokens among others."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


def insert_nulls(tokens: jax.Array, positions: Sequence[int]) -> jax.Array:
  """H ⊕ 0: inserts null tokens at given places.

  Args:
    tokens: ``[..., n, d]``.
    positions: The indices that are null in the result, distinct.

  Returns:
    ``[..., n + len(positions), d]``.

  Raises:
    ValueError: A position is repeated or out of range.

  Example:
    >>> import jax.numpy as jnp
    >>> insert_nulls(jnp.array([[1.0], [2.0]]), [0, 2]).tolist()
    [[0.0], [1.0], [0.0], [2.0]]

  Reference: docs/concepts.md, H ⊕ 0.
  """
  tokens = jnp.asarray(tokens)
  kept = kept_places(tokens.shape[-2], positions)
  size = tokens.shape[-2] + len(positions)
  result = jnp.zeros((*tokens.shape[:-2], size, tokens.shape[-1]), tokens.dtype)
  return result.at[..., kept, :].set(tokens)


def kept_places(n: int, positions: Sequence[int]) -> np.ndarray:
  """The indices, among n tokens and the inserted nulls, of the n tokens."""
  size = n + len(positions)
  nulls = np.asarray(positions, int).reshape(-1)
  bad = (nulls < 0) | (nulls >= size)
  if bad.any() or len(set(nulls.tolist())) != len(nulls):
    raise ValueError(
      f"positions must be distinct and in [0, {size}), got {list(positions)}."
    )
  return np.setdiff1d(np.arange(size), nulls)
