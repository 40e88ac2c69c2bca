"""Errors over all cases of the comparison on real tables, and their ratios."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from oflax.studies import bootstrap
from oflax.studies import tables_compare
from oflax.studies.tables_compare import Case


@dataclasses.dataclass(frozen=True)
class Mean:
  """The error of one regressor over all cases.

  Attributes:
    regressor: Its name.
    arithmetic: Mean.
    geometric: Mean.
  """

  regressor: str
  arithmetic: float
  geometric: float


@dataclasses.dataclass(frozen=True)
class Ratio:
  """An in-context regressor's error over a standard one's.

  Attributes:
    subject: Name of the in-context one.
    baseline: Name of the standard one.
    mean: Geometric mean over all cases; below 1: the in-context one errs less.
    low: Lower end of its 95 % interval, from a bootstrap over tables.
    high: Upper end.
    better: Cases in which the in-context one errs less.
    cases: Of so many.
  """

  subject: str
  baseline: str
  mean: float
  low: float
  high: float
  better: int
  cases: int


def means(cases: Sequence[Case]) -> list[Mean]:
  """The mean errors of every regressor.

  Args:
    cases: As `tables_compare.compare` returns them.

  Returns:
    One for each regressor, in the order of the cases' errors.

  Raises:
    ValueError: There is no case.

  Example:
    >>> case = Case("iris", 0, 100, 50, columns=3, errors={"ridge": 0.25})
    >>> means([case])
    [Mean(regressor='ridge', arithmetic=0.25, geometric=0.25)]

  Reference: None.
  """
  found = []
  for subject in _subjects(cases):
    errors = np.array([case.errors[subject] for case in cases])
    geometric = np.exp(np.mean(np.log(errors)))
    found.append(Mean(subject, float(np.mean(errors)), float(geometric)))
  return found


def ratios(cases: Sequence[Case]) -> list[Ratio]:
  """Each in-context regressor against each standard one.

  Args:
    cases: As `tables_compare.compare` returns them.

  Returns:
    One for each pair; none if no in-context regressor was there.

  Raises:
    ValueError: There is no case.

  Example:
    >>> errors = {"in context": 0.5, "ridge": 0.6}
    >>> case = Case("iris", 0, train=100, test=50, columns=3, errors=errors)
    >>> [ratio] = ratios([case])
    >>> ratio.mean, ratio.better, ratio.cases
    (0.833, 1, 1)

  Reference: Efron & Tibshirani 1993.
  """
  subjects, standard = _subjects(cases), tables_compare.baselines()
  return [
    _ratio(cases, subject, baseline)
    for subject in subjects
    if subject not in standard
    for baseline in subjects
    if baseline in standard
  ]


def _ratio(cases: Sequence[Case], subject: str, baseline: str) -> Ratio:
  logs = np.array(
    [np.log(c.errors[subject] / c.errors[baseline]) for c in cases]
  )
  of = np.array([case.table for case in cases])
  by_table = [logs[of == name] for name in dict.fromkeys(of)]
  low, high = _interval(by_table)
  return Ratio(
    subject,
    baseline,
    float(np.exp(np.mean(logs))),
    float(np.exp(low)),
    float(np.exp(high)),
    int(np.sum(logs < 0)),
    len(cases),
  )


def _subjects(cases: Sequence[Case]) -> list[str]:
  if not cases:
    raise ValueError(f"cases must have one at least, got {cases!r}.")
  return list(cases[0].errors)


def _interval(groups: Sequence[np.ndarray]) -> tuple[float, float]:
  """95 % interval of the mean of all values, resampling whole groups."""
  sums = np.array([np.sum(group) for group in groups])
  counts = np.array([len(group) for group in groups])
  return bootstrap.interval(
    lambda drawn: sums[drawn].sum(1) / counts[drawn].sum(1), len(groups)
  )
