"""In-context regressors beside standard ones on real tables."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
from sklearn import decomposition
from sklearn import ensemble
from sklearn import impute
from sklearn import linear_model
from sklearn import neighbors
from sklearn import pipeline
from sklearn import preprocessing

from oflax.studies import tables

IN_CONTEXT = "in context"
WITH_COMPONENTS = "with components"
# The least principal components, of this share of all variance together, are
# left out: some are rounding.
SHARE = 1e-6


@dataclasses.dataclass(frozen=True)
class Case:
  """What all regressors did on one split of one table.

  Attributes:
    table: Its name.
    seed: Of the split.
    train: Rows to learn from.
    test: Rows to be judged on.
    columns: Features.
    errors: Name of the regressor to its root mean squared error on the test
      rows, in standard deviations of the training targets.
  """

  table: str
  seed: int
  train: int
  test: int
  columns: int
  errors: Mapping[str, float]


def baselines() -> dict[str, Any]:
  """The standard regressors by name, none of them tuned to a table.

  Each after the same preparation, learnt from the training rows: what is
  missing becomes the mean, and columns are standardised. Ridge chooses its
  penalty by leaving one out.

  Returns:
    Name to a regressor of scikit-learn that is not fitted yet.

  Example:
    >>> list(baselines())
    ['ridge', 'kNN', 'random forest']

  Reference: Pedregosa et al. 2011.
  """
  regressors = {
    "ridge": linear_model.RidgeCV(np.logspace(-3, 3, 13)),
    "kNN": neighbors.KNeighborsRegressor(10, weights="distance"),
    "random forest": ensemble.RandomForestRegressor(300, random_state=0),
  }
  return {
    name: pipeline.make_pipeline(*_preparation(), regressor)
    for name, regressor in regressors.items()
  }


def with_components(regressor: Any) -> Any:
  """A regressor that is shown the principal components beside the columns.

  They are those of the training rows, prepared as for `baselines`, each scaled
  to variance 1: what two nearly equal columns differ in is a column of its own.
  The least of them, of `SHARE` of all variance together, are left out. The
  columns stay as they are, NaN where a cell is missing.

  Args:
    regressor: Of scikit-learn's kind, not fitted yet; to be fitted to at least
      two different rows, without infinite cells.

  Returns:
    Another one.

  Example:
    >>> split = tables.split(tables.load("iris"), seed=0)
    >>> both = with_components("passthrough").fit(split.x_train)
    >>> both.transform(split.x_test).shape  # Of three columns.
    (50, 6)

  Reference: Hollmann et al. 2025, who show such features to a part of an
    ensemble.
  """
  components = pipeline.make_pipeline(
    *_preparation(),
    decomposition.PCA(1 - SHARE, whiten=True, svd_solver="full"),
  )
  both = pipeline.make_union("passthrough", components)
  return pipeline.make_pipeline(both, regressor)


def _preparation() -> tuple[Any, Any]:
  """What is missing becomes the mean, and columns are standardised."""
  return (
    impute.SimpleImputer(keep_empty_features=True),
    preprocessing.StandardScaler(),
  )


def compare(
  factories: Mapping[str, Callable[[], Any]],
  names: Sequence[str] = tables.NAMES,
  seeds: Sequence[int] = tables.SEEDS,
  on_case: Callable[[str], None] = lambda table: None,
) -> list[Case]:
  """The errors of all regressors on every table with every seed.

  Args:
    factories: By name what makes an in-context regressor, anew for each case:
      something with the `fit` and `predict` of scikit-learn, which is given the
      raw table, NaN where a cell is missing. None of them: the standard ones
      alone.
    names: Of the tables, as in `tables.NAMES`.
    seeds: Each chooses 100 rows to learn from and at most 100 others.
    on_case: Called with the name of the table before each case.

  Returns:
    The cases, table by table.

  Raises:
    ValueError: There is no such table, or a prediction is not finite.
    ImportError: The package of a table is not installed.

  Example:
    >>> [case] = compare({}, ["iris"], seeds=[0])
    >>> case.errors["ridge"]
    0.250

  Reference: docs/concepts.md.
  """
  cases = []
  for name in names:
    table = tables.load(name)
    for seed in seeds:
      on_case(name)
      split = tables.split(table, seed)
      made = {subject: factory() for subject, factory in factories.items()}
      cases.append(
        Case(
          table=name,
          seed=seed,
          train=len(split.y_train),
          test=len(split.y_test),
          columns=len(table.columns),
          errors={
            subject: error(regressor, split)
            for subject, regressor in (made | baselines()).items()
          },
        )
      )
  return cases


def error(regressor: Any, split: tables.Split) -> float:
  """Root mean squared error over the standard deviation of training targets.

  Args:
    regressor: To be fitted, as in scikit-learn.
    split: The rows.

  Returns:
    0 is perfect, and about 1 what the mean of the training targets reaches.

  Raises:
    ValueError: A prediction is not finite.

  Example:
    >>> from sklearn import dummy
    >>> split = tables.split(tables.load("iris"), seed=0)
    >>> error(dummy.DummyRegressor(), split)
    0.978

  Reference: None.
  """
  predicted = regressor.fit(split.x_train, split.y_train).predict(split.x_test)
  wrong = np.sum(~np.isfinite(predicted))
  if wrong:
    raise ValueError(
      f"The predictions for {split.table!r}, seed {split.seed}, must be finite,"
      f" got {wrong} that are not, of {regressor!r}."
    )
  root = np.sqrt(np.mean(np.square(predicted - split.y_test)))
  return float(root / np.std(split.y_train))
