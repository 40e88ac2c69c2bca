"""What closing a pretrained host costs, against the size of its thresholds.

The source paper's first study: a host, its OAttention variant and its full O
variant on the same weights, nothing trained, case by case.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import numpy as np
from rich import table as tables

from oflax.retrofit.tabpfn_v3 import TabPFNV3
from oflax.retrofit.tabpfn_v3 import calibrated
from oflax.retrofit.tabpfn_v3.thresholds import ALPHA
from oflax.studies import ablation
from oflax.studies import bootstrap
from oflax.studies import stacks
from oflax.studies.retrofit_cases import Batch
from oflax.studies.retrofit_cases import predict
from oflax.studies.retrofit_cases import side_by_side

ALPHAS = tuple(float(f"{x:.3g}") for x in np.geomspace(1e-5, 1e-1, 9))
VARIANTS = ("attention", "full")
NAMES = {"attention": "OAttention", "full": "Full-O"}
# The change of the mean error that the paper reports, for TabPFN v3.
PAPER = {"attention": 0.00088, "full": 0.00177}
# Start norms of null rows, in units of √τ of the first block.
STARTS = np.geomspace(1e-4, 3, 91)


@dataclasses.dataclass(frozen=True)
class Case:
  """The error of one variant on one split of one table.

  Attributes:
    table: Its name.
    seed: Of the split.
    variant: "attention" or "full".
    alpha: τ of every site over the median ‖h‖² there.
    host: Root mean squared error of the host, in standard deviations of the
      train targets.
    error: That of the variant.
  """

  table: str
  seed: int
  variant: str
  alpha: float
  host: float
  error: float

  @property
  def change(self) -> float:
    """The relative change of the error."""
    return self.error / self.host - 1


@dataclasses.dataclass(frozen=True)
class Point:
  """All cases of one variant and α.

  Attributes:
    variant: "attention" or "full".
    alpha: τ of every site over the median ‖h‖² there.
    change: Relative change of the mean error, of the variant against the host.
    low: Lower end of its 95 % interval, a bootstrap over cases.
    high: Upper end.
    basin: Largest norm up to which null rows stay nearly null through all
      blocks that learn in context (see `oflax.studies.ablation.basin`).
    threshold: √τ of the first of these blocks.
  """

  variant: str
  alpha: float
  change: float
  low: float
  high: float
  basin: float
  threshold: float


def curve(
  module: TabPFNV3,
  variables: Mapping[str, Any],
  batches: Sequence[Batch],
  *,
  alphas: Sequence[float] = ALPHAS,
  on_pass: Callable[[], None] = lambda: None,
) -> tuple[list[Case], list[Point]]:
  """Errors of both variants for each α.

  Args:
    module: The host, in any variant.
    variables: Its variables; their thresholds do not matter.
    batches: The matched cases.
    alphas: To set the thresholds by, on synthetic tables alone.
    on_pass: Called after each forward pass, of which there are `num_passes`.

  Returns:
    The cases, and what they come to for each variant and α.
  """
  base = calibrated(module, variables, ALPHA)

  def errors(variant: str, variables: Mapping[str, Any]) -> list[np.ndarray]:
    subject = module.clone(variant=variant, implementation="reference")

    def of_batch(batch: Batch) -> np.ndarray:
      predicted = predict(subject, variables, batch.x, batch.y)
      on_pass()
      return batch.errors(predicted)

    return side_by_side(of_batch, batches)

  host = errors("host", base)
  cases, points = [], []
  for alpha in alphas:
    scaled = at_alpha(base, alpha)
    for variant in VARIANTS:
      mine = [
        Case(batch.table, seed, variant, alpha, float(h), float(e))
        for batch, hs, es in zip(
          batches, host, errors(variant, scaled), strict=True
        )
        for seed, h, e in zip(batch.seeds, hs, es, strict=True)
      ]
      cases += mine
      points.append(_point(mine, *null_basin(module, scaled, variant)))
  return cases, points


def num_passes(batches: int, alphas: int = len(ALPHAS)) -> int:
  """How often `curve` calls `on_pass`."""
  return batches * (1 + alphas * len(VARIANTS))


def at_alpha(calibrated: Mapping[str, Any], alpha: float) -> dict[str, Any]:
  """Variables whose thresholds are for `ALPHA`, with those for another α."""
  thresholds = jax.tree.map(
    lambda tau: tau * (alpha / ALPHA), calibrated["calibration"]
  )
  return {**calibrated, "calibration": thresholds}


def null_basin(
  module: TabPFNV3, variables: Mapping[str, Any], variant: str
) -> tuple[float, float]:
  """The basin of null rows in the blocks that learn in context, and √τ.

  Args:
    module: In any variant.
    variables: With thresholds.
    variant: To look at.

  Returns:
    The largest norm up to which rows grow by less than 10 % through all blocks,
    and √τ of the first one.
  """
  stack = stacks.v3_stack(module, variables)
  threshold = stack.thresholds()[0] ** 0.5
  nulls = ablation.directions(stack, ablation.NUM_NULLS)
  starts = threshold * STARTS
  last, _ = stack.run(variant, starts[:, None, None] * nulls[None])[-1]
  norms = np.median(np.linalg.norm(last, axis=-1), axis=-1)
  return ablation.basin(starts, norms), threshold


def change_of_mean(
  cases: Sequence[Case], seed: int = 0
) -> tuple[float, float, float]:
  """The relative change of the mean error, and its 95 % interval.

  Args:
    cases: Of one variant and α.
    seed: Of the bootstrap, which draws cases.

  Returns:
    The change and the ends of its interval.

  Example:
    >>> case = Case("wine", 0, "full", 1e-3, host=0.5, error=0.505)
    >>> [round(x, 4) for x in change_of_mean([case, case])]
    [0.01, 0.01, 0.01]

  Reference: Efron 1979, the percentile bootstrap.
  """
  host = np.array([case.host for case in cases])
  error = np.array([case.error for case in cases])
  low, high = bootstrap.interval(
    lambda drawn: error[drawn].mean(1) / host[drawn].mean(1) - 1,
    len(cases),
    seed,
  )
  return float(error.mean() / host.mean() - 1), low, high


def table(points: Sequence[Point]) -> tables.Table:
  """The curve as a table to print."""
  result = tables.Table(
    "α",
    "OAttention",
    "95 %",
    "Full-O",
    "95 %",
    "basin of Full-O",
    title="Change of the mean RMSE against the host",
  )
  by = {(point.alpha, point.variant): point for point in points}
  for alpha in dict.fromkeys(point.alpha for point in points):
    attention, full = (by[alpha, variant] for variant in VARIANTS)
    result.add_row(
      f"{alpha:.3g}",
      f"{attention.change:+.3%}",
      f"{attention.low:+.2%} to {attention.high:+.2%}",
      f"{full.change:+.3%}",
      f"{full.low:+.2%} to {full.high:+.2%}",
      f"{full.basin:.2g} = √τ/{full.threshold / full.basin:.3g}"
      if full.basin
      else "—",
    )
  return result


def case_table(cases: Sequence[Case], alpha: float = ALPHA) -> tables.Table:
  """The cases of one α as a table to print."""
  result = tables.Table(
    "table",
    "seed",
    "host RMSE",
    "OAttention",
    "Full-O",
    title=f"Case by case at α = {alpha:g}",
  )
  by = {(c.table, c.seed, c.variant): c for c in cases if c.alpha == alpha}
  for name, seed in dict.fromkeys((c.table, c.seed) for c in by.values()):
    attention, full = (by[name, seed, variant] for variant in VARIANTS)
    result.add_row(
      name,
      str(seed),
      f"{full.host:.4f}",
      f"{attention.change:+.3%}",
      f"{full.change:+.3%}",
    )
  return result


def _point(cases: Sequence[Case], basin: float, threshold: float) -> Point:
  first = cases[0]
  changes = change_of_mean(cases)
  return Point(first.variant, first.alpha, *changes, basin, threshold)
