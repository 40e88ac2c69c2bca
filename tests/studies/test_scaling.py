"""The bytes that a program sends, counted, and what formulas say of them."""

import pytest

from oflax.studies import collectives
from oflax.studies import scaling

HLO = """\
%body (p: f32[4]) -> f32[4] {
  %a = f32[4]{0} collective-permute(%p), source_target_pairs={{0,1}}
}

%cond (p: f32[4]) -> pred[] {
  %b = pred[] compare(%p, %p)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %c = (f32[2,2]{1,0}, bf16[3]{0}) all-reduce(%x, %y), to_apply=%add
  %d = f32[4]{0} while(%x), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_collectives_in_a_loop_count_as_often_as_it_turns():
  assert collectives.sent(HLO) == {
    "all-reduce": 4 * 4 + 3 * 2,
    "collective-permute": 5 * 4 * 4,
  }


@pytest.mark.parametrize("axis", ["data", "sequence"])
def test_formulas_are_those_of_compiled_programs(axis):
  small = scaling.Setting(2, 32, 64, 8, 8, 64)
  (way,) = (p for p in scaling.PARALLELISMS if p.axis == axis)
  measured = collectives.sent(scaling.train_program(small, axis, 8).as_text())
  formula = scaling.BYTES * way.numbers(small, 8)
  assert 1 <= sum(measured.values()) / formula < 1.05


def test_too_few_devices_are_refused():
  with pytest.raises(ValueError, match="devices must be at least 64, got 8"):
    scaling.page()
