"""The MiniLM study retrieves, measures the change, and holds pairs out."""

import dataclasses
import pathlib
import sysconfig

import numpy as np
import pytest
from rich import console

from oflax.retrofit import minilm
from oflax.studies import minilm as study
from oflax.studies import minilm_calibrate
from oflax.studies import minilm_pairs

TINY = pathlib.Path(__file__).parents[1] / "retrofit" / "tiny_bert"
BODY = "what comes after the first line, word by word, is long enough {}"
MODULES = ("abc.py", "ast.py", "cmd.py", "csv.py", "dis.py", "json/decoder.py")


@pytest.fixture
def library(tmp_path, monkeypatch):
  for i, name in enumerate((*MODULES, "json/test/abc.py", "other.py")):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    docstrings = [
      f"First line of {name} {k}.\n\n  {BODY.format(i + k)}"
      for k in range(0, 100, 10)
    ]
    path.write_text(
      "\n".join(f'def f():\n  """{text}"""' for text in docstrings)
    )
  (tmp_path / "bdb.py").write_text("this is no Python")
  monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))


def test_pairs_are_of_documented_modules_and_held_out_by_module(library):
  evaluated, held_out = minilm_pairs.collect()
  assert {pair.module for pair in (*evaluated, *held_out)} == set(MODULES)
  assert held_out
  assert not {p.module for p in evaluated} & {p.module for p in held_out}
  assert (evaluated, held_out) == minilm_pairs.collect()
  assert evaluated[0].first == "First line of abc.py 0."
  assert evaluated[0].body == BODY.format(0)
  texts = [t for p in (*evaluated, *held_out) for t in (p.first, p.body)]
  assert len(texts) == len(set(texts)) == 2 * 10 * len(MODULES)


def test_what_is_short_or_undocumented_is_left_out():
  source = f'''
class A:
  """Too short.

  {BODY}"""

  async def f():
    """A first line of some length

    and no more."""

  def g():
    """A first line that is right.
    {BODY}"""

def h():
  pass
'''
  pairs = list(minilm_pairs.pairs_in(source))
  assert pairs == [("A first line that is right.", BODY)]


def test_seeds_choose_pairs():
  pairs = [minilm_pairs.Pair("abc.py", str(i), str(i)) for i in range(50)]
  first, again, other = (minilm_pairs.choose(pairs, 20, s) for s in (0, 0, 1))
  assert first == again != other
  assert len(set(first)) == 20
  with pytest.raises(ValueError, match="count must be at most 50, got 51"):
    minilm_pairs.choose(pairs, 51, 0)


def test_it_prints_a_row_for_each_model_and_seed(library, monkeypatch):
  monkeypatch.setattr(minilm_calibrate, "PAIRS", 5)
  monkeypatch.setattr(minilm_calibrate, "TOKENS", 40)
  monkeypatch.setattr(study, "PADDINGS", (24, 40))
  pairs, held_out = minilm_pairs.collect()
  host = minilm.load(TINY, "host")
  tau = minilm_calibrate.measure(host, held_out)
  full = minilm.load(TINY, tau=tau)
  models = {
    "full": full,
    "attention": dataclasses.replace(
      full, encoder=full.encoder.clone(variant="attention")
    ),
    "host": host,
  }
  seen = []
  rows = study.rows(models, pairs, seeds=(0, 1), count=6, on_batch=seen.append)
  assert len(seen) == study.num_batches(3, seeds=2, count=6)
  assert [(row.seed, row.subject) for row in rows] == [
    (seed, name) for seed in (0, 1) for name in models
  ]
  by_name = {row.subject: row for row in rows if row.seed == 1}
  assert by_name["full"].change == 0
  assert by_name["full"].hits == by_name["full"].padded_hits
  assert by_name["host"].change < 1e-5
  assert by_name["attention"].change > 0.01
  printed = console.Console(width=100)
  with printed.capture() as capture:
    printed.print(study.table(rows))
  assert capture.get().count("attention") == 2


def test_hits_are_the_nearest_of_their_index():
  vectors = np.eye(5)
  assert study.hits(vectors, vectors) == 5
  assert study.hits(vectors, vectors[::-1]) == 1
