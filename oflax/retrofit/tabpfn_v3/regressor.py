"""A scikit-learn regressor that learns in context."""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
import math
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import special
import numpy as np
from sklearn import base
from sklearn.utils import validation

from oflax import _checks
from oflax.retrofit.tabpfn_v3.bar_distribution import BarDistribution
from oflax.retrofit.tabpfn_v3.loading import load
from oflax.retrofit.tabpfn_v3.module import TabPFNV3

# Test rows are padded up to 16, 32, 64, … of them, so that few programs are
# compiled. They do not see each other: a row more changes nothing.
FEWEST_ROWS = 16


class InContextRegressor(base.RegressorMixin, base.BaseEstimator):
  """Predicts by showing a pretrained model the training data.

  `fit` learns nothing: it keeps the data. Features may be NaN or infinite.

  Args:
    model: A file for `oflax.retrofit.tabpfn_v3.load`, or a pair of a module and
      its variables; None: the shipped v3-mini.
    variant: "host", "attention" or "full"; None: that of the module, and "host"
      for a file.
    softmax_temperature: By which the logits are divided; None: as the model's
      configuration says.
    permutations: The network depends on the order of the columns. Its
      distributions are averaged over as many orders: the one given, and
      others, always the same; of few columns no more than there are.

  Raises:
    ValueError: At `fit` or `predict`: data or arguments that do not fit.

  Example:
    >>> import jax, jax.numpy as jnp, numpy as np
    >>> from oflax.retrofit.tabpfn_v3 import TabPFNV3, V3Config
    >>> config = V3Config(
    ...   num_buckets=10,
    ...   embed_dim=8,
    ...   nlayers=1,
    ...   dist_embed_num_blocks=1,
    ...   feat_agg_num_blocks=1,
    ...   feat_agg_num_heads=2,
    ... )
    >>> x, y = np.ones((5, 3)), np.arange(5.0)
    >>> module = TabPFNV3(config)
    >>> variables = jax.jit(module.init)(jax.random.key(0), x, y)
    >>> regressor = InContextRegressor((module, variables)).fit(x, y)
    >>> regressor.predict(x[:2]).shape
    (2,)
    >>> regressor.predict_quantiles(x[:2], [0.1, 0.9]).shape
    (2, 2)

  Reference: scikit-learn.org, developing estimators; Hollmann et al. 2025.
  """

  def __init__(
    self,
    model: str
    | os.PathLike[str]
    | tuple[TabPFNV3, Mapping[str, Any]]
    | None = None,
    variant: str | None = None,
    softmax_temperature: float | None = None,
    permutations: int = 1,
  ):
    self.model = model
    self.variant = variant
    self.softmax_temperature = softmax_temperature
    self.permutations = permutations

  def fit(self, X: Any, y: Any) -> "InContextRegressor":  # noqa: N803
    """Keeps the training data.

    Args:
      X: Features, ``[N, C]``; NaN and infinite ones allowed. Of any size: the
        network sees them in units of the range of each column.
      y: Targets, ``[N]``, finite.

    Returns:
      Itself.
    """
    x = _features(X)
    validation.validate_data(self, X, reset=True, skip_check_array=True)
    y = np.asarray(y, np.float64)
    if y.shape != x.shape[:1] or y.size == 0:
      raise ValueError(
        f"y must be [N] for X of shape {x.shape}, N at least 1, got shape"
        f" {y.shape}."
      )
    if not np.all(np.isfinite(y)):
      raise ValueError(
        f"y must be finite, got {np.sum(~np.isfinite(y))} that are not."
      )
    _checks.check_at_least("permutations", self.permutations, 1)
    self.module_, self.variables_ = self._loaded()
    self._temperature()  # A wrong one is refused here.
    borders = self.variables_["constants"]["borders"]
    self.distribution_ = BarDistribution(borders)
    self.mean_, self.scale_ = _mean_and_deviation(y)
    self.y_ = ((y - self.mean_) / self.scale_).astype(np.float32)
    self.low_, self.high_ = _range(x)
    self.x_ = self._within_range(x)
    return self

  def predict(self, X: Any) -> np.ndarray:  # noqa: N803
    """The means of the predictive distributions, ``[M, C]`` to ``[M]``."""
    logits = self.predict_logits(X)
    return self._restored(self.distribution_.mean(logits))

  def predict_quantiles(
    self,
    X: Any,  # noqa: N803
    levels: Sequence[float] = (0.1, 0.5, 0.9),
  ) -> np.ndarray:
    """Quantiles of the predictive distributions.

    Args:
      X: Features, ``[M, C]``.
      levels: q of them, in (0, 1).

    Returns:
      ``[M, q]``, in the units of the targets.
    """
    q = np.asarray(levels, np.float64)
    for level in q.ravel().tolist():
      _checks.check_interval("levels", level, 0, 1, "()")
    logits = self.predict_logits(X)
    quantiles = self.distribution_.quantiles(logits, jnp.asarray(q))
    return self._restored(quantiles)

  def log_density(self, X: Any, y: Any) -> np.ndarray:  # noqa: N803
    """The log density of targets ``[M]`` under the predictions for ``[M, C]``.

    In the units of the targets.
    """
    logits = self.predict_logits(X)
    y = (np.asarray(y, np.float64) - self.mean_) / self.scale_
    y = jnp.asarray(y, jnp.float32)
    log_density = self.distribution_.log_density(logits, y)
    return np.asarray(log_density, np.float64) - np.log(self.scale_)

  def predict_logits(self, X: Any) -> jax.Array:  # noqa: N803
    """Logits over the buckets of standardised targets, temperature applied.

    Args:
      X: Features, ``[M, C]``.

    Returns:
      ``[M, buckets]``; with more than one order of columns the logarithms
      of the averaged probabilities.
    """
    validation.check_is_fitted(self)
    x = _features(X)
    validation.validate_data(self, X, reset=False, skip_check_array=True)
    x = self._within_range(x)
    temperature = self._temperature()
    rows = FEWEST_ROWS
    while rows < len(x):
      rows *= 2
    padding = np.zeros((rows - len(x), x.shape[1]), np.float32)
    table = np.concatenate([self.x_, x, padding])
    orders = column_orders(x.shape[1], self.permutations)
    if len(orders) == 1:
      logits = _apply(self.module_, self.variables_, table, self.y_)
      return logits[: len(x)] / temperature
    tables = np.stack([table[:, order] for order in orders])
    y = np.broadcast_to(self.y_, (len(orders), len(self.y_)))
    logits = _apply(self.module_, self.variables_, tables, y)
    log_mass = jax.nn.log_softmax(logits[:, : len(x)] / temperature, axis=-1)
    return special.logsumexp(log_mass, axis=0) - math.log(len(orders))

  def _loaded(self) -> tuple[TabPFNV3, Mapping[str, Any]]:
    if self.model is None or isinstance(self.model, str | os.PathLike):
      return load(self.model, self.variant or "host")
    if not isinstance(self.model, tuple) or len(self.model) != 2:
      raise ValueError(
        "model must be a file, or a pair of a module and its variables, got"
        f" {self.model!r:.80}."
      )
    module, variables = self.model
    return module.clone(variant=self.variant or module.variant), variables

  def _temperature(self) -> float:
    temperature = self.softmax_temperature
    if temperature is None:
      return self.module_.config.softmax_temperature
    _checks.check_positive("softmax_temperature", temperature)
    return temperature

  def _within_range(self, x: np.ndarray) -> np.ndarray:
    """Each column from its least train cell on, over the range of those.

    The network standardises columns itself, but in float32.
    """
    # By halves: the range of numbers in float64 may be beyond it.
    half = self.high_ / 2 - self.low_ / 2
    with np.errstate(over="ignore"):
      scaled = (x / 2 - self.low_ / 2) / np.where(half > 0, half, 0.5)
    largest = np.finfo(np.float32).max
    finite = np.clip(scaled, -largest, largest)
    return np.where(np.isinf(x), x, finite).astype(np.float32)

  def _restored(self, standardised: jax.Array) -> np.ndarray:
    """From standardised targets to their own units."""
    return np.asarray(standardised, np.float64) * self.scale_ + self.mean_

  def __sklearn_tags__(self) -> Any:
    tags = super().__sklearn_tags__()
    tags.input_tags.allow_nan = True
    return tags


