"""How much luck there is in a mean: the percentile bootstrap."""

from collections.abc import Callable

import numpy as np

RESAMPLES = 10_000


def interval(
  statistic: Callable[[np.ndarray], np.ndarray], count: int, seed: int = 0
) -> tuple[float, float]:
  """The 95 % interval of a statistic of items that others might have been.

  Args:
    statistic: From indices of the items drawn, ``[resamples, count]``, to its
      values, ``[resamples]``.
    count: Of the items.
    seed: Of the draws.

  Returns:
    The lower and the upper end.

  Example:
    >>> items = np.arange(100) >= 20
    >>> interval(lambda drawn: items[drawn].mean(axis=1), len(items))
    (0.72, 0.87)

  Reference: Efron 1979; Efron and Tibshirani 1993.
  """
  drawn = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
  low, high = np.quantile(statistic(drawn), (0.025, 0.975))
  return float(low), float(high)
