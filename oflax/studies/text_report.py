"""What ``oflax train text`` and ``oflax generate`` print and write."""

import json
import os
import pathlib
import time
from typing import Any

import jax
from matplotlib import pyplot as plt
import numpy as np

from oflax import sequences
from oflax import training
from oflax.studies import figures
from oflax.studies import text
from oflax.studies import text_data
from oflax.training.metrics import read_metrics

FILES = {
  "metrics.csv": "loss and bits per byte by step",
  "curves.png": "both against steps",
  "checkpoints/": "parameters, thresholds, optimizer state",
}
PROMPTS = ("def ", "class ", "import ")
SHOWN = 120


def run(
  folder: pathlib.Path,
  *,
  variant: str = "full",
  seed: int = 0,
  steps: int = text.STEPS,
  resume: bool = False,
) -> float:
  """Trains, prints what was learnt, writes metrics and a figure.

  Args:
    folder: Of the run.
    variant: "full", "attention" or "host".
    seed: Of parameters and batches.
    steps: Optimizer steps.
    resume: Go on from the newest checkpoint.

  Returns:
    Bits per byte of the files that were not learnt from.
  """
  began = time.perf_counter()
  learnt, judged = text_data.corpus()
  print(
    f"the standard library: {len(learnt):,} bytes to learn from,"
    f" {len(judged):,} to be judged on; variant {variant}, seed {seed}",
    flush=True,
  )
  state = text.train(
    variant=variant,
    seed=seed,
    steps=steps,
    directory=folder,
    resume=resume,
  )
  rows = read_metrics(folder / "metrics.csv")
  bits = rows[-1]["test_bits"]
  print(f"{bits:.4f} bits per byte of files not learnt from")
  if variant == "full":
    for made in generated(state, list(PROMPTS), SHOWN, seed=seed):
      print(f"  {made!r}")
  _plot(rows, folder / "curves.png")
  print(f"\n{time.perf_counter() - began:.0f} s; written to {folder}")
  for name, content in FILES.items():
    print(f"  {name:20} {content}")
  return bits


def restored(folder: str | os.PathLike[str]) -> training.TrainState:
  """The state of a run of ``oflax train text``, from its newest checkpoint.

  Raises:
    ValueError: There is no such run, or not of the variant "full".
  """
  folder = pathlib.Path(folder)
  file = folder / "settings.json"
  if not file.exists():
    raise ValueError(
      f"directory {folder} holds no run: make one with oflax train text."
    )
  settings = json.loads(file.read_text())
  if settings.get("variant") != "full":
    raise ValueError(
      f"directory {folder} must hold a run of the variant 'full', got"
      f" {settings.get('variant')!r}."
    )
  like = text.fresh_state(
    variant=settings["variant"],
    seed=settings["seed"],
    steps=settings["steps"],
  )
  checkpoints = training.Checkpoints(folder / "checkpoints")
  try:
    newest = checkpoints.restore(like)
  finally:
    checkpoints.close()
  if newest is None:
    raise ValueError(f"directory {folder} holds no checkpoint yet.")
  return newest[1]


def generated(
  state: training.TrainState,
  prompts: list[str],
  steps: int,
  *,
  temperature: float = 0.7,
  top_p: float | None = None,
  seed: int = 0,
) -> list[str]:
  """Goes on with prompts.

  Args:
    state: Of a run, variant "full".
    prompts: Texts.
    steps: Bytes to add to each.
    temperature: As in `oflax.sequences.generate`.
    top_p: Likewise.
    seed: Of the random key.

  Returns:
    The prompts with what comes after them.
  """
  ids = [text_data.encode(prompt) for prompt in prompts]
  longest = max(map(len, ids))
  padded = np.stack([np.pad(each, (0, longest - len(each))) for each in ids])
  model: Any = state.module
  made = sequences.generate(
    model,
    state.variables,
    padded,
    steps,
    temperature=temperature,
    top_p=top_p,
    key=jax.random.key(seed),
  )
  return [
    prompt + text_data.decode(np.asarray(row))
    for prompt, row in zip(prompts, made, strict=True)
  ]


@figures.style()
def _plot(rows: list[dict[str, float]], path: pathlib.Path) -> None:
  figure, axes = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
  step = [row["step"] for row in rows]
  axes.plot(step, [row["loss"] for row in rows], label="batch", alpha=0.5)
  axes.plot(step, [row["test_bits"] for row in rows], label="other files")
  axes.set(xlabel="step", ylabel="bits per byte", ylim=(0, None))
  axes.legend()
  figures.lighten(axes)
  figures.save(figure, path)
