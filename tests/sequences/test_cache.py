"""Decoding token by token is one causal pass, whatever is in empty slots."""

import functools

import jax
from jax.experimental import checkify
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.linen import OAttention
from oflax.linen import OTransformer
from oflax.linen import stack_blocks
from oflax.sequences import evict
from oflax.sequences import init_cache
from oflax.sequences import reorder

B, T, D = 3, 12, 8
LENGTHS = (12, 7, 1)
RNG = np.random.default_rng(0)
TOKENS = RNG.normal(size=(B, T, D)).astype(np.float32)
PADDINGS = {
  "right": [list(range(n)) for n in LENGTHS],
  "left": [list(range(T - n, T)) for n in LENGTHS],
  "gaps": [sorted(RNG.permutation(T)[:n].tolist()) for n in LENGTHS],
}
MODELS = {
  "plain": {},
  "rotary": {"rotary": True},
  "grouped heads": {"num_kv_heads": 1, "rotary": True},
  "window": {"local_window_size": (3, 0), "rotary": True},
  "post": {"norm_placement": "post"},
  "attention": {"variant": "attention"},
}


def model(**fields):
  return OTransformer(
    num_layers=2,
    num_heads=2,
    mlp_dim=12,
    is_causal=True,
    bias_init=jax.nn.initializers.normal(0.3),
    **fields,
  )


@functools.cache
def variables_of(name):
  return jax.jit(model(**MODELS[name]).init)(jax.random.key(0), TOKENS)


@functools.partial(jax.jit, static_argnums=0)
def advance(decoder, variables, cache, h):
  out, seen = decoder.apply({**variables, "cache": cache}, h, mutable=["cache"])
  return out, seen["cache"]


def padded(places):
  """The sequences at these places of their rows, null tokens elsewhere."""
  h = np.zeros_like(TOKENS)
  for row, place in enumerate(places):
    h[row, place] = TOKENS[row, : len(place)]
  return h


def decoded(decoder, variables, cache, h, prefill):
  """Outputs of a prefill and then of single steps, and the cache."""
  out, cache = advance(decoder, variables, cache, h[:, :prefill])
  parts = [out]
  for t in range(prefill, h.shape[1]):
    out, cache = advance(decoder, variables, cache, h[:, t : t + 1])
    parts.append(out)
  return jnp.concatenate(parts, axis=1), cache


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_steps_are_one_pass(name, padding):
  module, variables = model(**MODELS[name]), variables_of(name)
  h = padded(PADDINGS[padding])
  if name == "attention":
    # Its nulls wake up, in one pass as in many.
    h = TOKENS
  want = module.apply(variables, h)
  cache = init_cache(variables, B, T)
  decoder = module.clone(decode=True)
  got, cache = decoded(decoder, variables, cache, h, prefill=8)
  np.testing.assert_allclose(got, want, atol=1e-5)
  present = (h != 0).any(-1).sum(1)
  np.testing.assert_array_equal(cache["index"], present)


@pytest.mark.parametrize("lift", ["remat", "scan_layers"])
def test_under_lifted_transforms_too(lift):
  variables = variables_of("rotary")
  h = padded(PADDINGS["gaps"])
  want = model(rotary=True).apply(variables, h)
  if lift == "scan_layers":
    variables = stack_blocks(variables)
  decoder = model(rotary=True, decode=True, **{lift: True})
  cache = init_cache(variables, B, T)
  got, _ = decoded(decoder, variables, cache, h, prefill=9)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_bfloat16_is_as_close_as_its_bits_are():
  variables = variables_of("rotary")
  h = padded(PADDINGS["gaps"]).astype(jnp.bfloat16)
  module = model(rotary=True, dtype=jnp.bfloat16)
  want = module.apply(variables, h).astype(jnp.float32)
  cache = init_cache(variables, B, T, dtype=jnp.bfloat16)
  got, _ = decoded(module.clone(decode=True), variables, cache, h, prefill=9)
  np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.06)


@pytest.mark.parametrize("name", ["rotary", "window"])
def test_what_is_in_slots_not_written_changes_no_bit(name):
  variables, h = variables_of(name), padded(PADDINGS["gaps"])
  decoder = model(decode=True, **MODELS[name])
  cache = init_cache(variables, B, T)

  def spoiled(path, x):
    name = path[-1].key
    return (
      x
      if name == "index"
      else jnp.full_like(
        x, jnp.nan if name in ("key", "value", "presence") else 7
      )
    )

  wild = jax.tree_util.tree_map_with_path(spoiled, cache)
  want, _ = decoded(decoder, variables, cache, h, prefill=9)
  got, _ = decoded(decoder, variables, wild, h, prefill=9)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("prefill", [1, 5, 12])
