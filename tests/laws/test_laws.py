"""The assertions hold for what is closed, and their reports can be read."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax
from oflax import laws
from oflax import linen

H = jax.random.normal(jax.random.key(0), (5, 8))
MODULE = linen.OAttention(2)
VARIABLES = MODULE.init(jax.random.key(1), H, H)


@jax.jit
def attend(receivers, sources):
  return MODULE.apply(VARIABLES, receivers, sources)


@pytest.mark.parametrize("positions", [[], [0], [2, 3], [5, 6], [0, 3, 6]])
def test_nulls_are_inserted_where_asked(positions):
  out = laws.insert_nulls(H, positions)
  assert out.shape == (5 + len(positions), 8)
  null = np.all(np.asarray(out) == 0, axis=-1)
  assert np.flatnonzero(null).tolist() == positions
  np.testing.assert_array_equal(out[~null], H)


@pytest.mark.parametrize("positions", [[1, 1], [7], [-1]])
def test_impossible_positions_are_named(positions):
  with pytest.raises(ValueError, match=r"positions .*got"):
    laws.insert_nulls(H, positions)


def test_attention_obeys_the_four_laws():
  sources = H[:3] + 1
  laws.assert_null_receiver(attend, H, sources)
  laws.assert_null_source_insertion(attend, H, sources, [0, 2, 4])
  laws.assert_self_insertion(attend, H, [0, 2, 6])
  laws.assert_empty_support(attend, H, 3)
  laws.assert_empty_support(attend, H, 0)
  laws.assert_permutation_equivariance(
    lambda h: attend(h, h), H, [4, 2, 0, 1, 3]
  )


def test_bitwise_closure_is_stricter_than_rounding():
  def nearly(h):
    return h * (1 + 1e-7 * h.shape[-2])

  laws.assert_o_closure(nearly, H, [0])
  with pytest.raises(AssertionError, match="over the allowed 0"):
    laws.assert_o_closure(nearly, H, [0], bitwise=True)


def test_nulls_preserved_is_checked_inside_jit():
  @chex.chexify
  @jax.jit
  def checked(before, after):
    laws.assert_nulls_preserved(before, after)
    return after

  before = H.at[1].set(0)
  checked(before, before)
  chex.block_until_chexify_assertions_complete()
  checked(before, H)
  with pytest.raises(AssertionError, match="nulls preserved"):
    chex.block_until_chexify_assertions_complete()
  with pytest.raises(AssertionError, match="nulls preserved"):
    laws.assert_nulls_preserved(before, H)


def test_the_report_prints_as_a_table_and_as_html():
  report = laws.check_laws(
    lambda h: oflax.o_gate(h, oflax.presence(h)), H, jax.random.key(0), trials=5
  )
  assert report.passed
  lines = str(report).splitlines()
  assert lines[0].split() == [
    "law",
    "trials",
    "violations",
    "largest",
    "deviation",
    "allowed",
  ]
  assert len(lines) == 7
  html = report._repr_html_()
  assert html.count("<tr>") == 6
  assert "null tokens emit exactly 0" in html


@pytest.mark.parametrize("shape", [(0, 8), (8,)])
def test_no_tokens_are_refused(shape):
  with pytest.raises(ValueError, match="tokens must be"):
    laws.check_laws(lambda h: h, jnp.zeros(shape), jax.random.key(0))


def test_no_trials_are_refused():
  with pytest.raises(ValueError, match="trials must be positive, got 0"):
    laws.check_laws(lambda h: h, H, jax.random.key(0), trials=0)


def test_a_permutation_must_be_one():
  with pytest.raises(ValueError, match="permutation must be one of 5 tokens"):
    laws.assert_permutation_equivariance(lambda h: h, H, [0, 0, 1, 2, 3])