def column_orders(columns: int, count: int) -> list[tuple[int, ...]]:
  """Different orders of columns: the one given first, then random ones.

  Args:
    columns: How many there are.
    count: How many orders, where there are as many; more begin with the same.

  Returns:
    Each a permutation of ``range(columns)``.

  Example:
    >>> sorted(column_orders(2, 5))
    [(0, 1), (1, 0)]

  Reference: None.
  """
  rng = np.random.default_rng(0)
  orders = {tuple(range(columns)): None}
  while len(orders) < min(count, math.factorial(columns)):
    orders[tuple(rng.permutation(columns).tolist())] = None
  return list(orders)


@functools.partial(jax.jit, static_argnums=0)
def _apply(
  module: TabPFNV3, variables: Mapping[str, Any], x: jax.Array, y: jax.Array
) -> jax.Array:
  logits = module.apply(variables, x, y)
  assert isinstance(logits, jax.Array)  # Says the type, as nothing is mutable.
  return logits


def _mean_and_deviation(y: np.ndarray) -> tuple[float, float]:
  """Of targets of any size; for equal ones the deviation counts as 1."""
  if np.all(y == y[0]):
    return float(y[0]), 1.0
  unit = np.max(np.abs(y))
  return float(np.mean(y / unit) * unit), float(np.std(y / unit) * unit)


def _range(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The least and largest finite cell of each column, 0 if there is none."""
  finite = np.isfinite(x)
  some = np.any(finite, axis=0)
  low = np.min(np.where(finite, x, np.inf), axis=0)
  high = np.max(np.where(finite, x, -np.inf), axis=0)
  return np.where(some, low, 0), np.where(some, high, 0)


def _features(x: Any) -> np.ndarray:
  if isinstance(x, np.ma.MaskedArray):
    x = np.ma.filled(x.astype(np.float64), np.nan)
  x = np.asarray(x)
  if x.dtype.kind in "cmM":
    raise ValueError(f"X must be real numbers, got {x.dtype}.")
  x = x.astype(np.float64)
  if x.ndim != 2 or x.shape[1] == 0:
    raise ValueError(
      f"X must be [rows, columns], of a column at least, got shape {x.shape}."
    )
  return x
