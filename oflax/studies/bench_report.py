"""What ``oflax bench`` prints and writes: tables, a plot, JSON."""

from collections.abc import Callable
import dataclasses
import importlib.metadata
import json
import math
import os
import pathlib
import platform
from typing import Any

import jax
from matplotlib import pyplot as plt
from matplotlib import ticker
import numpy as np

from oflax.studies import bench
from oflax.studies import bench_subjects as subjects
from oflax.studies import figures
from oflax.studies.bench import Row

Group = tuple[str, Callable[[], list[bench.Subject]]]
FORWARD, BOTH = "forward", "forward + backward"
STEP = "training step"
# What oflax is built to reach, by the number of tokens; that of 2048 and more.
AIMS = {
  (FORWARD, subjects.BIAS): {128: "0.95", 512: "2.2", 2048: "2.7"},
  (BOTH, subjects.BIAS): {128: "1.1", 512: "1.7", 2048: "2.3"},
  (FORWARD, subjects.TORCH_MASK): {2048: "0.85"},
  (BOTH, subjects.TORCH_DIFFERENTIABLE): {2048: "1.3"},
  (BOTH, subjects.TORCH): {2048: "0.65"},
}
# The same by the share of nulls.
MODEL_AIMS = {
  subjects.FLAX: {0.0: "2", 0.5: "5", 0.9: "25"},
  subjects.DENSE: {0.0: "0.91", 0.5: "2.5"},
}


def groups(gpu: bool) -> list[Group]:
  """What is measured: the name of each group, and a maker of its subjects."""
  result: list[Group] = []
  for size, with_backward in subjects.SIZES:
    for backward in (False, True) if with_backward else (False,):
      mode = BOTH if backward else FORWARD

      def make(size: Any = size, backward: bool = backward) -> Any:
        made = [subjects.peak()]
        made += subjects.attention(size, backward=backward, gpu=gpu)
        return made + subjects.modules(size, backward=backward)

      result.append((attention_group(mode, size[1]), make))
  for share in subjects.NULL_SHARES:
    for training in (False, True):
      mode = STEP if training else FORWARD

      def model(share: float = share, training: bool = training) -> Any:
        return subjects.models(share, training=training)

      result.append((model_group(mode, share), model))
  return result


def attention_group(mode: str, tokens: int) -> str:
  return f"attention, N = {tokens}, {mode}"


def model_group(mode: str, share: float) -> str:
  return f"model, {share:.0%} nulls, {mode}"


@dataclasses.dataclass(frozen=True)
class Ratio:
  """How many times as much a peer takes as a subject; at least `wanted`."""

  measure: str
  value: float
  wanted: str = ""


def ratios(rows: list[Row]) -> list[Ratio]:
  """The comparisons that oflax is judged by, as far as both sides were run."""
  at = {(row.group, row.subject): row for row in rows}

  def over(group: str, peer: str, subject: str) -> float:
    theirs, ours = at.get((group, peer)), at.get((group, subject))
    return theirs.median / ours.median if theirs and ours else math.nan

  found: list[Ratio] = []

  def add(measure: str, value: float, wanted: str | None = None) -> None:
    if not math.isnan(value):
      found.append(Ratio(measure, value, wanted or ""))

  for (mode, peer), least in AIMS.items():
    for (_, n, _, _), _ in subjects.SIZES:
      group = attention_group(mode, n)
      value = over(group, peer, subjects.OURS)
      add(f"{group}: {peer}", value, least.get(min(n, 2048)))
  for (b, n, h, d), _ in subjects.SIZES:
    group = attention_group(FORWARD, n)
    work = 4 * b * h * n * n * d / (2 * subjects.PEAK**3)
    share = work * over(group, subjects.MATMUL, subjects.OURS)
    add(f"{group}: share of the peak", share, "0.6" if n >= 2048 else None)
  group = attention_group(BOTH, 4096)
  theirs, ours = at.get((group, subjects.BIAS)), at.get((group, subjects.OURS))
  if theirs and ours:
    value = theirs.temporaries / ours.temporaries
    add(f"{group}: temporaries of {subjects.BIAS}", value, "30")
  for mode in (FORWARD, BOTH):
    group = attention_group(mode, 4096)
    value = over(group, subjects.BLOCKED, subjects.CAUSAL)
    add(f"{group}: not causal over causal", value, "1.5")
  for mode in (FORWARD, STEP):
    for null_share in subjects.NULL_SHARES:
      group = model_group(mode, null_share)
      for peer, aims in MODEL_AIMS.items():
        value = over(group, peer, subjects.COMPACTED)
        add(f"{group}: {peer}", value, aims.get(null_share))
  return found


