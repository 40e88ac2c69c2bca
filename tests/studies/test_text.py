"""The text study: its data, that it learns, and goes on with prompts."""

import json

import numpy as np
import pytest

from oflax.studies import text
from oflax.studies import text_compare
from oflax.studies import text_data
from oflax.studies import text_report
from oflax.training.metrics import MetricsLog
from oflax.training.metrics import read_metrics

STEPS = 40


@pytest.fixture(autouse=True, scope="module")
def small():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(text, "BATCH", 4)
    patch.setattr(text, "LENGTH", 24)
    patch.setattr(text, "JUDGED", 8)
    patch.setattr(text, "LOG_EVERY", 20)
    patch.setattr(
      text,
      "MODEL",
      {**text.MODEL, "features": 16, "num_layers": 1, "mlp_dim": 32},
    )
    yield


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp("text")
  settings = {"variant": "full", "seed": 0, "steps": STEPS}
  (folder / "settings.json").write_text(json.dumps(settings))
  return folder, text_report.run(folder, **settings)


def test_files_are_learnt_from_or_judged_on():
  learnt, judged = text_data.corpus()
  assert len(learnt) > 5 * len(judged) > 100_000
  window = bytes(judged[:400])
  assert window not in learnt.tobytes()


def test_text_and_ids_are_one():
  for words in ("def f(): return 'ä'", ""):
    assert text_data.decode(text_data.encode(words)) == words
  assert text_data.encode(b"\x00\xff").tolist() == [1, 256]


def test_batches_depend_on_their_index_alone():
  learnt, _ = text_data.corpus()
  batch_at = text_data.batches(learnt, 3, 10, seed=0)
  first = batch_at(0)
  assert first.shape == (3, 11)
  assert not np.array_equal(batch_at(1), first)
  np.testing.assert_array_equal(batch_at(0), first)
  assert first.min() > 0


def test_it_learns(run):
  rows = read_metrics(run[0] / "metrics.csv")
  assert run[1] == rows[-1]["test_bits"] < rows[0]["test_bits"] < 8.1
  assert (run[0] / "curves.png").stat().st_size > 1000


def test_a_run_is_read_again_and_goes_on_with_prompts(run):
  state = text_report.restored(run[0])
  assert int(state.step) == STEPS
  made = text_report.generated(state, ["def ", "x"], 5, temperature=0)
  assert [part[:4] for part in made] == ["def ", made[1][:4]]
  alone = text_report.generated(state, ["x"], 5, temperature=0)
  assert alone == made[1:]


def test_a_comparison_pairs_what_each_seed_reached(tmp_path, monkeypatch):
  bits = {("full", 3): 2.02, ("host", 3): 2.0, ("full", 5): 3, ("host", 5): 4}

  def train(*, variant, seed, steps, directory, resume):
    assert (steps, resume) == (7, True)
    log = MetricsLog(directory / "metrics.csv")
    log.write(1, {"test_bits": 9})
    log.write(steps, {"test_bits": bits[variant, seed]})

  monkeypatch.setattr(text, "train", train)
  for variant, seed in bits:
    (tmp_path / f"{variant}-{seed}").mkdir()
  table = text_compare.compare(tmp_path, steps=7, seeds=[3, 5])
  assert [line.split() for line in table.splitlines()] == [
    ["seed", "full", "host", "change"],
    ["3", "2.0200", "2.0000", "+1.00", "%"],
    ["5", "3.0000", "4.0000", "-25.00", "%"],
  ]


def test_a_folder_without_a_run_is_named(tmp_path):
  with pytest.raises(ValueError, match=r"directory .* holds no run"):
    text_report.restored(tmp_path)
  settings = {"variant": "host", "seed": 0, "steps": 3}
  (tmp_path / "settings.json").write_text(json.dumps(settings))
  with pytest.raises(ValueError, match=r"variant 'full', got 'host'"):
    text_report.restored(tmp_path)
