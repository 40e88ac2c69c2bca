"""What ``oflax train`` prints and writes."""

from collections.abc import Mapping
import csv
import json
import os
import pathlib
import time
from typing import Any

import jax

from oflax import _hosts
from oflax import training
from oflax.studies import digits
from oflax.studies import digits_data
from oflax.studies import digits_plots

SHOWN = 3


def open_folder(
  directory: str | os.PathLike[str],
  settings: Mapping[str, Any],
  *,
  resume: bool,
) -> pathlib.Path:
  """The folder of a run, made or found, with its settings in it.

  Args:
    directory: Of the run.
    settings: What a resumed run must have in common with the first one.
    resume: Whether there may be a run in it already.

  Returns:
    The folder.

  Raises:
    ValueError: `directory` is in use and `resume` not set, or the run in it has
      other settings.
  """
  folder = pathlib.Path(directory)
  file = folder / "settings.json"
  if folder.exists() and any(folder.iterdir()):
    if not resume:
      raise ValueError(
        f"directory {folder} is not empty: pass --resume to go on with the run"
        " in it, or another --directory."
      )
    found = json.loads(file.read_text()) if file.exists() else None
    if found != settings:
      raise ValueError(
        f"directory {folder} holds {found or 'no run'}, not a run of"
        f" {dict(settings)}."
      )
  folder.mkdir(parents=True, exist_ok=True)
  file.write_text(json.dumps(settings))
  return folder


def run(
  folder: pathlib.Path,
  *,
  variant: str = "full",
  seed: int = 0,
  steps: int = digits.STEPS,
  resume: bool = False,
) -> dict[str, Any]:
  """Trains, prints what was learnt, writes tables and figures.

  Args:
    folder: From `open_folder`.
    variant: "host", "attention" or "full".
    seed: Of the split and everything random.
    steps: Optimizer steps.
    resume: Go on from the newest checkpoint.

  Returns:
    "test_accuracy" in [0, 1], "laws", the report, and "ink", from share set to
    null to accuracy. Nothing in any process but the first, which reports.
  """
  began = time.perf_counter()
  pixels, labels = digits_data.load()
  train, test = digits_data.split(labels, seed)
  first = jax.process_index() == 0
  if first:
    print(
      f"digits: {len(train)} images to train on, {len(test)} to test; variant"
      f" {variant}, seed {seed}, {steps} steps of {digits.BATCH} images"
    )
  state = digits.train(
    (pixels[train], labels[train]),
    (pixels[test], labels[test]),
    variant=variant,
    seed=seed,
    steps=steps,
    directory=folder,
    resume=resume,
  )
  if not first:
    return {}
  state = _hosts.local(state)
  seen = _findings(state, pixels[test], labels[test], seed)
  _write(folder, state, pixels[test][:SHOWN], seen)
  _print(folder, seen, len(test), time.perf_counter() - began)
  return seen


def _findings(
  state: training.TrainState, pixels: Any, labels: Any, seed: int
) -> dict[str, Any]:
  laws_key, ink_key = jax.random.split(jax.random.key(seed))
  return {
    "test_accuracy": digits.accuracy(state, pixels, labels),
    "laws": digits.check_laws(state, pixels[0], laws_key),
    "ink": digits.accuracy_without_ink(state, pixels, labels, ink_key),
  }


def _print(
  folder: pathlib.Path, seen: Mapping[str, Any], images: int, seconds: float
) -> None:
  print(f"test accuracy {100 * seen['test_accuracy']:.2f} % of {images} images")
  print("\nlaws on the trained transformer\n")
  print(seen["laws"])
  if not seen["laws"].passed:
    print("(only the variant full promises them)")
  print("\nink tokens set to null   test accuracy")
  for share, accuracy in seen["ink"].items():
    print(f"{100 * share:20.0f} %   {100 * accuracy:11.2f} %")
  print(f"\n{seconds:.0f} s in all; written to {folder}")
  for name, content in FILES.items():
    print(f"  {name:17} {content}")


FILES = {
  "metrics.csv": "loss and accuracy by step",
  "ink.csv": "accuracy by share of ink set to null",
  "curves.png": "loss and accuracy against steps",
  "presence.png": "presence over the image, layer by layer",
  "ink.png": "accuracy against share of ink set to null",
  "checkpoints/": "parameters, thresholds, optimizer state",
}


def _write(
  folder: pathlib.Path,
  state: training.TrainState,
  examples: Any,
  seen: Mapping[str, Any],
) -> None:
  with (folder / "ink.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["share_null", "test_accuracy"])
    writer.writerows(seen["ink"].items())
  digits_plots.plot_curves(folder / "metrics.csv", folder / "curves.png")
  digits_plots.plot_ink(seen["ink"], folder / "ink.png")
  digits_plots.plot_presence(
    examples,
    digits.presence_by_layer(state, examples),
    folder / "presence.png",
  )