@pytest.mark.parametrize("slots", [4, 6])
def test_a_window_needs_no_more_slots_than_it_sees(slots, prefill):
  variables, h = variables_of("window"), padded(PADDINGS["gaps"])
  module = model(**MODELS["window"])
  want = module.apply(variables, h)
  cache = init_cache(variables, B, slots)
  decoder = module.clone(decode=True)
  got, _ = decoded(decoder, variables, cache, h, prefill)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_row_changes_nothing_in_another():
  variables, h = variables_of("rotary"), padded(PADDINGS["gaps"])
  decoder = model(rotary=True, decode=True)
  cache = init_cache(variables, B, T)
  want, _ = decoded(decoder, variables, cache, h, prefill=9)
  other = h.copy()
  other[1] = 3 * TOKENS[2]
  got, _ = decoded(decoder, variables, cache, other, prefill=9)
  np.testing.assert_array_equal(np.delete(got, 1, 0), np.delete(want, 1, 0))


def test_evicted_slots_are_tokens_that_never_were():
  variables = variables_of("plain")
  decoder = model(decode=True)
  cache = init_cache(variables, B, T)
  _, cache = advance(decoder, variables, cache, TOKENS[:, :8])
  hole = np.zeros((B, T), bool)
  hole[:, [2, 5]] = True
  got, _ = advance(decoder, variables, evict(cache, hole), TOKENS[:, 8:9])
  same, _ = advance(
    decoder, variables, evict(cache, np.full((B, 2), [2, 5])), TOKENS[:, 8:9]
  )
  np.testing.assert_array_equal(got, same)
  # Each layer without them: as if nobody could look at them any more.
  visible = np.tril(np.ones((9, 9), bool))
  visible[8, [2, 5]] = False
  want = model().apply(variables, TOKENS[:, :9], mask=visible)
  np.testing.assert_allclose(got[:, 0], want[:, 8], atol=1e-5)


def test_beams_go_on_from_the_rows_they_are_given():
  variables = variables_of("rotary")
  decoder = model(rotary=True, decode=True)
  cache = init_cache(variables, B, T)
  _, cache = advance(
    decoder, variables, cache, padded(PADDINGS["right"])[:, :8]
  )
  rows = np.array([2, 2, 0, 1])
  step = TOKENS[rows, 8:9]
  got, _ = advance(decoder, variables, reorder(cache, rows), step)
  for i, row in enumerate(rows):
    alone = reorder(cache, np.full(B, row))
    want, _ = advance(
      decoder, variables, alone, np.repeat(step[i : i + 1], B, 0)
    )
    np.testing.assert_allclose(got[i], want[0], atol=1e-5)


def test_a_full_cache_is_an_error_and_never_written_over():
  variables = variables_of("rotary")
  decoder = model(rotary=True, decode=True)
  cache = init_cache(variables, B, 8)
  h = padded(PADDINGS["right"])
  with pytest.raises(ValueError, match=r"room for 12 tokens, got max_length=8"):
    decoder.apply({**variables, "cache": cache}, h, mutable=["cache"])
  out, after = advance(decoder, variables, cache, h)
  assert bool(jnp.isnan(out[0]).all())
  want = model(rotary=True).apply(variables, h)
  np.testing.assert_allclose(out[1:], want[1:], atol=1e-5)
  kept = after["block_0"]["attention"]
  _, before = advance(decoder, variables, cache, h[:, :8])
  np.testing.assert_array_equal(
    kept["key"], before["block_0"]["attention"]["key"]
  )
  checked = checkify.checkify(
    lambda h: decoder.apply({**variables, "cache": cache}, h, mutable=["cache"])
  )
  error, _ = jax.jit(checked)(h)
  with pytest.raises(checkify.JaxRuntimeError, match="room for 12 tokens"):
    error.throw()


def test_a_ring_that_does_not_hold_the_window_is_never_written_over():
  attention = OAttention(2, is_causal=True, local_window_size=4)
  decoder = attention.clone(decode=True)
  cache = init_cache(VARIABLES, B, 3)
  with pytest.raises(ValueError, match="room for 12 tokens, got max_length=3"):
    decoder.apply({**VARIABLES, "cache": cache}, TOKENS, mutable=["cache"])


