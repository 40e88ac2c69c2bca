"""Every law check fails on an operator broken on purpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oflax
from oflax import laws
from oflax._attention import reference
from oflax.laws import trials
from oflax.studies import contract
from oflax.studies import contract_subjects as subjects

H = jax.random.normal(jax.random.key(0), (6, 8))
KERNEL, BIAS = jnp.eye(8) * 0.5, jnp.linspace(0.5, 1.0, 8)


def report_of(fn):
  return {
    row.law: row.violations
    for row in laws.check_laws(fn, H, jax.random.key(1), trials=16).rows
  }


def softmax_attention(q, k, v, p, mask, *, log_presence=None):
  """Attention whose masked scores are filled with `mask`, a finite number."""
  s = jnp.einsum("tnh,snh->nts", q, k) / np.sqrt(q.shape[-1])
  if log_presence is not None:
    s = s + log_presence[None, None]
  s = jnp.where((p == 0)[None, None], mask, s)
  return jnp.einsum("nts,snv->tnv", jax.nn.softmax(s, axis=-1), v)


def test_an_ungated_bias_breaks_the_zeros():
  def broken(h):
    update = oflax.o_gate(h @ KERNEL, oflax.presence(h))
    return update + jnp.broadcast_to(BIAS, update.shape)

  violations = report_of(broken)
  assert violations["null tokens emit exactly 0"] == 16
  assert violations["nothing present gives exactly 0"] == 16
  with pytest.raises(AssertionError, match=r'"O-closure" violated at \(0, 7\)'):
    laws.assert_o_closure(broken, H, [0, 4])


def test_a_mean_over_nulls_breaks_insertion():
  def broken(h):
    return oflax.o_gate(
      h - jnp.mean(h, axis=-2, keepdims=True), oflax.presence(h)
    )

  violations = report_of(broken)
  assert violations["null tokens change no other"] == 16
  assert violations["gradients of others do not change"] > 0
  assert violations["null tokens emit exactly 0"] == 0
  with pytest.raises(AssertionError, match="O-closure"):
    laws.assert_o_closure(broken, H, [0, 4])


def test_a_finite_mask_fill_breaks_empty_support():
  def broken(receivers, sources):
    q, k = (x.reshape(-1, 2, 4) for x in (receivers, sources + BIAS[None]))
    p = oflax.presence(sources)
    return softmax_attention(q, k, k, p, -1e9).reshape(receivers.shape)

  with pytest.raises(AssertionError, match='"empty support" violated'):
    laws.assert_empty_support(broken, H, 3)


def test_an_ungated_receiver_breaks_law_1():
  def broken(receivers, sources):
    q, k = (x.reshape(-1, 2, 4) for x in (receivers, sources))
    p = oflax.presence(sources)
    return oflax.o_attention(q, k, k, jnp.ones(6), p).reshape(receivers.shape)

  with pytest.raises(AssertionError, match="with receiver 0 null"):
    laws.assert_null_receiver(broken, H, H)


def test_a_maximum_over_nulls_breaks_insertion():
  """A null's score of 0 beside present scores of −640 makes them underflow."""

  def broken(receivers, sources):
    p = oflax.presence(sources)
    s = receivers @ sources.T
    e = p[None] * jnp.exp(s - jnp.max(s, axis=-1, keepdims=True))
    total = jnp.sum(e, axis=-1, keepdims=True)
    return e @ sources / jnp.where(total == 0, 1, total)

  receivers, sources = jnp.full((2, 8), 8.0), jnp.full((3, 8), -10.0)
  with pytest.raises(AssertionError, match='"null-source insertion" violated'):
    laws.assert_null_source_insertion(broken, receivers, sources, [1])

  def ours(receivers, sources):
    q, k = receivers[:, None], sources[:, None]
    p = oflax.presence(sources)
    out = oflax.o_attention(q, k, k, jnp.ones(2), p, scale=1.0)
    return out.reshape(receivers.shape)

  laws.assert_null_source_insertion(ours, receivers, sources, [1])


def test_a_select_on_presence_loses_the_curvature():
  def selecting(q, k, v, receiver_presence, source_presence, **kwargs):
    absent = (source_presence == 0)[:, None, None]
    return oflax.o_attention(
      q,
      jnp.where(absent, 0, k),
      jnp.where(absent, 0, v),
      receiver_presence,
      source_presence,
      **kwargs,
    )

  law = "curvature at nulls is that of differences"
  assert violations_of(selecting, "float64")[law] == 4
  assert violations_of(oflax.o_attention, "float64")[law] == 0


def test_a_clamp_on_present_scores_breaks_standard_attention(monkeypatch):
  law = "all present is standard attention"
  assert violations_of(oflax.o_attention, "float32", scores=300.0)[law] == 0
  energies = reference.energies

  def clamped(q, k, p, visible, bias, *rest):
    s = jnp.einsum("...th,...hs->...ts", q, k)
    bias = jnp.clip(s, -20, 20) - s
    return energies(q, k, p, visible, bias, *rest)

  monkeypatch.setattr(reference, "energies", clamped)
  assert violations_of(oflax.o_attention, "float32", scores=300.0)[law] > 0


def violations_of(attention, dtype, **kwargs):
  subject = subjects.attention_subject("", attention=attention, **kwargs)
  program = contract.Program(subject, dtype)
  with jax.enable_x64(dtype == "float64"):
    draws = contract._draw(program, np.random.default_rng(0), 4)
    outcome = trials.many(contract._trial(program), draws)
    return {row.law: row.violations for row in trials.rows_of(outcome)}


def test_a_leak_into_parameter_gradients_breaks_gradient_closure():
  loss = lambda w, h: jnp.sum((h + jnp.broadcast_to(w, h.shape)) ** 2)
  with pytest.raises(AssertionError, match='"gradient closure" violated'):
    laws.assert_gradient_closure(loss, jnp.ones(8), H, [2])


def test_an_ordered_map_breaks_permutation_equivariance():
  with pytest.raises(AssertionError, match="permutation equivariance"):
    laws.assert_permutation_equivariance(
      lambda h: jnp.cumsum(h, axis=-2), H, [1, 0, 2, 3, 4, 5]
    )
