"""What ``oflax pretrain`` prints and writes."""

from collections.abc import Mapping
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
from matplotlib import pyplot as plt
import numpy as np

from oflax import training
from oflax.retrofit import tabpfn_v3
from oflax.studies import figures
from oflax.studies import pretrain
from oflax.training.metrics import read_metrics

WEIGHTS = "v3-mini.safetensors"
SOURCE = "source.json"
METRICS = "metrics.csv"
FILES = {
  WEIGHTS: "the averaged weights",
  METRICS: "loss and squared error by step",
  "curves.png": "both against steps",
  "checkpoints/": "parameters, their average, optimizer state",
}


def run(
  folder: pathlib.Path,
  *,
  seed: int = 0,
  steps: int = pretrain.STEPS,
  resume: bool = False,
) -> dict[str, Any]:
  """Trains, and writes weights, metrics and a figure.

  Args:
    folder: From `digits_report.open_folder`.
    seed: Of everything random.
    steps: Optimizer steps.
    resume: Go on from the newest checkpoint.

  Returns:
    "valid_loss" and "valid_mse" of the averaged weights.
  """
  began = time.perf_counter()
  source = folder / SOURCE
  if not source.exists():
    source.write_text(json.dumps({"commit": _commit(), "jax": jax.__version__}))
  print(
    f"v3-mini: {steps} steps of {pretrain.TABLES} tables of {pretrain.ROWS}"
    f" rows, seed {seed}; it takes long to compile",
    flush=True,
  )
  state = pretrain.train(
    seed=seed,
    steps=steps,
    directory=folder,
    resume=resume,
    on_row=_Printer(steps),
  )
  write(folder, state, seed)
  rows = [
    row
    for row in read_metrics(folder / METRICS)
    if row["valid_mse"] == row["valid_mse"]
  ]
  seen = {name: rows[-1][name] for name in ("valid_loss", "valid_mse")}
  print(f"loss {seen['valid_loss']:.3f}, squared error {seen['valid_mse']:.3f}")
  print(f"\n{time.perf_counter() - began:.0f} s; written to {folder}")
  for name, content in FILES.items():
    print(f"  {name:20} {content}")
  return seen


def export(folder: str | os.PathLike[str]) -> int:
  """Writes the weights of the newest checkpoint of a run, perhaps a live one.

  Args:
    folder: Of the run.

  Returns:
    The step of that checkpoint.

  Raises:
    ValueError: There is none.
  """
  folder = pathlib.Path(folder)
  settings = json.loads((folder / "settings.json").read_text())
  like = pretrain.fresh_state(**settings)
  steps = [
    int(path.name)
    for path in (folder / "checkpoints").glob("*")
    if path.name.isdigit()
  ]
  if not steps:
    raise ValueError(f"folder holds no checkpoint, got {folder}.")
  name = str(max(steps))
  # Of a copy: opening the folder of a live run would clean up in it.
  with tempfile.TemporaryDirectory() as copy:
    shutil.copytree(folder / "checkpoints" / name, pathlib.Path(copy, name))
    checkpoints = training.Checkpoints(copy)
    restored = checkpoints.restore(like)
    checkpoints.close()
  assert restored is not None  # What is damaged raises.
  step, state = restored
  write(folder, state, settings["seed"])
  return step


def write(folder: pathlib.Path, state: training.TrainState, seed: int) -> None:
  """Writes averaged weights with thresholds, and the figure, to a folder.

  Args:
    folder: Of the run.
    state: Trained, or on the way.
    seed: Of the run.
  """
  notes = {"seed": seed, "steps": int(state.step)}
  source = folder / SOURCE
  if source.exists():
    notes |= json.loads(source.read_text())
  module = state.module
  assert isinstance(module, tabpfn_v3.TabPFNV3)  # Says the type.
  variables = tabpfn_v3.calibrated(module, pretrain.averaged_variables(state))
  tabpfn_v3.save(
    folder / WEIGHTS, module, variables, notes={"pretraining": notes}
  )
  _plot(read_metrics(folder / METRICS), folder / "curves.png")


class _Printer:
  """Says how far a run is, now and then, where no progress bar can be."""

  def __init__(self, steps: int):
    self._steps = steps
    self._first: tuple[int, float] | None = None

  def __call__(self, step: int, row: Mapping[str, float]) -> None:
    now = time.perf_counter()
    first, began = self._first = self._first or (step, now)
    if step % 100 or step == first:
      return
    speed = (step - first) / (now - began)
    valid = ""
    if row["valid_mse"] == row["valid_mse"]:
      valid = (
        f"; validation loss {row['valid_loss']:.4f},"
        f" squared error {row['valid_mse']:.4f}"
      )
    left = (self._steps - step) / speed / 60
    print(
      f"step {step} of {self._steps}, {speed:.2f} steps/s, {left:.0f} min"
      f" left{valid}",
      flush=True,
    )


@figures.style()
def _plot(
  rows: list[dict[str, float]], path: str | os.PathLike[str], window: int = 20
) -> None:
  """Loss and squared error against steps, of batches and of the average."""
  column = {name: np.array([row[name] for row in rows]) for name in rows[0]}
  known = np.isfinite(column["valid_loss"])
  figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
  labels = ("negative log density (nats)", "squared error / variance")
  for axes, name, label in zip(panels, ("loss", "mse"), labels, strict=True):
    size = min(window, len(rows))
    mean = np.convolve(column[name], np.full(size, 1 / size), "valid")
    axes.plot(
      column["step"][size - 1 :],
      mean,
      color=figures.BLUE,
      label=f"batches, mean of {size}",
    )
    axes.plot(
      column["step"][known],
      column[f"valid_{name}"][known],
      color=figures.ORANGE,
      marker="." if np.sum(known) < 2 else None,
      label="averaged weights, fixed tables",
    )
    axes.set(xlabel="step", ylabel=label)
    axes.legend()
    figures.lighten(axes)
  figures.save(figure, path)


def _commit() -> str | None:
  """Of the checkout that this file is in, if it is in one."""
  command = ["git", "rev-parse", "HEAD"]
  try:
    done = subprocess.run(
      command,
      cwd=pathlib.Path(__file__).parent,
      capture_output=True,
      text=True,
      check=False,
    )
  except OSError:
    return None
  return done.stdout.strip() or None


if __name__ == "__main__":
  print(f"step {export(sys.argv[1])} written to {sys.argv[1]}/{WEIGHTS}")
