"""What all figures have in common.

They have no background and draw in a middle grey, so that they can be read on a
light page and on a dark one.
"""

from collections.abc import Iterator
import contextlib
import os
from typing import Any

import matplotlib

# A notebook and a user who has chosen a backend keep it.
if "MPLBACKEND" not in os.environ:
  matplotlib.use("Agg")

from matplotlib import axes
from matplotlib import colors
from matplotlib import figure
from matplotlib import pyplot as plt

# Contrast of at least 3.9 with white and with #121212.
INK = "0.5"
BLUE, ORANGE, GREY = "#3b8fd6", "#e07b28", "0.55"
# Negative, near zero, positive: each other than the page.
SIGNED = colors.LinearSegmentedColormap.from_list(
  "signed", ["#9c4a08", ORANGE, "0.8", BLUE, "#0d4f87"]
)
# The three subjects of a study.
COLORS = {"host": GREY, "attention": ORANGE, "full": BLUE}

STYLE: dict[Any, Any] = {
  "axes.edgecolor": INK,
  "axes.facecolor": "none",
  "axes.labelcolor": INK,
  "axes.prop_cycle": plt.cycler(
    color=[BLUE, ORANGE, GREY, "#3aa676", "#b07cc6", "#c25b6a"]
  ),
  "axes.titlecolor": INK,
  "figure.facecolor": "none",
  "savefig.facecolor": "none",
  "legend.frameon": False,
  "legend.labelcolor": INK,
  "svg.hashsalt": "oflax",
  "text.color": INK,
  "xtick.color": INK,
  "ytick.color": INK,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
  """Draws in the style of all figures; also a decorator of what draws."""
  with plt.rc_context(STYLE):
    yield


def lighten(panel: axes.Axes) -> None:
  """Draws axes so that what is in them stands out."""
  panel.spines[["top", "right"]].set_visible(False)
  panel.grid(color=INK, alpha=0.18)
  panel.set_axisbelow(True)


def save(drawn: figure.Figure, path: str | os.PathLike[str]) -> None:
  """Writes a figure, and frees it."""
  # Without a date the same figure is the same file.
  metadata = {"Date": None} if str(path).endswith(".svg") else None
  drawn.savefig(path, dpi=150, metadata=metadata)
  plt.close(drawn)
