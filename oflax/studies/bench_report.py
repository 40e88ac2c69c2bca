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
from oflax.studies import bench_decode as decode
from oflax.studies import bench_ratios
from oflax.studies import bench_subjects as subjects
from oflax.studies import figures
from oflax.studies.bench import Row
from oflax.studies.bench_ratios import Ratio

Group = tuple[str, Callable[[], list[bench.Subject]]]


def groups(gpu: bool) -> list[Group]:
  """What is measured: the name of each group, and a maker of its subjects."""
  result: list[Group] = []
  for size, with_backward in subjects.SIZES:
    for backward in (False, True) if with_backward else (False,):
      mode = bench_ratios.BOTH if backward else bench_ratios.FORWARD

      def make(size: Any = size, backward: bool = backward) -> Any:
        made = [subjects.peak()]
        made += subjects.attention(size, backward=backward, gpu=gpu)
        return made + subjects.modules(size, backward=backward)

      result.append((bench_ratios.attention_group(mode, size[1]), make))
  for share in subjects.NULL_SHARES:
    for training in (False, True):
      mode = bench_ratios.STEP if training else bench_ratios.FORWARD

      def model(share: float = share, training: bool = training) -> Any:
        return subjects.models(share, training=training)

      result.append((bench_ratios.model_group(mode, share), model))
  if not gpu:
    result += [
      (bench_ratios.DECODE, decode.steps),
      (bench_ratios.PREFILL, decode.prefill),
    ]
  return result


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
  _plot(bench_ratios.ratios(rows), folder / "benchmarks.png")
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
        for ratio in bench_ratios.ratios(rows)
      ],
    ),
  ]
  if bench_ratios.limits(rows):
    lines += [
      "",
      "No compacted model can do better than this: its matrix products alone,"
      " at the speed of the product of two matrices of"
      f" {subjects.PEAK} by {subjects.PEAK}.",
      "",
      *_table(
        ("measure", "limit of the ratio"),
        [
          (limit.measure, f"{limit.value:.2f}")
          for limit in bench_ratios.limits(rows)
        ],
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


@figures.style()
def _plot(shown: list[Ratio], path: pathlib.Path) -> None:
  if not shown:
    return
  figure, axes = plt.subplots(
    figsize=(9, 0.6 + 0.24 * len(shown)), layout="constrained"
  )
  places = np.arange(len(shown))[::-1]
  values = [ratio.value for ratio in shown]
  colours = [figures.BLUE if v >= 1 else figures.ORANGE for v in values]
  axes.barh(places, values, color=colours, height=0.7)
  for place, ratio in zip(places, shown, strict=True):
    aim = float(ratio.wanted or 0)
    if aim:
      axes.plot(
        [aim, aim], [place - 0.4, place + 0.4], color=figures.INK, lw=2.5
      )
    end = max(ratio.value, aim)
    axes.text(end, place, f"  {ratio.value:.2f}", va="center", size=7)
  axes.axvline(1, color=figures.INK, lw=0.8)
  axes.margins(x=0.1, y=0.005)
  axes.set_yticks(places, [ratio.measure for ratio in shown], size=7)
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
  axes.set_xlabel("times as much as oflax takes (grey: the aim)")
  axes.spines[["top", "right"]].set_visible(False)
  figures.save(figure, path)


def _model() -> str:
  """The processor's name where the system tells it."""
  path = pathlib.Path("/proc/cpuinfo")
  lines = path.read_text().splitlines() if path.exists() else []
  names = [line.partition(": ")[2] for line in lines if "model name" in line]
  return names[0] if names else platform.processor() or "unknown"
