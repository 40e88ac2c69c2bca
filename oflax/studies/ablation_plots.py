"""The figure of the two-block ablation."""

from collections.abc import Sequence
import os

from matplotlib import pyplot as plt
import numpy as np

from oflax.linen.block import VARIANTS
from oflax.studies import figures
from oflax.studies.ablation import NUM_BLOCKS
from oflax.studies.ablation import Row

# What is exactly zero is drawn at the edge of a logarithmic axis.
EDGE = 1e-5
CHANGE_EDGE = 1e-8


@figures.style()
def plot(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
  """Norms of null rows, and changes of present rows, against the start norm.

  Args:
    rows: Of `oflax.studies.ablation.ablate`, of one host or several.
    path: Of the figure.
  """
  hosts = list(dict.fromkeys(row.host for row in rows))
  figure, panels = plt.subplots(
    2,
    len(hosts),
    figsize=(max(4.4, 2.9 * len(hosts)), 6),
    sharex=True,
    sharey="row",
    squeeze=False,
    layout="constrained",
  )
  for i, host in enumerate(hosts):
    mine = [row for row in rows if row.host == host]
    upper, lower = panels[:, i]
    for variant in VARIANTS:
      _lines(upper, lower, [r for r in mine if r.variant == variant])
    upper.axline((1e-4, 1e-4), (1, 1), color=figures.INK, lw=0.8, ls=":")
    for axes in (upper, lower):
      axes.axvline(mine[0].threshold, color=figures.INK, lw=0.8, ls="--")
      axes.set(xscale="log", yscale="log")
      figures.lighten(axes)
    upper.set(title=host)
    upper.annotate(
      "√τ",
      (mine[0].threshold, 0.02),
      xycoords=("data", "axes fraction"),
      color=figures.INK,
      ha="right",
    )
    lower.set(xlabel="norm of the null rows at the start")
    lower.set_xticks(
      [EDGE, 1e-4, 1e-2, 1], ["0", "$10^{-4}$", "$10^{-2}$", "1"]
    )
  panels[0, 0].set(ylabel=f"their norm after {NUM_BLOCKS} blocks")
  _zero_tick(panels[0, 0], EDGE, [1e-4, 1e-2, 1, 100])
  panels[1, 0].set(ylabel="largest relative change\nof a present row")
  _zero_tick(panels[1, 0], CHANGE_EDGE, [1e-6, 1e-4, 1e-2, 1])
  named = panels[0, 0].get_legend_handles_labels()
  figure.legend(*named, ncols=3, loc="outside upper center")
  figures.save(figure, path)


def _lines(upper: plt.Axes, lower: plt.Axes, rows: Sequence[Row]) -> None:
  """One variant: a point for what started at exactly 0, a line for the rest."""
  ends = [row for row in rows if row.block == NUM_BLOCKS]
  [zero] = [row for row in ends if not row.start]
  others = sorted((r for r in ends if r.start), key=lambda row: row.start)
  start = [row.start for row in others]
  color = figures.COLORS[zero.variant]
  for axes, edge, name in (
    (upper, EDGE, "norm"),
    (lower, CHANGE_EDGE, "change"),
  ):
    values = [max(getattr(row, name), edge) for row in others]
    axes.plot(start, values, color=color, label=zero.variant)
    axes.plot(EDGE, max(getattr(zero, name), edge), "o", color=color)


def _zero_tick(axes: plt.Axes, edge: float, ticks: Sequence[float]) -> None:
  names = [f"$10^{{{round(np.log10(t))}}}$" for t in ticks]
  axes.set_yticks([edge, *ticks], ["0", *names])