def test_positions_may_be_given_at_first_and_left_out_later():
  variables = variables_of("rotary")
  decoder = model(rotary=True, decode=True)
  cache = init_cache(variables, B, T)
  place = np.broadcast_to(np.arange(9), (B, 9))
  _, seen = decoder.apply(
    {**variables, "cache": cache},
    TOKENS[:, :9],
    positions=place,
    mutable=["cache"],
  )
  out, _ = advance(decoder, variables, seen["cache"], TOKENS[:, 9:])
  want = model(rotary=True).apply(variables, TOKENS)[:, 9:]
  np.testing.assert_allclose(out, want, atol=1e-5)


def test_nothing_is_a_chunk_too():
  cache = init_cache(VARIABLES, B, 3)
  out, seen = ATTENTION.apply(
    {**VARIABLES, "cache": cache}, TOKENS[:, :0], mutable=["cache"]
  )
  assert out.shape == (B, 0, D)
  jax.tree.map(np.testing.assert_array_equal, dict(seen["cache"]), cache)


def test_a_row_that_is_not_there_is_seen_under_jit():
  _, seen = ATTENTION.apply(
    {**VARIABLES, "cache": init_cache(VARIABLES, B, T)},
    TOKENS[:, :4],
    mutable=["cache"],
  )
  beams = jax.jit(reorder)(dict(seen["cache"]), jnp.array([0, 7, 1]))
  out, _ = jax.jit(
    lambda cache, h: ATTENTION.apply(
      {**VARIABLES, "cache": cache}, h, mutable=["cache"]
    )
  )(beams, TOKENS[:, 4:5])
  assert np.all(np.isnan(out[1]))
  assert np.all(np.isfinite(out[::2]))


def test_flax_makes_a_cache_too():
  """As with flax.linen attention: init with inputs of the whole length."""
  decoder = model(rotary=True, decode=True)
  made = decoder.init(jax.random.key(0), TOKENS)
  want = init_cache(made, B, T)
  assert jax.tree.structure(made["cache"]) == jax.tree.structure(want)
  jax.tree.map(np.testing.assert_array_equal, dict(made["cache"]), want)


def test_several_batch_axes():
  variables = variables_of("rotary")
  decoder = model(rotary=True, decode=True)
  cache = init_cache(variables, (1, B), T)
  got, _ = decoded(
    decoder, variables, jax.tree.map(lambda x: x[0], cache), TOKENS, prefill=9
  )
  out, _ = advance(decoder, variables, cache, TOKENS[None])
  np.testing.assert_allclose(out[0], got, atol=1e-5)


ATTENTION = OAttention(2, decode=True, is_causal=True)
VARIABLES = OAttention(2).init(jax.random.key(0), TOKENS)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: init_cache({}, 2, 3), "variables must have .*OAttention"),
    (lambda: init_cache(VARIABLES, -1, 3), "batch must be .*got -1"),
    (lambda: init_cache(VARIABLES, 2, 0), "max_length must be .*got 0"),
    (lambda: ATTENTION.apply(VARIABLES, TOKENS), "decode=True needs mutable"),
    (
      lambda: ATTENTION.apply(VARIABLES, TOKENS, mutable=["cache"]),
      "decode=True needs .*init_cache",
    ),
    (
      lambda: ATTENTION.apply(VARIABLES, TOKENS, TOKENS, mutable=["cache"]),
      "decode=True is for self-attention",
    ),
    (
      lambda: evict(init_cache(VARIABLES, B, 4), np.ones((B, 3), bool)),
      r"slots must be boolean .*4\].*got bool of shape \(3, 3\)",
    ),
    (
      lambda: reorder(init_cache(VARIABLES, B, 4), np.ones((1, 1), int)),
      r"rows must be integers .*\(1, 1\)",
    ),
    (
      lambda: reorder(init_cache(VARIABLES, B, 4), np.array([0, -1])),
      "rows must be at least 0 and below 3, got -1",
    ),
    (
      lambda: evict(init_cache(VARIABLES, B, 4), np.array([[0], [1], [4]])),
      "slots must be at least 0 and below 4, got 4",
    ),
    (
      lambda: init_cache(VARIABLES, np.int64(2), 3, dtype=jnp.int8),
      "dtype must be floating, got int8",
    ),
  ],
)
def test_wrong_input_is_named_with_its_value(call, message):
  with pytest.raises(ValueError, match=message):
    call()
