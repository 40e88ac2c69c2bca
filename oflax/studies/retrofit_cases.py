"""The matched cases of the retrofit study, and a host's predictions on them."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
import dataclasses
import functools
import itertools
import os
from typing import Any
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from oflax.retrofit.tabpfn_v3 import BarDistribution
from oflax.retrofit.tabpfn_v3 import TabPFNV3
from oflax.studies import tables

TEST = 100
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
  """All splits of one table, as one batch.

  Attributes:
    table: Its name.
    seeds: Of the S splits.
    x: float32 ``[S, N + M, C]``, train rows first, NaN where missing.
    y: Standardised targets of the train rows, float32 ``[S, N]``.
    target: Of the test rows, in the same units, float32 ``[S, M]``.
    judged: Boolean ``[M]``: False for rows that only fill up the batch.
  """

  table: str
  seeds: tuple[int, ...]
  x: np.ndarray
  y: np.ndarray
  target: np.ndarray
  judged: np.ndarray

  @property
  def num_train(self) -> int:
    """N, the number of train rows."""
    return int(self.y.shape[-1])

  def errors(self, predicted: Any) -> np.ndarray:
    """Root mean squared errors ``[S]`` of predictions ``[S, M]``."""
    square = np.square(np.asarray(predicted, np.float64) - self.target)
    return np.sqrt(np.mean(square[:, self.judged], axis=-1))


def batches(splits: Iterable[tables.Split]) -> list[Batch]:
  """Puts the splits of each table into one batch.

  Args:
    splits: Those of a table one after the other, as `tables.matched` has them.

  Returns:
    A batch for each table.

  Example:
    >>> [batch] = batches(tables.splits(["wine"]))
    >>> batch.x.shape, batch.y.shape, int(batch.judged.sum())
    ((3, 200, 12), (3, 100), 78)

  Reference: None.
  """
  grouped = itertools.groupby(splits, key=lambda split: split.table)
  return [_batch(name, list(group)) for name, group in grouped]


def predict(
  module: TabPFNV3,
  variables: Mapping[str, Any],
  x: Any,
  y: Any,
  *,
  row_present: Any = None,
  column_present: Any = None,
) -> np.ndarray:
  """The means of the predictive distributions of the test rows, ``[S, M]``."""
  mean = _mean(module, variables, x, y, row_present, column_present)
  return np.asarray(mean)


def side_by_side(
  fn: Callable[[Batch], Result], batches: Sequence[Batch]
) -> list[Result]:
  """``[fn(batch) for batch in batches]``, on all cores.

  Tables differ in shape, so each has programs of its own to compile, which
  takes one core.

  Args:
    fn: Of a batch.
    batches: In any number.

  Returns:
    The results, in the order of the batches.
  """
  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    return list(pool.map(fn, batches))


def _batch(name: str, splits: list[tables.Split]) -> Batch:
  count = len(splits[0].y_test)
  x, y, target = [], [], []
  for split in splits:
    mean, scale = split.y_train.mean(), split.y_train.std() or 1.0
    # Test rows do not see each other, so more of them change nothing.
    filling = np.zeros((TEST - count, split.x_test.shape[1]))
    x.append(np.concatenate([split.x_train, split.x_test, filling]))
    y.append((split.y_train - mean) / scale)
    target.append(np.pad((split.y_test - mean) / scale, (0, TEST - count)))
  return Batch(
    name,
    tuple(split.seed for split in splits),
    np.asarray(x, np.float32),
    np.asarray(y, np.float32),
    np.asarray(target, np.float32),
    np.arange(TEST) < count,
  )


@functools.partial(jax.jit, static_argnums=0)
def _mean(
  module: TabPFNV3,
  variables: Mapping[str, Any],
  x: jax.Array,
  y: jax.Array,
  row_present: jax.Array | None,
  column_present: jax.Array | None,
) -> jax.Array:
  logits: Any = module.apply(
    variables, x, y, row_present=row_present, column_present=column_present
  )
  bars = BarDistribution(jnp.asarray(variables["constants"]["borders"]))
  return bars.mean(logits / module.config.softmax_temperature)
