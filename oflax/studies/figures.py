"""What all figures have in common."""

import os

import matplotlib

matplotlib.use("Agg")

from matplotlib import axes
from matplotlib import figure
from matplotlib import pyplot as plt


def lighten(panel: axes.Axes) -> None:
  """Draws axes so that what is in them stands out."""
  panel.spines[["top", "right"]].set_visible(False)
  panel.grid(color="0.92")
  panel.set_axisbelow(True)


def save(drawn: figure.Figure, path: str | os.PathLike[str]) -> None:
  """Writes a figure, and frees it."""
  drawn.savefig(path, dpi=150, facecolor="white")
  plt.close(drawn)
