"""What attention and a model cost, beside what people use today.

Ratios are of medians within one run: subjects take turns, in a new order every
round, so that what slows the machine slows them alike.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import random
import time
from typing import Any

import jax
import numpy as np

Call = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Subject:
  """One thing to measure.

  Attributes:
    name: As printed.
    fn: A function of the inputs; with `jitted`, compiled by JAX.
    inputs: What it is called with.
    jitted: Whether JAX compiles it; if not, it is called as it is.
  """

  name: str
  fn: Callable[..., Any]
  inputs: tuple[Any, ...]
  jitted: bool = True


@dataclasses.dataclass(frozen=True)
class Row:
  """What a subject cost.

  Attributes:
    group: What was measured, such as "forward, N = 512".
    subject: Its name.
    median: Milliseconds a call; NaN if it was not run.
    low: Lower quartile, milliseconds.
    high: Upper quartile, milliseconds.
    runs: How many calls.
    temporaries: Bytes the compiled program needs beside inputs and outputs; NaN
      if nobody can tell.
    compiling: Seconds to trace and compile; NaN if nothing is compiled.
    note: Why it was not run, or "".
  """

  group: str
  subject: str
  median: float
  low: float
  high: float
  runs: int
  temporaries: float
  compiling: float
  note: str = ""


def measure(
  group: str,
  subjects: list[Subject],
  *,
  seconds: float = 20.0,
  rounds: tuple[int, int] = (5, 40),
  memory: float = 6e9,
  on_subject: Callable[[str], None] = lambda name: None,
) -> list[Row]:
  """Runs the subjects of a group in turns.

  Args:
    group: Its name.
    subjects: To compare.
    seconds: After which no new round starts.
    rounds: At least and at most how many.
    memory: Bytes of temporaries above which a program is not run.
    on_subject: Called with the name of each subject before it is compiled.

  Returns:
    A row for each subject.

  Example:
    >>> import jax.numpy as jnp
    >>> subject = Subject("sine", jnp.sin, (jnp.ones(3),))
    >>> (row,) = measure("forward", [subject], rounds=(2, 2))
    >>> row.runs, row.median > 0
    (2, True)

  Reference: None.
  """
  calls: dict[str, Call] = {}
  rows: dict[str, Row] = {}
  for subject in subjects:
    on_subject(subject.name)
    nan = float("nan")
    blank = Row(group, subject.name, nan, nan, nan, 0, nan, nan)
    try:
      call, costs = _prepared(subject, memory)
      jax.block_until_ready(call())
      calls[subject.name] = call
    except _NotRunError as error:
      costs = {"note": str(error), **error.costs}
    except Exception as error:  # A peer may lack what it is asked for.
      first = str(error).partition("\n")[0]
      costs = {"note": f"{type(error).__name__}: {first}"[:80]}
    rows[subject.name] = dataclasses.replace(blank, **costs)

  times: dict[str, list[float]] = {name: [] for name in calls}
  start, done = time.perf_counter(), 0
  while calls and done < rounds[1]:
    if done >= rounds[0] and time.perf_counter() - start > seconds:
      break
    for name in random.sample(list(calls), len(calls)):
      begin = time.perf_counter()
      jax.block_until_ready(calls[name]())
      times[name].append(1e3 * (time.perf_counter() - begin))
    done += 1
  for name, seen in times.items():
    low, median, high = np.quantile(seen, (0.25, 0.5, 0.75))
    rows[name] = dataclasses.replace(
      rows[name],
      median=float(median),
      low=float(low),
      high=float(high),
      runs=len(seen),
    )
  return list(rows.values())


class _NotRunError(Exception):
  def __init__(self, note: str, costs: Mapping[str, float]):
    super().__init__(note)
    self.costs = costs


def _prepared(subject: Subject, memory: float) -> tuple[Call, dict[str, Any]]:
  """The call, compiled if it can be, and what that cost."""
  if not subject.jitted:
    return lambda: subject.fn(*subject.inputs), {}
  begin = time.perf_counter()
  program = jax.jit(subject.fn).lower(*subject.inputs).compile()
  costs: dict[str, Any] = {"compiling": time.perf_counter() - begin}
  analysis = program.memory_analysis()
  if analysis is not None:
    costs["temporaries"] = float(analysis.temp_size_in_bytes)
    if costs["temporaries"] > memory:
      raise _NotRunError(
        f"not run: {costs['temporaries'] / 1e9:.1f} GB of temporaries", costs
      )
  return lambda: program(*subject.inputs), costs
