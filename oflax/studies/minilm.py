"""The MiniLM study: what padding does to a pretrained sentence encoder.

``python -m oflax.studies.minilm`` prints it: whether the body of a docstring is
found by its first line, and how far embeddings move when padding grows.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools

import numpy as np
from rich import console
from rich import progress
from rich import table as tables

from oflax.retrofit import minilm
from oflax.studies import minilm_pairs

SEEDS = (0, 1, 2)
PAIRS = 200
BATCH = 50
# Texts are cut off after as many tokens as the shorter padding has room for.
PADDINGS = (64, 128)


@dataclasses.dataclass(frozen=True)
class Row:
  """What one model did on the pairs of one seed.

  Attributes:
    seed: Of the choice of pairs.
    subject: The model.
    count: Pairs.
    hits: First lines nearest to their own body, with the shorter padding.
    padded_hits: The same with the longer padding.
    change: Largest absolute change of an entry of an embedding from the shorter
      to the longer padding.
  """

  seed: int
  subject: str
  count: int
  hits: int
  padded_hits: int
  change: float

  @property
  def recall(self) -> float:
    """Recall@1 with the shorter padding, in [0, 1]."""
    return self.hits / self.count

  @property
  def padded_recall(self) -> float:
    """Recall@1 with the longer padding, in [0, 1]."""
    return self.padded_hits / self.count


def subjects() -> dict[str, minilm.MiniLM]:
  """The models by name; the weights are read once."""
  full = minilm.load()
  models = {"full, compact": full}
  for name, variant in (
    ("full, dense", "full"),
    ("attention", "attention"),
    ("host with mask", "host"),
  ):
    encoder = full.encoder.clone(variant=variant)
    models[name] = dataclasses.replace(full, encoder=encoder, compact=False)
  return dict(reversed(models.items()))


def rows(
  models: dict[str, minilm.MiniLM],
  pairs: list[minilm_pairs.Pair],
  *,
  seeds: Sequence[int] = SEEDS,
  count: int = PAIRS,
  on_batch: Callable[[str], None] = lambda subject: None,
) -> list[Row]:
  """Retrieval, and the change with padding, of every model and seed.

  Args:
    models: Name to model.
    pairs: To choose from, as `minilm_pairs.collect` finds them; none of those
      that the thresholds were measured on.
    seeds: Each chooses `count` pairs.
    count: Pairs, hence candidates of a retrieval.
    on_batch: Called with the name of the model before each of its batches, of
      which there are `num_batches`.

  Returns:
    A row for each seed and model.

  Raises:
    ValueError: There are too few pairs.

  Reference: docs/concepts.md; Reimers and Gurevych 2019.
  """
  result = []
  for seed in seeds:
    chosen = minilm_pairs.choose(pairs, count, seed)
    texts = [pair.first for pair in chosen] + [pair.body for pair in chosen]
    for name, model in models.items():
      count_batch = functools.partial(on_batch, name)
      short, long = (
        _embedded(model, texts, length, count_batch) for length in PADDINGS
      )
      result.append(
        Row(
          seed=seed,
          subject=name,
          count=count,
          hits=hits(short[:count], short[count:]),
          padded_hits=hits(long[:count], long[count:]),
          change=float(np.max(np.abs(short - long))),
        )
      )
  return result


def num_batches(
  models: int, seeds: int = len(SEEDS), count: int = PAIRS
) -> int:
  """How often `rows` calls `on_batch`."""
  return models * seeds * len(PADDINGS) * -(-2 * count // BATCH)


def hits(queries: np.ndarray, candidates: np.ndarray) -> int:
  """How many queries are nearest to the candidate of their index.

  Args:
    queries: Unit vectors, ``[n, d]``.
    candidates: Unit vectors, ``[n, d]``.

  Returns:
    At most n; of equally near candidates the first counts.

  Example:
    >>> hits(np.eye(4), np.eye(4)[[0, 1, 3, 2]])
    2

  Reference: None.
  """
  nearest = np.argmax(queries @ candidates.T, axis=1)
  return int(np.sum(nearest == np.arange(len(queries))))


def table(found: Sequence[Row]) -> tables.Table:
  """Rows as a table to print."""
  short, long = PADDINGS
  result = tables.Table(
    "seed",
    "MiniLM",
    f"recall@1, padded to {short}",
    f"padded to {long}",
    "largest change of an embedding",
    title="A docstring's body by its first line",
  )
  for row in found:
    result.add_row(
      str(row.seed),
      row.subject,
      f"{row.recall:.3f}",
      f"{row.padded_recall:.3f}",
      f"{row.change:.1e}" if row.change else "0",
    )
  return result


def run() -> list[Row]:
  """The whole study, with a progress bar; prints its table."""
  with progress.Progress() as bar:
    task = bar.add_task("reading docstrings")
    pairs, _ = minilm_pairs.collect(
      lambda done, total: bar.update(task, completed=done, total=total)
    )
    models = subjects()
    task = bar.add_task("embedding", total=num_batches(len(models)))
    found = rows(
      models,
      pairs,
      on_batch=lambda name: bar.update(task, advance=1, description=name),
    )
  console.Console().print(table(found))
  return found


def _embedded(
  model: minilm.MiniLM,
  texts: list[str],
  length: int,
  on_batch: Callable[[], None],
) -> np.ndarray:
  ids = model.tokenize(texts, length=length, max_tokens=min(PADDINGS))
  vectors = []
  for start in range(0, len(ids), BATCH):
    on_batch()
    vectors.append(np.asarray(model.embed(ids[start : start + BATCH])))
  return np.concatenate(vectors)


if __name__ == "__main__":
  run()
