"""What a host makes of deleted rows, columns and cells.

Absent rows and columns of the full O variant are null tokens, and that must be
the same as not to have them. A cell stands in three tokens of a TabPFN v3, none
of which is null when it is missing: nothing is claimed about cells.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich import table as tables

from oflax.retrofit.tabpfn_v3 import TabPFNV3
from oflax.studies.retrofit_cases import Batch
from oflax.studies.retrofit_cases import predict
from oflax.studies.retrofit_cases import side_by_side

KINDS = ("rows", "columns", "cells")
SHARES = (0.2, 0.5)
HANDLINGS = {
  "rows": ("host, NaN", "host, mean", "full, null tokens", "full, dropped"),
  "columns": ("host, NaN", "host, mean", "full, null tokens", "full, dropped"),
  "cells": ("host, NaN", "host, mean", "host, NaN without indicator"),
}


@dataclasses.dataclass(frozen=True)
class Row:
  """The error of one handling of one kind of deletion, over all cases.

  Attributes:
    kind: "rows" (of the train rows), "columns" or "cells" (of all rows).
    share: Of them deleted, at random.
    handling: What the model is told: one of `HANDLINGS`.
    error: Mean of the root mean squared errors, in standard deviations of the
      train targets.
    change: Relative to the mean error of the host that has everything.
    against_dropping: Largest difference of a prediction from that with what is
      absent dropped, over the largest prediction; NaN where none is claimed.
  """

  kind: str
  share: float
  handling: str
  error: float
  change: float
  against_dropping: float


@dataclasses.dataclass(frozen=True, eq=False)
class Deletion:
  """What is left of one batch.

  Attributes:
    rows: Boolean ``[S, N + M]``.
    columns: Boolean ``[S, C]``.
    cells: Boolean ``[S, N + M, C]``.
  """

  rows: np.ndarray
  columns: np.ndarray
  cells: np.ndarray

  @classmethod
  def draw(
    cls, batch: Batch, kind: str, share: float, seed: int = 0
  ) -> "Deletion":
    """Deletes a share of one kind at random, as many in each sample.

    Args:
      batch: To delete from. Test rows stay, and at least one train row and one
        column do.
      kind: One of `KINDS`.
      share: In [0, 1].
      seed: Of the choice.
    """
    random = np.random.default_rng((seed, KINDS.index(kind)))
    samples, rows, columns = batch.x.shape
    kept = {
      "rows": np.ones((samples, rows), bool),
      "columns": np.ones((samples, columns), bool),
      "cells": np.ones((samples, rows * columns), bool),
    }
    of = batch.num_train if kind == "rows" else kept[kind].shape[1]
    count = min(round(share * of), of - 1)
    for sample in kept[kind]:
      sample[random.choice(of, count, replace=False)] = False
    kept["cells"] = kept["cells"].reshape(batch.x.shape)
    return cls(**kept)


def missing(
  module: TabPFNV3,
  variables: Mapping[str, Any],
  batches: Sequence[Batch],
  *,
  shares: Sequence[float] = SHARES,
  on_pass: Callable[[], None] = lambda: None,
) -> list[Row]:
  """Deletes at random, and has each handling predict what is left to predict.

  Args:
    module: The host, in any variant.
    variables: Its variables, with thresholds.
    batches: The matched cases.
    shares: To delete.
    on_pass: Called after each forward pass, of which there are `num_passes`.

  Returns:
    A row for each kind, share and handling; all handlings of a kind and share
    see the same deletions.
  """
  run = _Runner(module, variables, on_pass)
  whole = np.mean([b.errors(run.host(b.x, b.y)) for b in batches])
  result = []
  for kind in KINDS:
    for share in shares:
      errors: dict[str, list[np.ndarray]] = {h: [] for h in HANDLINGS[kind]}
      differences = [0.0]
      of_batch = functools.partial(_predictions, run, kind, share)
      for batch, predicted in zip(
        batches, side_by_side(of_batch, batches), strict=True
      ):
        for handling, prediction in predicted.items():
          errors[handling].append(batch.errors(prediction))
        if "full, dropped" in predicted:
          dropped = predicted["full, dropped"]
          off = np.abs(predicted["full, null tokens"] - dropped).max()
          differences.append(float(off / np.abs(dropped).max()))
      for handling, found in errors.items():
        claimed = handling == "full, null tokens"
        error = float(np.mean(found))
        off = max(differences) if claimed else float("nan")
        result.append(Row(kind, share, handling, error, error / whole - 1, off))
  return result


def _predictions(
  run: "_Runner", kind: str, share: float, batch: Batch
) -> dict[str, np.ndarray]:
  """What each handling predicts, after the same deletion."""
  deletion = Deletion.draw(batch, kind, share)
  given, mean, scale = _restandardised(batch, deletion)
  return {h: run(h, given, deletion) * scale + mean for h in HANDLINGS[kind]}


def num_passes(batches: int, shares: int = len(SHARES)) -> int:
  """How often `missing` calls `on_pass`."""
  return batches * (1 + shares * sum(map(len, HANDLINGS.values())))


class _Runner:
  """Predictions by handling."""

  def __init__(
    self,
    module: TabPFNV3,
    variables: Mapping[str, Any],
    on_pass: Callable[[], None],
  ):
    self._module = module.clone(implementation="reference")
    self._variables = variables
    self._on_pass = on_pass

  def __call__(
    self, handling: str, batch: Batch, deletion: Deletion
  ) -> np.ndarray:
    n = batch.num_train
    x, y = _with_nan(batch, deletion)
    if handling == "host, NaN":
      return self.host(x, y)
    if handling == "host, mean":
      return self.host(mean_imputed(x, n), _mean_target(y))
    if handling == "host, NaN without indicator":
      return self.host(x, y, without_indicators(self._module, self._variables))
    if handling == "full, null tokens":
      # Whatever stands in what is absent.
      return self._full(
        batch.x,
        batch.y,
        row_present=deletion.rows,
        column_present=deletion.columns,
      )
    x, y = _dropped(batch, deletion)
    return self._full(x, y)

  def host(
    self, x: Any, y: Any, variables: Mapping[str, Any] | None = None
  ) -> np.ndarray:
    module = self._module.clone(variant="host")
    predicted = predict(module, variables or self._variables, x, y)
    self._on_pass()
    return predicted

  def _full(self, x: Any, y: Any, **present: Any) -> np.ndarray:
    module = self._module.clone(variant="full")
    predicted = predict(module, self._variables, x, y, **present)
    self._on_pass()
    return predicted


def mean_imputed(x: np.ndarray, num_train: int) -> np.ndarray:
  """NaN replaced by the mean of the column's train cells, 0 if it has none."""
  train = x[:, :num_train]
  known = np.isfinite(train)
  count = np.maximum(known.sum(1, keepdims=True), 1)
  mean = np.where(known, train, 0).sum(1, keepdims=True) / count
  return np.where(np.isfinite(x), x, mean).astype(np.float32)