def limits(rows: list[Row]) -> list[Ratio]:
  """What a model would reach against Flax if products were all it took.

  Those of the tokens that it computes on, at the speed of the largest product
  measured in the same run.
  """
  peaks = [row.median for row in rows if row.subject == subjects.MATMUL]
  if not peaks:
    return []
  speed = 2 * subjects.PEAK**3 / float(np.median(peaks))
  found = []
  for share in subjects.NULL_SHARES:
    group = model_group(FORWARD, share)
    for row in rows:
      if (row.group, row.subject) == (group, subjects.FLAX):
        best = row.median * speed / subjects.model_work(share)
        found.append(Ratio(f"{group}: {subjects.FLAX}", best))
  return found


def machine() -> dict[str, str]:
  """What the figures were measured with."""
  versions = {}
  for name in ("jax", "flax", "torch", "numpy"):
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = "absent"
  return {
    "device": jax.devices()[0].device_kind,
    "processor": f"{os.cpu_count()} cores, {platform.machine()}, {_model()}",
    "python": platform.python_version(),
    **versions,
  }


def run(
  folder: pathlib.Path,
  *,
  gpu: bool,
  seconds: float,
  only: str = "",
  resume: bool = False,
  on_group: Callable[[str], None] = lambda name: None,
  on_subject: Callable[[str], None] = lambda name: None,
) -> str:
  """Measures all groups, writes the files, and returns the page.

  The figures of a group are kept as soon as there are any, so that a stopped
  run can be resumed.
  """
  folder.mkdir(parents=True, exist_ok=True)
  rows = _read(folder, machine()) if resume else []
  done = {row.group for row in rows}
  order = [name for name, _ in groups(gpu)]
  for name, make in groups(gpu):
    if only in name and name not in done:
      on_group(name)
      rows += bench.measure(
        name, make(), seconds=seconds, on_subject=on_subject
      )
      rows.sort(key=lambda row: order.index(row.group))
      write(folder, rows, machine(), gpu)
  if not rows:
    raise ValueError(f"only must be part of a group's name, got {only!r}.")
  return write(folder, rows, machine(), gpu)


def _read(folder: pathlib.Path, made_with: dict[str, str]) -> list[Row]:
  """The rows of a stopped run on this machine."""
  file = folder / "benchmarks.json"
  if not file.exists():
    return []
  content = json.loads(file.read_text())
  if content["machine"] != made_with:
    raise ValueError(
      f"directory {folder} holds a run made with {content['machine']}, not with"
      f" {made_with}."
    )
  return [_row(entry) for entry in content["rows"]]


def _row(entry: dict[str, Any]) -> Row:
  nan = float("nan")
  known: dict[str, Any] = {
    key: nan if value is None else value for key, value in entry.items()
  }
  return Row(**known)


def write(
  folder: pathlib.Path, rows: list[Row], made_with: dict[str, str], gpu: bool
) -> str:
  """Writes benchmarks.json, .md and .png; returns the page."""
  content = {"machine": made_with, "rows": [_plain(row) for row in rows]}
  (folder / "benchmarks.json").write_text(json.dumps(content, indent=1))
  page = _page(rows, made_with, gpu)
  (folder / "benchmarks.md").write_text(page)
  _plot(ratios(rows), folder / "benchmarks.png")
  return page


