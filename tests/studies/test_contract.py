"""The contract counts trials, finds violations, and can be replayed."""

import dataclasses

import pytest

from oflax.linen import placement
from oflax.studies import contract
from oflax.studies import contract_subjects
from oflax.studies import reproduce


def test_the_grid_is_small_and_covers_dtypes_and_transforms():
  grid = contract.programs()
  assert len(grid) <= 60
  assert len({program.name for program in grid}) == len(grid)
  assert {program.dtype for program in grid} == {
    "float32",
    "bfloat16",
    "float16",
    "float64",
  }
  assert {program.transform for program in grid} == {
    "jit",
    "vmap",
    "scan",
    "remat",
  }
  assert set(contract.EAGER) <= {program.name for program in grid}


@pytest.mark.parametrize(
  "only",
  [
    "o_norm, bfloat16",
    "cross, blocked, float32",
    "causal, folded, bfloat16",
    "compacted, bfloat16",
  ],
)
def test_the_laws_hold(only):
  result = contract.run(80, only=only)
  assert result.report.passed, str(result)
  assert sum(row.trials for row in result.report.rows) >= 80


def test_a_violation_is_counted_and_named(monkeypatch):
  def ungated(params, h):
    return h + 1

  (subject, *_) = contract_subjects.functions()
  subject = dataclasses.replace(subject, apply=ungated)
  program = contract.Program(subject)
  monkeypatch.setattr(contract, "programs", lambda mesh: [program])
  result = contract.run(20)
  assert not result.report.passed
  assert any(
    "o_gate, float32, jit: null tokens emit" in f for f in result.failures
  )


def test_wrong_arguments_are_named():
  with pytest.raises(ValueError, match="trials must be positive, got 0"):
    contract.run(0)
  with pytest.raises(ValueError, match=r"only must be .*'nothing'"):
    contract.run(1, only="nothing")


def test_programs_are_chosen_by_any_of_several_texts():
  seen = []
  contract.run(
    2, only=("o_gate, float32, jit", "o_pool, float32"), on_program=seen.append
  )
  assert seen == ["o_gate, float32, jit", "o_pool, float32, jit"]


def test_every_program_of_the_report_is_one():
  known = [program.name for program in contract.programs()]
  assert set(reproduce.PROGRAMS) <= set(known)


def test_what_is_cut_over_devices_keeps_the_laws_and_is_seen_to_break_them(
  monkeypatch,
):
  def run():
    return contract.run(20, only="o_attention, sharded, float32", devices=4)

  assert run().report.passed
  attend = placement.attend

  def ungated(*operands, **options):
    outputs, support = attend(*operands, **options)
    return outputs + 1, support

  monkeypatch.setattr(placement, "attend", ungated)
  assert not run().report.passed
  with pytest.raises(ValueError, match=r"devices must be 2 to 8, .* got 9"):
    contract.run(1, devices=9)