def without_indicators(
  module: TabPFNV3, variables: Mapping[str, Any]
) -> dict[str, Any]:
  """Variables of a host that is not told which cells were NaN."""
  params = dict(variables["params"])
  kernel = jnp.asarray(params["cell_embed"]["kernel"])
  kernel = kernel.at[module.config.feature_group_size :].set(0)
  params["cell_embed"] = {**params["cell_embed"], "kernel": kernel}
  return {**variables, "params": params}


def table(rows: Sequence[Row]) -> tables.Table:
  """The rows as a table to print."""
  result = tables.Table(
    "deleted",
    "share",
    "handling",
    "mean RMSE / std",
    "against nothing deleted",
    "largest difference from dropping",
    title="Missing data",
  )
  for row in rows:
    off = row.against_dropping
    result.add_row(
      row.kind,
      f"{row.share:.0%}",
      row.handling,
      f"{row.error:.4f}",
      f"{row.change:+.1%}",
      f"{off:.1e}" if np.isfinite(off) else "",
    )
  return result


def _restandardised(
  batch: Batch, deletion: Deletion
) -> tuple[Batch, np.ndarray, np.ndarray]:
  """The batch with targets in units of those that are left, and the units."""
  known = deletion.rows[:, : batch.num_train]
  mean = np.mean(batch.y, axis=1, where=known, keepdims=True)
  scale = np.std(batch.y, axis=1, where=known, keepdims=True)
  scale = np.where(scale > 0, scale, 1)
  return dataclasses.replace(batch, y=(batch.y - mean) / scale), mean, scale


def _with_nan(
  batch: Batch, deletion: Deletion
) -> tuple[np.ndarray, np.ndarray]:
  kept = deletion.cells & deletion.rows[..., None]
  kept = kept & deletion.columns[:, None, :]
  known = deletion.rows[:, : batch.num_train]
  x = np.where(kept, batch.x, np.float32(np.nan))
  return x, np.where(known, batch.y, np.float32(np.nan))


def _mean_target(y: np.ndarray) -> np.ndarray:
  mean = np.nanmean(y, axis=1, keepdims=True)
  return np.where(np.isfinite(y), y, mean).astype(np.float32)


def _dropped(batch: Batch, deletion: Deletion) -> tuple[np.ndarray, np.ndarray]:
  n = batch.num_train
  x, y = [], []
  for i, (rows, columns) in enumerate(
    zip(deletion.rows, deletion.columns, strict=True)
  ):
    x.append(batch.x[i][rows][:, columns])
    y.append(batch.y[i][rows[:n]])
  return np.stack(x), np.stack(y)
