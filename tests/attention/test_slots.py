"""A few receivers of a cache get what the reference gives, NaN slots or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax import _attention
from oflax._attention import operands
from oflax._attention import slots

RNG = np.random.default_rng(0)
BATCH, SLOTS, HEADS, FEATURES = 3, 24, 4, 8


def inputs(receivers=2, kv_heads=2, dtype=np.float32):
  def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), dtype)

  query = normal(BATCH, receivers, HEADS, FEATURES)
  key, value = (normal(BATCH, SLOTS, kv_heads, FEATURES) for _ in range(2))
  p = RNG.uniform(size=(BATCH, SLOTS)).astype(np.float32)
  p[0, 5:] = p[1, ::2] = p[2] = 0  # The last one has nothing to look at.
  receiver_p = jnp.ones((BATCH, receivers)).at[0, 0].set(0)
  return query, key, value, receiver_p, jnp.asarray(p)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("receivers", [1, 3])
@pytest.mark.parametrize(
  ("dtype", "tolerance"),
  [(np.float32, 2e-6), (jnp.bfloat16, 1e-2), (np.float16, 2e-3)],
)
def test_slots_agree_with_the_reference(kv_heads, receivers, dtype, tolerance):
  given = inputs(receivers, kv_heads, dtype)
  place = np.broadcast_to(np.arange(SLOTS), (BATCH, SLOTS))
  seen = {
    "is_causal": True,
    "receiver_positions": place[:, 12 : 12 + receivers],
    "source_positions": place,
    "bias": RNG.normal(size=(1, HEADS, receivers, SLOTS)).astype(np.float32),
    "return_support": True,
  }
  assert slots.fits(operands.prepare(*given, bias=None, scale=None))
  got, got_support = _attention.o_attention(
    *given, implementation=_attention.CACHED, **seen
  )
  want, support = _attention.o_attention(
    *given, implementation="reference", **seen
  )
  assert got.dtype == dtype
  np.testing.assert_allclose(
    np.float32(got), np.float32(want), atol=tolerance, rtol=tolerance
  )
  np.testing.assert_array_equal(got_support, support)
  assert np.all(got[2] == 0)
  assert np.all(got[0, 0] == 0)


@pytest.mark.parametrize("content", [np.nan, np.inf, -np.inf, 3e38])
def test_what_null_slots_hold_changes_no_bit(content):
  query, key, value, receiver_p, p = inputs()
  null = (p == 0)[..., None, None]
  attend = jax.jit(
    lambda key, value: _attention.o_attention(
      query, key, value, receiver_p, p, implementation=_attention.CACHED
    )
  )
  want = attend(key, value)
  got = attend(*(jnp.where(null, content, x) for x in (key, value)))
  np.testing.assert_array_equal(got, want)


def test_what_a_present_slot_holds_is_seen():
  query, key, value, receiver_p, p = inputs()
  p = p.at[1].set(1)
  got = _attention.o_attention(
    query,
    key,
    value.at[1, 3].set(jnp.nan),
    receiver_p,
    p,
    implementation=_attention.CACHED,
  )
  assert np.all(np.isnan(got[1]))
  assert np.all(np.isfinite(got[0]))


def test_many_receivers_and_dropout_go_another_way():
  for receivers, rate in ((slots.FEW + 1, 0.0), (1, 0.5)):
    made = operands.prepare(
      *inputs(receivers),
      bias=None,
      scale=None,
      dropout_rate=rate,
      dropout_key=jax.random.key(0),
    )
    assert not slots.fits(made)
