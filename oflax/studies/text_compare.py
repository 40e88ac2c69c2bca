"""The closed language model beside the ordinary one, with equal steps."""

from collections.abc import Sequence
import dataclasses
import os
import pathlib

from oflax.studies import text
from oflax.training.metrics import read_metrics

SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Pair:
  """What both reached from the same seed.

  Attributes:
    seed: Of parameters and batches.
    full: Bits per byte of the closed model, on files not learnt from.
    host: Those of the ordinary one.
  """

  seed: int
  full: float
  host: float

  @property
  def change(self) -> float:
    """The first over the second, less 1."""
    return self.full / self.host - 1

  def __str__(self) -> str:
    return (
      f"{self.seed:4} {self.full:8.4f} {self.host:8.4f}"
      f" {100 * self.change:+10.2f} %"
    )


def compare(
  directory: str | os.PathLike[str],
  *,
  steps: int = text.STEPS,
  seeds: Sequence[int] = SEEDS,
) -> str:
  """Trains both with each seed: same size, batches and steps.

  Every training is a run of its own under `directory`; called again, it goes on
  where it was stopped.

  Args:
    directory: Of the runs.
    steps: Of each training.
    seeds: Of parameters and batches.

  Returns:
    A table of bits per byte.
  """
  lines = ["seed     full     host       change"]
  for seed in seeds:
    reached = {}
    for variant in ("full", "host"):
      folder = pathlib.Path(directory) / f"{variant}-{seed}"
      text.train(
        variant=variant, seed=seed, steps=steps, directory=folder, resume=True
      )
      reached[variant] = read_metrics(folder / "metrics.csv")[-1]["test_bits"]
    lines.append(str(Pair(seed, **reached)))
  return "\n".join(lines)
