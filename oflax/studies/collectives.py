"""What the collectives of a compiled program send, read from its HLO."""

import math
import re

KINDS = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)


def sent(text: str) -> dict[str, int]:
  r"""Bytes of the results of collectives of a compiled program, by kind.

  Those in a loop count as often as it turns.

  Args:
    text: HLO, as of ``compiled.as_text()``.

  Returns:
    Kind to bytes, of one device.

  Example:
    >>> sent("ENTRY %main () -> f32[] {\n  %x = f32[2,3] all-reduce(%y)\n}")
    {'all-reduce': 24}

  Reference: openxla.org, operation semantics.
  """
  computations = dict(_computations(text))
  entry = next(name for name in computations if name.startswith("ENTRY "))

  def of(name: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for line in computations[name]:
      found = re.search(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\(", line)
      if found:
        total[found[2]] = total.get(found[2], 0) + _size(found[1])
      for called, times in _called(line):
        if called in computations:
          for kind, size in of(called).items():
            total[kind] = total.get(kind, 0) + times * size
    return total

  return of(entry)


def _computations(text: str) -> list[tuple[str, list[str]]]:
  """Names of computations, and their lines."""
  result: list[tuple[str, list[str]]] = []
  for line in text.splitlines():
    head = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
    if head:
      result.append(((head[1] or "") + head[2], []))
    elif result:
      result[-1][1].append(line)
  return result


def _called(line: str) -> list[tuple[str, int]]:
  """The computations that a line runs, and how often."""
  turns = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
  times = int(turns[1]) if turns and " while(" in line else 1
  names = re.findall(r"(?:body|to_apply|calls)=%?([\w.\-]+)", line)
  branches = re.search(r"branch_computations=\{([^}]*)\}", line)
  if branches:
    # One of them runs: they send alike or not at all.
    names += re.findall(r"%?([\w.\-]+)", branches[1])[:1]
  return [(name, times) for name in names]


def _size(shapes: str) -> int:
  """Bytes of an HLO type, tuples included."""
  total = 0
  for bits, dims in re.findall(r"[a-z]+(\d+)\[([\d,]*)\]", shapes):
    count = math.prod(int(size) for size in dims.split(",") if size)
    total += count * int(bits) // 8
  return total