def _plain(row: Row) -> dict[str, Any]:
  """NaN as null: JSON has none."""
  return {
    key: None if isinstance(value, float) and math.isnan(value) else value
    for key, value in dataclasses.asdict(row).items()
  }


def _page(rows: list[Row], made_with: dict[str, str], gpu: bool) -> str:
  command = "oflax bench" + (" --device gpu" if gpu else "")
  lines = [
    "# Benchmarks",
    "",
    f"Written by `{command} --directory docs`; "
    + ", ".join(f"{key} {value}" for key, value in made_with.items())
    + ".",
    "",
    "Subjects of a group take turns, in a new order every round. Times are"
    " medians in milliseconds, with quartiles; temporaries are those of the"
    " compiled program.",
    "",
    "![Ratios](benchmarks.png)",
    "",
    "## How many times as long others take",
    "",
    "`oflax` is what `o_attention` chooses by itself. Above 1, oflax is"
    " faster, or takes less.",
    "",
    *_table(
      ("measure", "ratio", "aim: at least"),
      [
        (ratio.measure, f"{ratio.value:.2f}", ratio.wanted or "")
        for ratio in ratios(rows)
      ],
    ),
  ]
  if limits(rows):
    lines += [
      "",
      "No compacted model can do better than this: its matrix products alone,"
      " at the speed of the product of two matrices of"
      f" {subjects.PEAK} by {subjects.PEAK}.",
      "",
      *_table(
        ("measure", "limit of the ratio"),
        [(limit.measure, f"{limit.value:.2f}") for limit in limits(rows)],
      ),
    ]
  for group in dict.fromkeys(row.group for row in rows):
    lines += ["", f"## {group[:1].upper()}{group[1:]}", ""]
    lines += _table(
      ("subject", "ms", "quartiles", "runs", "temporaries, MB", "compile, s"),
      [_cells(row) for row in rows if row.group == group],
    )
  measured = {row.group for row in rows}
  missing = [name for name, _ in groups(gpu) if name not in measured]
  if missing:
    lines += ["", "## Not measured", "", *(f"- {name}" for name in missing)]
  if not gpu:
    lines += ["", "## GPU", "", "Not measured."]
  return "\n".join(lines) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
  def number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)

  spread = f"{row.low:.1f} to {row.high:.1f}" if row.runs else row.note
  return (
    row.subject,
    number(row.median, ".1f"),
    spread,
    str(row.runs),
    number(row.temporaries / 1e6, ".1f"),
    number(row.compiling, ".1f"),
  )


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
  rule = ("---", *["---:"] * (len(header) - 1))
  return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


def _plot(shown: list[Ratio], path: pathlib.Path) -> None:
  if not shown:
    return
  figure, axes = plt.subplots(
    figsize=(9, 0.6 + 0.24 * len(shown)), layout="constrained"
  )
  places = np.arange(len(shown))[::-1]
  values = [ratio.value for ratio in shown]
  colours = ["tab:blue" if v >= 1 else "tab:orange" for v in values]
  axes.barh(places, values, color=colours, height=0.7)
  for place, ratio in zip(places, shown, strict=True):
    aim = float(ratio.wanted or 0)
    if aim:
      axes.plot([aim, aim], [place - 0.4, place + 0.4], color="black", lw=1.5)
    end = max(ratio.value, aim)
    axes.text(end, place, f"  {ratio.value:.2f}", va="center", size=7)
  axes.axvline(1, color="grey", lw=0.8)
  axes.margins(x=0.1, y=0.005)
  axes.set_yticks(places, [ratio.measure for ratio in shown], size=7)
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
  axes.set_xlabel("times as much as oflax takes (black: the aim)")
  axes.spines[["top", "right"]].set_visible(False)
  figures.save(figure, path)


def _model() -> str:
  """The processor's name where the system tells it."""
  path = pathlib.Path("/proc/cpuinfo")
  lines = path.read_text().splitlines() if path.exists() else []
  names = [line.partition(": ")[2] for line in lines if "model name" in line]
  return names[0] if names else platform.processor() or "unknown"
