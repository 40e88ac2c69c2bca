"""Null rows in a host: who wakes them, who keeps them, and what is told."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.retrofit.tabpfn_v3 import TabPFNV3
from oflax.studies import ablation
from oflax.studies import ablation_report
from oflax.studies import stacks
from tests.retrofit import host

TINY = dataclasses.replace(host.TINY, nlayers=3)
STARTS = (0.0, 1e-4, 1e-2, 1.0)


@pytest.fixture(scope="module")
def layer_norm():
  stack = stacks.layer_norm_stack(num_tokens=12)
  return ablation.ablate(stack, starts=STARTS, num_nulls=3)


@pytest.fixture(scope="module")
def tiny():
  module = TabPFNV3(TINY, "host", tau=1e-2)
  init = jax.jit(module.init)
  return module, init(jax.random.key(0), jnp.ones((5, 3)), jnp.ones(4))


@pytest.fixture(scope="module")
def v3(tiny):
  stack = stacks.v3_stack(*tiny, name="tiny")
  return ablation.ablate(stack, starts=STARTS, num_nulls=3)


def ends(rows, variant, start):
  return [r for r in rows if (r.variant, r.start) == (variant, start)][-1]


def test_full_keeps_exact_zeros_and_changes_no_present_row(layer_norm, v3):
  for rows in (layer_norm, v3):
    zeros = [r for r in rows if r.variant == "full" and not r.start]
    assert [(row.norm, row.presence) for row in zeros] == [(0.0, 0.0)] * 2
    assert max(row.change for row in zeros) < 1e-5


def test_full_keeps_a_nearly_null_row(layer_norm):
  row = ends(layer_norm, "full", 1e-4)
  assert row.norm == pytest.approx(1e-4, rel=0.01)
  assert row.change < 1e-5


def test_the_host_wakes_exact_zeros(layer_norm, v3):
  for rows in (layer_norm, v3):
    row = ends(rows, "host", 0.0)
    assert row.norm > 0.1
    assert row.change > 0.01


def test_attention_alone_keeps_exact_zeros_only_without_biases(layer_norm, v3):
  assert ends(layer_norm, "attention", 0.0).norm > 0.1
  assert ends(v3, "attention", 0.0).norm == 0


def test_attention_alone_wakes_nearly_null_rows(layer_norm, v3):
  for rows in (layer_norm, v3):
    assert ends(rows, "attention", 1e-4).norm > 1e-2


def test_null_rows_may_stand_before_rows_that_only_look(tiny):
  stack = stacks.v3_stack(*tiny)
  nulls = ablation.directions(stack, 2)
  assert stack.num_sources < len(stack.present)
  tokens = stack.with_nulls(nulls)
  np.testing.assert_array_equal(
    tokens[stack.num_sources : stack.num_sources + 2], nulls
  )
  np.testing.assert_array_equal(
    np.delete(tokens, [stack.num_sources, stack.num_sources + 1], 0),
    stack.present,
  )


def test_a_block_alone_is_a_block_of_the_host(tiny):
  module, variables = tiny
  stack = stacks.v3_stack(module, variables)
  nothing = ablation.directions(stack, 2)[:0]
  stop = stack.run("host", nothing)[-1][1]
  table = stacks.synthetic.tables(1)
  columns = int(table.column_present[-1].sum())
  last = f"block_{module.config.nlayers - 1}"
  x = table.x[-1, :, :columns]
  want = stacks._output_of(module, last, variables, x, table.y[-1])
  np.testing.assert_allclose(stop, want, rtol=1e-4, atol=1e-4)


def test_a_basin_ends_where_rows_grow_by_a_tenth():
  starts = [1.0, 2.0, 3.0, 4.0]
  assert ablation.basin(starts, [1.0, 2.1, 3.5, 4.0]) == 2.0
  assert ablation.basin(starts, [1.2, 2.0, 3.0, 4.0]) == 0.0
  assert ablation.basin(starts, [0.0, 0.0, 0.0, 0.0]) == 4.0


def test_the_verdicts_say_which_host_breaks_in_which_form(layer_norm, v3):
  table = ablation.verdicts([*layer_norm, *v3])
  host_name, variant, exact, _, nearly, _ = (
    list(column.cells) for column in table.columns
  )
  said = {
    (h, v): (e.split(":")[0], n.split(":")[0])
    for h, v, e, n in zip(host_name, variant, exact, nearly, strict=True)
  }
  assert said["LayerNorm host", "attention"] == ("wake up", "wake up")
  assert said["LayerNorm host", "full"] == ("stay 0", "stay")
  assert said["tiny", "attention"] == ("stay 0", "wake up")


def test_it_writes_numbers_and_a_figure(layer_norm, tmp_path):
  ablation_report.write(tmp_path / "new", layer_norm)
  assert {file.name for file in (tmp_path / "new").iterdir()} == set(
    ablation_report.FILES
  )


def test_a_host_that_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
  def missing():
    raise ImportError("no such package")

  monkeypatch.setitem(ablation_report.HOSTS, "MiniLM", missing)
  rows = ablation_report.run(tmp_path, ["LayerNorm host", "MiniLM"])
  assert {row.host for row in rows} == {"LayerNorm host"}
  assert "MiniLM is left out: no such package" in capsys.readouterr().out
