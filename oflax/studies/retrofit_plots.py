"""The figures of the retrofit study."""

from collections.abc import Sequence
import os

from matplotlib import pyplot as plt
import numpy as np

from oflax.retrofit.tabpfn_v3.thresholds import ALPHA
from oflax.studies import figures
from oflax.studies.retrofit_curve import NAMES
from oflax.studies.retrofit_curve import PAPER
from oflax.studies.retrofit_curve import Case
from oflax.studies.retrofit_curve import Point
from oflax.studies.retrofit_missing import HANDLINGS
from oflax.studies.retrofit_missing import KINDS
from oflax.studies.retrofit_missing import Row

PathLike = str | os.PathLike[str]

COLORS = {"attention": figures.ORANGE, "full": figures.BLUE}
HANDLING_COLORS = {
  "host, NaN": figures.GREY,
  "host, mean": "tab:brown",
  "host, NaN without indicator": "tab:pink",
  "full, null tokens": figures.BLUE,
  "full, dropped": "tab:cyan",
}


@figures.style()
def plot_curve(
  cases: Sequence[Case], points: Sequence[Point], path: PathLike
) -> None:
  """The change of the error, and the basin, against α.

  Args:
    cases: Of all α, as `oflax.studies.retrofit_curve.curve` gives them.
    points: Likewise.
    path: Of the figure.
  """
  figure, (upper, lower) = plt.subplots(
    2,
    1,
    figsize=(5.6, 6.4),
    sharex=True,
    height_ratios=(3, 2),
    layout="constrained",
  )
  for variant, color in COLORS.items():
    mine = [point for point in points if point.variant == variant]
    alpha = [point.alpha for point in mine]
    percent = 100 * np.array([[p.change, p.low, p.high] for p in mine])
    upper.plot(
      alpha, percent[:, 0], "o-", ms=4, color=color, label=NAMES[variant]
    )
    upper.fill_between(alpha, *percent[:, 1:].T, color=color, alpha=0.15, lw=0)
    drawn = [case for case in cases if case.variant == variant]
    upper.scatter(
      [case.alpha for case in drawn],
      [100 * case.change for case in drawn],
      s=6,
      color=color,
      alpha=0.35,
      lw=0,
    )
    upper.axhline(100 * PAPER[variant], color=color, lw=0.8, ls=":")
    basin = np.array([point.basin for point in mine])
    label = NAMES[variant] + ("" if basin.any() else ": none does")
    basin[basin == 0] = np.nan
    lower.plot(alpha, basin, "o-", ms=4, color=color, label=label)
  threshold = np.array([point.threshold for point in mine])
  lower.plot(alpha, threshold, color=figures.INK, ls="--", lw=0.8, label="√τ")
  lower.plot(
    alpha, threshold / 30, color=figures.INK, ls=":", lw=0.8, label="√τ/30"
  )
  upper.set(
    xscale="log",
    ylabel="change of the mean RMSE (%)",
    title="What closing the host costs; points: cases, bands: 95 %,\n"
    "dotted: the paper's mean on TabPFN v3",
  )
  upper.set_yscale("symlog", linthresh=0.1)
  upper.set_yticks(
    [-10, -1, -0.1, 0, 0.1, 1, 10], ["−10", "−1", "−0.1", "0", "0.1", "1", "10"]
  )
  lower.set(
    yscale="log",
    xlabel="α = τ / median ‖h‖² of every site",
    ylabel="norm up to which a null\nrow stays nearly null",
  )
  for axes in (upper, lower):
    axes.axvline(ALPHA, color=figures.INK, alpha=0.25, lw=6, zorder=0)
    figures.lighten(axes)
  upper.legend(loc="upper left")
  lower.legend(loc="lower right", ncols=2)
  figures.save(figure, path)


@figures.style()
def plot_missing(rows: Sequence[Row], path: PathLike) -> None:
  """The error of each handling against the share that was deleted.

  Args:
    rows: Of `oflax.studies.retrofit_missing.missing`.
    path: Of the figure.
  """
  figure, panels = plt.subplots(
    1, len(KINDS), figsize=(10.5, 3.4), sharey=True, layout="constrained"
  )
  for axes, kind in zip(panels, KINDS, strict=True):
    shares = list(dict.fromkeys(row.share for row in rows))
    width = 0.8 / len(HANDLINGS[kind])
    for i, handling in enumerate(HANDLINGS[kind]):
      mine = [r for r in rows if (r.kind, r.handling) == (kind, handling)]
      axes.bar(
        np.arange(len(shares)) + (i - 1.5) * width,
        [100 * row.change for row in mine],
        width,
        label=handling,
        color=HANDLING_COLORS[handling],
      )
    axes.axhline(0, color=figures.INK, lw=0.8)
    axes.set(title=f"{kind} deleted", xlabel="share deleted")
    axes.set_xticks(range(len(shares)), [f"{share:.0%}" for share in shares])
    axes.legend(fontsize="small", loc="upper left")
    figures.lighten(axes)
  panels[0].set(ylabel="change of the mean RMSE (%)")
  panels[0].margins(y=0.35)  # For the legends.
  figures.save(figure, path)
