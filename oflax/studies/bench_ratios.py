"""The ratios that oflax is judged by, from what a benchmark measured."""

import dataclasses
import math

import numpy as np

from oflax.studies import bench_decode as decode
from oflax.studies import bench_subjects as subjects
from oflax.studies.bench import Row

FORWARD, BOTH = "forward", "forward + backward"
STEP = "training step"
DECODE = (
  f"decode, batch {decode.BATCH}, context {decode.CONTEXT},"
  f" {decode.STEPS} tokens"
)
PREFILL = f"decode, batch {decode.BATCH}, a prompt of {decode.CONTEXT}"
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
  for group, peer, subject, aim in (
    (DECODE, decode.FLAX, decode.OURS, "1"),
    (DECODE, decode.FLAX_MASK, decode.RAGGED, "1"),
    (DECODE, decode.TORCH, decode.OURS, None),
    (PREFILL, decode.ONE_BY_ONE, decode.OURS, "10"),
    (PREFILL, decode.FLAX, decode.OURS, None),
  ):
    add(f"{group}: {peer}", over(group, peer, subject), aim)
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
