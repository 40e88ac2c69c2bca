"""The figures of the digits study."""

from collections.abc import Mapping
import os
from typing import Any

import jax
from matplotlib import pyplot as plt
import numpy as np

from oflax.studies import figures
from oflax.studies.digits_model import SIDE
from oflax.training.metrics import read_metrics

PathLike = str | os.PathLike[str]


@figures.style()
def plot_curves(metrics: PathLike, path: PathLike) -> None:
  """Loss and accuracy against steps.

  Args:
    metrics: The CSV file of a run.
    path: Of the figure.
  """
  rows = read_metrics(metrics)
  column = {
    name: [row[name] for row in rows]
    for name in ("step", "loss", "train_accuracy", "test_accuracy")
  }
  figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.4), layout="constrained"
  )
  left.plot(column["step"], column["loss"], color=figures.BLUE)
  left.set(ylabel="loss of the batch (nats)", ylim=(0, None))
  right.plot(
    column["step"],
    100 * np.array(column["train_accuracy"]),
    color=figures.BLUE,
    label="training batch, augmented",
  )
  right.plot(
    column["step"],
    100 * np.array(column["test_accuracy"]),
    color=figures.ORANGE,
    label="test images",
  )
  right.set(ylabel="accuracy (%)", ylim=(None, 101))
  right.legend(loc="lower right")
  for axes in (left, right):
    axes.set(xlabel="step")
    figures.lighten(axes)
  figures.save(figure, path)


@figures.style()
def plot_presence(
  pixels: np.ndarray, presence: Mapping[str, jax.Array], path: PathLike
) -> None:
  """Presence over the image, layer by layer.

  Args:
    pixels: ``[b, 64]``.
    presence: Name of the site to presence ``[b, 64]``.
    path: Of the figure.
  """
  columns = len(presence) + 1
  figure, grid = plt.subplots(
    len(pixels),
    columns,
    figsize=(1.35 * columns + 0.6, 1.4 * len(pixels) + 0.3),
    layout="constrained",
    squeeze=False,
  )
  panels: dict[str, Any] = {"image": pixels, **presence}
  for row in range(len(pixels)):
    for axes, (name, values) in zip(grid[row], panels.items(), strict=True):
      image = np.asarray(values[row]).reshape(SIDE, SIDE)
      cmap = "gray_r" if name == "image" else "Blues"
      shown = axes.imshow(image, vmin=0, vmax=1, cmap=cmap)
      axes.set(xticks=[], yticks=[])
      if row == 0:
        axes.set_title(name, fontsize=9)
  figure.colorbar(shown, ax=grid, label="presence", shrink=0.8)
  figures.save(figure, path)


@figures.style()
def plot_ink(accuracy: Mapping[float, float], path: PathLike) -> None:
  """Accuracy against the share of ink set to null.

  Args:
    accuracy: Share to accuracy, both in [0, 1].
    path: Of the figure.
  """
  figure, axes = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
  shares = 100 * np.array(list(accuracy))
  percent = 100 * np.array(list(accuracy.values()))
  axes.plot(shares, percent, marker="o", color=figures.BLUE)
  axes.axhline(10, color=figures.INK, linestyle=":", linewidth=1)
  axes.text(0, 11.5, "chance", color=figures.INK, fontsize=9)
  axes.set(
    xlabel="ink tokens set to null (%)",
    ylabel="test accuracy (%)",
    ylim=(0, 102),
  )
  figures.lighten(axes)
  figures.save(figure, path)
