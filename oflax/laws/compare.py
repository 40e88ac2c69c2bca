"""Comparisons that name law, place and size of a violation."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from oflax.laws import rounding
from oflax.laws.nulls import insert_nulls
from oflax.laws.nulls import kept_places

Map = Callable[[jax.Array], jax.Array]


def tolerances(
  rtol: Any, atol: Any, rule: Callable[[], Any]
) -> tuple[Any, Any]:
  """Both tolerances; the rounding rule, which costs calls, only if needed."""
  if rtol is None or atol is None:
    allowed = rule()
    rtol = allowed if rtol is None else rtol
    atol = allowed if atol is None else atol
  return rtol, atol


def assert_insertion(
  law: str,
  fn: Map,
  tokens: jax.Array,
  positions: Sequence[int],
  rtol: float | None,
  atol: float | None,
) -> None:
  kept = kept_places(tokens.shape[-2], positions)
  outputs = fn(insert_nulls(tokens, positions))
  chex.assert_axis_dimension(outputs, -2, len(kept) + len(positions))
  nulls = np.asarray(positions, int)
  assert_zero(law, outputs[..., nulls, :], None, " of the null tokens")
  assert_close(
    law,
    outputs[..., kept, :],
    fn(tokens),
    *tolerances(rtol, atol, lambda: rounding.rule(fn, tokens)),
  )


def assert_zero(
  law: str, got: jax.Array, atol: float | None, place: str = ""
) -> None:
  assert_close(law, got, jnp.zeros_like(got), 0.0, atol or 0.0, place)


def assert_close(
  law: str, got: Any, want: Any, rtol: float, atol: float, place: str = ""
) -> None:
  """Compares trees, relative to the largest value in all of `want`."""
  chex.assert_trees_all_equal_shapes(got, want)
  leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(want)]
  largest = max((np.max(np.abs(x), initial=0) for x in leaves), default=0.0)
  allowed = float(atol + rtol * (largest if rtol else 0.0))
  flat, _ = jax.tree_util.tree_flatten_with_path(got)
  for (path, leaf), expected in zip(flat, leaves, strict=True):
    actual = np.asarray(leaf, np.float64)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    deviation = np.where(same, 0, np.abs(actual - expected))
    bad = ~(deviation <= allowed)
    if bad.any():
      worst = np.where(np.isnan(deviation), np.inf, deviation)
      index = np.unravel_index(np.argmax(worst), worst.shape)
      where = jax.tree_util.keystr(path) + str(tuple(map(int, index)))
      raise AssertionError(
        f'Law "{law}" violated at {where}{place}: {actual[index]} instead of'
        f" {expected[index]}, deviation {deviation[index]:.3g} over the allowed"
        f" {allowed:.3g}."
      )
