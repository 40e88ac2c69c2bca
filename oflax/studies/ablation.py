"""The two-block ablation: does a null row stay null inside of a host?

The source paper's second study, in two forms: null rows that are exactly zero,
and rows that are nearly so.
"""

from collections.abc import Sequence
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from rich import table as tables

from oflax.linen.block import VARIANTS
from oflax.studies.stacks import Stack

NUM_BLOCKS = 2
NUM_NULLS = 20
# Norms of the null rows: exactly zero, and from nearly zero to a norm of 1.
STARTS = (0.0, *(float(x) for x in np.geomspace(1e-4, 1, 25)))
SHOWN = (0.0, 1e-4, 1e-2, 1e-1, 1.0)
# By how much a row that stays nearly null may grow.
GROWTH = 0.1


@dataclasses.dataclass(frozen=True)
class Row:
  """What became of the null rows of one start norm after one block.

  Attributes:
    host: Its name.
    variant: "host", "attention" or "full".
    start: The norm with which null rows entered the first block.
    block: Blocks done, from 1.
    norm: The median norm of the null rows.
    presence: Their median presence to the next block.
    change: The largest change of a present row against the same stack without
      null rows, relative to the norm of that row.
    threshold: √τ of the first block: the norm of presence ½ there.
  """

  host: str
  variant: str
  start: float
  block: int
  norm: float
  presence: float
  change: float
  threshold: float


def ablate(
  stack: Stack,
  *,
  starts: Sequence[float] = STARTS,
  num_nulls: int = NUM_NULLS,
  seed: int = 0,
) -> list[Row]:
  """Puts null rows into a host and looks at them after each of two blocks.

  Args:
    stack: Of at least three blocks: the third tells how present what the second
      left is.
    starts: Norms of the rows; their directions are random.
    num_nulls: How many rows.
    seed: Of the directions.

  Returns:
    A row for each variant, start norm and block.
  """
  nulls = directions(stack, num_nulls, seed)
  scaled = jnp.asarray(starts)[:, None, None] * nulls[None]
  thresholds = stack.thresholds()
  rows = []
  for variant in VARIANTS:
    seen = stack.run(variant, scaled, NUM_BLOCKS)
    alone = stack.run(variant, nulls[:0], NUM_BLOCKS)
    for block in range(NUM_BLOCKS):
      (null, present), (_, expected) = seen[block], alone[block]
      norm = jnp.median(jnp.linalg.norm(null, axis=-1), axis=-1)
      tau = thresholds[block + 1]
      expected = expected[None]
      change = jnp.linalg.norm(present - expected, axis=-1)
      change = jnp.max(change / jnp.linalg.norm(expected, axis=-1), axis=-1)
      for i, start in enumerate(starts):
        rows.append(
          Row(
            host=stack.name,
            variant=variant,
            start=start,
            block=block + 1,
            norm=float(norm[i]),
            presence=float(norm[i] ** 2 / (tau + norm[i] ** 2)),
            change=float(change[i]),
            threshold=thresholds[0] ** 0.5,
          )
        )
  return rows


def directions(stack: Stack, count: int, seed: int = 0) -> jax.Array:
  """Random rows of norm 1 for a stack, ``[count, d]``."""
  shape = (count, stack.present.shape[-1])
  rows = jax.random.normal(jax.random.key(seed), shape)
  return rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)


def basin(starts: Sequence[float], norms: Sequence[float]) -> float:
  """The largest norm up to which null rows stay nearly null.

  That is, grow by less than 10 %, at it and at every smaller norm tried.

  Args:
    starts: Norms with which rows entered a stack, increasing, not 0.
    norms: Those with which they left it.

  Returns:
    The norm; 0 if the smallest one grows already.

  Example:
    >>> basin([0.1, 0.2, 0.3], [0.1, 0.21, 0.5])
    0.2

  Reference: None.
  """
  largest = 0.0
  for start, norm in zip(starts, norms, strict=True):
    if norm >= (1 + GROWTH) * start:
      break
    largest = float(start)
  return largest


def verdicts(rows: Sequence[Row]) -> tables.Table:
  """Which host breaks in which form, as a table to print."""
  result = tables.Table(
    "host",
    "variant",
    "rows of exactly 0",
    "present rows change",
    "rows of norm 1e-4",
    "stay nearly null up to",
    title="Null rows after two blocks",
  )
  for host, variant in dict.fromkeys((r.host, r.variant) for r in rows):
    mine = [r for r in rows if (r.host, r.variant) == (host, variant)]
    ends = {r.start: r for r in mine if r.block == NUM_BLOCKS}
    zero = ends.pop(0.0)
    nearly = ends[min(ends)]
    starts = sorted(ends)
    limit = basin(starts, [ends[start].norm for start in starts])
    relative = limit / zero.threshold
    result.add_row(
      host,
      variant,
      "stay 0" if zero.norm == 0 else f"wake up: norm {zero.norm:.3g}",
      f"{zero.change:.1e}",
      _fate(nearly),
      f"{limit:.1e} = {relative:.3g} √τ" if limit else "—",
    )
  return result


def _fate(row: Row) -> str:
  if row.norm >= (1 + GROWTH) * row.start:
    return f"wake up: norm {row.norm:.3g}"
  if row.norm <= (1 - GROWTH) * row.start:
    return f"fade: norm {row.norm:.2g}"
  return "stay"


def details(rows: Sequence[Row]) -> tables.Table:
  """Norms, presences and changes after each block, as a table to print."""
  result = tables.Table(
    "host",
    "variant",
    "start norm",
    "norm after 1",
    "after 2",
    "presence after 1",
    "after 2",
    "present rows change",
    title="Null rows, block by block",
  )
  ends = {(r.host, r.variant, r.start, r.block): r for r in rows}
  for (host, variant, start, block), first in ends.items():
    if block != 1 or not any(np.isclose(start, x, atol=0) for x in SHOWN):
      continue
    second = ends[host, variant, start, NUM_BLOCKS]
    result.add_row(
      host,
      variant,
      f"{start:.0e}" if start else "0",
      f"{first.norm:.3g}",
      f"{second.norm:.3g}",
      f"{first.presence:.2g}",
      f"{second.presence:.2g}",
      f"{second.change:.1e}",
    )
  return result
