"""The pictures are drawn from numbers, can be read on any page, and are the
same when drawn again."""

import dataclasses
import json
import pathlib

import pytest

from oflax.studies import ablation
from oflax.studies import pictures
from oflax.studies.retrofit_curve import Case
from oflax.studies.retrofit_curve import Point

DOCS = pathlib.Path(__file__).parents[2] / "docs"
BENCHMARKS = DOCS / "benchmarks.json"


@pytest.fixture
def numbers(tmp_path):
  rows = [
    ablation.Row("host", variant, start, block, start, start, start, 0.3)
    for variant in ("host", "attention", "full")
    for start in (0.0, 1e-3, 1.0)
    for block in (1, 2)
  ]
  variants = ("attention", "full")
  cases = [Case("wine", 0, v, a, 0.5, 0.51) for v in variants for a in (1, 2)]
  points = [
    Point(v, a, 0.01, 0.0, 0.02, 0.1, 0.3) for v in variants for a in (1, 2)
  ]
  ablated, curve = tmp_path / "ablation.json", tmp_path / "retrofit.json"
  ablated.write_text(json.dumps([dataclasses.asdict(row) for row in rows]))
  retrofit = {
    "cases": [dataclasses.asdict(case) for case in cases],
    "points": [dataclasses.asdict(point) for point in points],
  }
  curve.write_text(json.dumps(retrofit))
  return pictures.Sources(BENCHMARKS, ablated, curve)


@pytest.mark.parametrize("name", ["speed", "ablation", "retrofit"])
def test_a_picture_has_no_background_and_is_drawn_again_alike(
  name, numbers, tmp_path
):
  first, second = tmp_path / "first", tmp_path / "second"
  for folder in (first, second):
    pictures.run(folder, numbers, only=name)
  [file] = first.iterdir()
  drawn = file.read_text()
  assert "#ffffff" not in drawn.split("axes_1")[0]
  assert drawn == (second / file.name).read_text()


def test_the_idea_holds_what_it_says(tmp_path):
  pictures.idea(tmp_path / "idea.svg")
  drawn = (tmp_path / "idea.svg").read_text()
  assert "null tokens emit 0" in drawn


def test_every_picture_of_the_pages_is_drawn_by_the_command():
  drawn = set(pictures.pictures(pictures.Sources(BENCHMARKS)))
  assert {path.name for path in (DOCS / "pictures").iterdir()} == drawn


def test_what_is_asked_for_has_to_be_there(tmp_path):
  with pytest.raises(ValueError, match=r"only must be part .* got 'none'"):
    pictures.run(tmp_path, pictures.Sources(BENCHMARKS), only="none")
  with pytest.raises(ValueError, match=r"benchmarks must be a file .*nowhere"):
    pictures.run(tmp_path, pictures.Sources(tmp_path / "nowhere"))
