"""The closed transformer beside an ordinary one with an attention mask."""

import dataclasses
import os
import pathlib

import numpy as np

from oflax.studies import bootstrap
from oflax.studies import digits
from oflax.studies import digits_data

FOLDS = 5
VARIANTS = ("full", "host")


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Out-of-fold accuracy of both, and the paired difference.

  Attributes:
    images: How many.
    full: Accuracy of the closed transformer, in [0, 1].
    host: Accuracy of the ordinary one.
    difference: full − host.
    low: Lower end of its 95 % interval.
    high: Upper end.
  """

  images: int
  full: float
  host: float
  difference: float
  low: float
  high: float

  def __str__(self) -> str:
    return (
      f"full {100 * self.full:.2f} %, host with an attention mask"
      f" {100 * self.host:.2f} % of {self.images} images, out of fold\n"
      f"difference {100 * self.difference:+.2f} points, 95 % interval"
      f" {100 * self.low:+.2f} to {100 * self.high:+.2f} points (paired"
      f" bootstrap over images, {bootstrap.RESAMPLES} resamples)"
    )


def compare(
  directory: str | os.PathLike[str],
  *,
  seed: int = 0,
  steps: int = digits.STEPS,
) -> Comparison:
  """Five-fold comparison, same size, augmentation and batches for both.

  Every fold is a run of its own under `directory`; called again, it goes on
  where it was stopped.

  Args:
    directory: Of the ten runs.
    seed: Of folds, parameters, batches and augmentation.
    steps: Of each training.

  Returns:
    Accuracies over all images, each predicted by the model that never saw it,
    and their difference. The interval is over images, not over trainings.

  Reference: Efron & Tibshirani 1993, the paired bootstrap.
  """
  pixels, labels = digits_data.load()
  right = {variant: np.zeros(len(labels), bool) for variant in VARIANTS}
  for fold, (train, test) in enumerate(
    digits_data.folds(labels, seed, FOLDS), start=1
  ):
    for variant in VARIANTS:
      state = digits.train(
        (pixels[train], labels[train]),
        (pixels[test], labels[test]),
        variant=variant,
        seed=seed,
        steps=steps,
        directory=pathlib.Path(directory) / f"{variant}-fold-{fold}",
        resume=True,
      )
      hits = np.asarray(digits.predict(state, pixels[test])) == labels[test]
      right[variant][test] = hits
      print(
        f"fold {fold} of {FOLDS}, {variant}: {100 * hits.mean():.2f} % of"
        f" {len(test)} images",
        flush=True,
      )
  difference = right["full"].astype(np.int8) - right["host"].astype(np.int8)
  low, high = bootstrap.interval(
    lambda drawn: difference[drawn].mean(axis=1), len(labels), seed
  )
  full, host = right["full"].mean(), right["host"].mean()
  return Comparison(
    len(labels), float(full), float(host), float(full - host), low, high
  )
