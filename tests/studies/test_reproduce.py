"""The report: each claim has the verdict that its numbers deserve."""

import dataclasses

from rich import table as tables

from oflax.laws.report import Report
from oflax.laws.report import Row as Law
from oflax.studies import claims
from oflax.studies import figures
from oflax.studies.ablation import Row
from oflax.studies.contract import Contract
from oflax.studies.document import Document
from oflax.studies.retrofit_curve import Point
from oflax.studies.retrofit_report import Retrofit

LAWS = Contract(Report((Law("law", 9, 0, 0.0, 0.0),)), (), 0, 3)
POINTS = [
  Point("attention", 1e-3, 0.0009, 0.0001, 0.002, 0.0, 0.3),
  Point("full", 1e-3, 0.0100, 0.0080, 0.012, 0.02, 0.3),
]
RETROFIT = Retrofit("v3-mini", [], POINTS, [])


def rows(*awake):
  """Rows of one host after two blocks; those awake have a norm of 9."""
  return [
    Row("h", v, s, 2, 9.0 if (v, s) in awake else s, 0.0, 0.0, 0.1)
    for v in ("host", "attention", "full")
    for s in (0.0, 1e-4)
  ]


PAPER = rows(("host", 0.0), ("host", 1e-4), ("attention", 1e-4))


def verdicts(laws=LAWS, ablation=PAPER, checkpoint=False):
  found = claims.claims(laws, ablation, RETROFIT, checkpoint)
  return [claim.verdict for claim in found]


def test_what_holds_is_reproduced_and_what_needs_weights_is_not():
  missing = "not reproduced: weights not available; measured on another host"
  assert verdicts() == ["reproduced"] * 3 + [missing] * 2


def test_with_weights_the_paper_must_be_in_the_interval():
  assert verdicts(checkpoint=True)[3:] == ["reproduced", claims.CONTRADICTED]


def test_a_violated_law_is_told():
  law = Law("law", 9, 1, 1.0, 0.0)
  laws = dataclasses.replace(LAWS, report=Report((law,)))
  assert verdicts(laws)[0] == claims.CONTRADICTED


def test_an_ablation_against_the_paper_is_told():
  assert verdicts(ablation=rows())[1] == claims.CONTRADICTED
  broken = [*PAPER, *rows(("full", 1e-4))]
  assert verdicts(ablation=broken)[2] == claims.CONTRADICTED


def test_a_document_is_whole_in_both_forms(tmp_path):
  table = tables.Table("a|b", "c", title="T")
  table.add_row("1|2", "<3")
  figure, _ = figures.plt.subplots()
  figures.save(figure, tmp_path / "f.png")
  document = Document("Title & more")
  document.heading("Part")
  document.bullets(["one", "two"])
  document.table(table)
  document.figure(tmp_path / "f.png", "A figure")
  markdown = document.markdown()
  assert "| a\\|b | c |\n| --- | --- |\n| 1\\|2 | <3 |" in markdown
  assert "- one\n- two" in markdown
  assert "![A figure](f.png)" in markdown
  page = document.html()
  assert "<h1>Title &amp; more</h1>" in page
  assert "<td>1|2</td><td>&lt;3</td>" in page
  assert 'src="data:image/png;base64,iVBOR' in page
  assert "http" not in page.replace('charset="utf-8"', "")
