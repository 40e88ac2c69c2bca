"""The claims of the source paper, each beside what was measured."""

from collections.abc import Sequence
import dataclasses

from rich import table as tables

from oflax.retrofit.tabpfn_v3.thresholds import ALPHA
from oflax.studies import ablation
from oflax.studies import contract
from oflax.studies import minilm
from oflax.studies import retrofit_curve
from oflax.studies.retrofit_report import Retrofit

REPRODUCED = "reproduced"
CONTRADICTED = "not reproduced: measured otherwise"
NO_WEIGHTS = "not reproduced: weights not available"
ELSEWHERE = "measured on another host"

LIMITS = (
  "No universal claim of no loss: what closing costs depends on the host and on"
  " α, and grows with α.",
  "No closure of arbitrary hosts: every component must be closed; OAttention"
  " among ordinary components is not enough.",
  "No learnt attraction to the origin: nothing pulls a nearly null token to"
  " zero. Pre-norm stacks leave it about where it is up to a basin; post-norm"
  " ones fade it, weak real tokens included.",
  "No general meaning of missing values: a null row or column is one that does"
  " not exist, which need not be what a missing value in your data means.",
)


@dataclasses.dataclass(frozen=True)
class Claim:
  """What the paper says, and what was found.

  Attributes:
    paper: The claim.
    measured: What was seen here.
    verdict: Whether that reproduces it.
  """

  paper: str
  measured: str
  verdict: str


def claims(
  laws: contract.Contract,
  rows: Sequence[ablation.Row],
  retrofit: Retrofit,
  checkpoint: bool,
) -> list[Claim]:
  """All claims, from the results of the studies.

  Args:
    laws: Of the contract.
    rows: Of the ablation.
    retrofit: Of the retrofit.
    checkpoint: Whether its host is a TabPFN v3 of somebody's, not v3-mini.

  Returns:
    The claims in the paper's order.
  """
  return [
    _contract(laws),
    *_ablation(rows),
    *(
      _retrofit(retrofit, variant, checkpoint)
      for variant in retrofit_curve.VARIANTS
    ),
  ]


def table(found: Sequence[Claim]) -> tables.Table:
  """The claims as a table to print."""
  result = tables.Table("the paper", "measured", "verdict", title="Claims")
  for claim in found:
    result.add_row(claim.paper, claim.measured, claim.verdict)
  return result


def minilm_claims(rows: Sequence[minilm.Row]) -> str:
  """What MiniLM adds, which the paper does not have, in a sentence."""
  by = {(row.seed, row.subject): row for row in rows}
  seeds = sorted({row.seed for row in rows})
  host, full = (
    [by[seed, name].recall for seed in seeds]
    for name in ("host with mask", "full, compact")
  )
  off = max(abs(a - b) for a, b in zip(host, full, strict=True))
  change = max(r.change for r in rows if r.subject == "full, compact")
  return (
    f"MiniLM, a host the paper does not have: recall@1 of full is within"
    f" {off:.3f} of the masked host for every seed, and padding from 64 to 128"
    f" changes no embedding by more than {change:.1g}."
  )


def _contract(laws: contract.Contract) -> Claim:
  trials = sum(row.trials for row in laws.report.rows)
  violations = sum(row.violations for row in laws.report.rows)
  return Claim(
    "OAttention and the O-components obey the laws of the zero element: null"
    " receivers and sources, empty support, O-Closure, under composition.",
    f"{trials:,} trials in {laws.programs} programs, {violations} violations.",
    CONTRADICTED if violations else REPRODUCED,
  )


def _ablation(rows: Sequence[ablation.Row]) -> list[Claim]:
  ends = [row for row in rows if row.block == ablation.NUM_BLOCKS]
  exact = [row for row in ends if not row.start]
  smallest = min(row.start for row in ends if row.start)
  nearly = [row for row in ends if row.start == smallest]

  def awake(variant: str, rows: Sequence[ablation.Row], growth: float) -> str:
    hosts = [
      row.host
      for row in rows
      if row.variant == variant and row.norm > (1 + growth) * row.start
    ]
    return ", ".join(hosts) or "no host"

  alone = awake("attention", exact, 0)
  alone_nearly = awake("attention", nearly, ablation.GROWTH)
  full = awake("full", exact, 0)
  full_nearly = awake("full", nearly, ablation.GROWTH)
  none = "no host"
  return [
    Claim(
      "OAttention alone does not keep a null state through the ordinary"
      " components of a host.",
      f"Rows of exactly 0 wake up in: {alone}; rows of norm {smallest:g} in:"
      f" {alone_nearly}. A host whose norms and networks have no bias keeps an"
      " exact zero, and loses one that is nearly so.",
      CONTRADICTED if alone_nearly == none else REPRODUCED,
    ),
    Claim(
      "The OTransformer path keeps it.",
      f"Rows of exactly 0 wake up in: {full}; rows of norm {smallest:g} in:"
      f" {full_nearly}.",
      REPRODUCED if full == full_nearly == none else CONTRADICTED,
    ),
  ]


def _retrofit(retrofit: Retrofit, variant: str, checkpoint: bool) -> Claim:
  paper = retrofit_curve.PAPER[variant]
  [point] = [
    point
    for point in retrofit.points
    if (point.variant, point.alpha) == (variant, ALPHA)
  ]
  name = retrofit_curve.NAMES[variant]
  verdict = f"{NO_WEIGHTS}; {ELSEWHERE}"
  if checkpoint:
    within = point.low <= paper <= point.high
    verdict = REPRODUCED if within else CONTRADICTED
  return Claim(
    f"Calibrated {name}, put into a pretrained TabPFN v3 without training,"
    f" changes the mean RMSE of 18 matched cases by {paper:+.3%}.",
    f"{retrofit.host}, α = {point.alpha:g}: {point.change:+.3%}, 95 %"
    f" {point.low:+.3%} to {point.high:+.3%}.",
    verdict,
  )
