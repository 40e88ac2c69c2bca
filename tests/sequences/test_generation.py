"""Generation goes on as one pass would, and compiles once for a bucket."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.linen import OLanguageModel
from oflax.sequences import generate
from oflax.sequences import generation

MODEL = OLanguageModel(
  20, 8, num_layers=1, num_heads=2, mlp_dim=12, num_kv_heads=1, gated=True
)
PROMPTS = np.array([[3, 4, 5, 6], [0, 7, 0, 9], [8, 0, 0, 0]])
VARIABLES = jax.jit(MODEL.init)(jax.random.key(3), PROMPTS)
# Far apart, so that the likeliest id is not a matter of rounding.
VARIABLES = jax.tree.map(lambda x: 3 * x, VARIABLES)


@jax.jit
def logits_of(ids):
  return MODEL.apply(VARIABLES, ids)


def greedy(prompt, steps):
  """Id by id, each from a pass over all before."""
  ids = [i for i in prompt.tolist() if i]
  for _ in range(steps):
    padded = np.pad(ids, (0, 9 - len(ids)))
    logits = np.asarray(logits_of(padded[None])[0, len(ids) - 1])
    ids.append(1 + int(np.argmax(logits[1:])))
  return ids[-steps:]


def test_it_takes_the_likeliest_id_after_prompts_padded_anyhow():
  got = generate(MODEL, VARIABLES, PROMPTS, 5, temperature=0)
  assert got.tolist() == [greedy(prompt, 5) for prompt in PROMPTS]


def test_a_row_ends_with_its_stop_and_changes_no_other():
  whole = np.asarray(generate(MODEL, VARIABLES, PROMPTS, 5, temperature=0))
  stop = int(whole[0, 2])
  got = generate(MODEL, VARIABLES, PROMPTS, 5, temperature=0, stop=stop)
  for row, want in zip(np.asarray(got), whole, strict=True):
    ends = np.flatnonzero(want == stop)
    end = ends[0] + 1 if ends.size else 5
    np.testing.assert_array_equal(row[:end], want[:end])
    assert not row[end:].any()


def test_all_prompts_in_a_bucket_are_one_program(monkeypatch):
  traced = []

  def counted(*args, likeliest=generation.likeliest):
    traced.append(args)
    return likeliest(*args)

  monkeypatch.setattr(generation, "likeliest", counted)
  generation._generate.clear_cache()
  counts = []
  for length in (1, 4, 9, 16):
    prompts = np.ones((3, length), int)
    for temperature, top_p in ((0.5, 0.9), (1.5, None)):
      generate(
        MODEL,
        VARIABLES,
        prompts,
        3,
        temperature=temperature,
        top_p=top_p,
        key=jax.random.key(length),
        stop=length,
      )
      counts.append(len(traced))
  assert counts[0] > 0
  assert counts[-1] == counts[0]


def test_it_draws_by_its_key_and_never_the_null_id():
  def draw(seed):
    key = jax.random.key(seed)
    return generate(MODEL, VARIABLES, PROMPTS, 8, temperature=9.0, key=key)

  np.testing.assert_array_equal(draw(0), draw(0))
  assert np.any(np.asarray(draw(0)) != np.asarray(draw(1)))
  assert np.all(np.asarray(draw(0)) > 0)


def test_top_k_and_top_p_leave_the_likeliest_ids():
  logits = jnp.log(
    jnp.array([[0.15, 0.5, 0.05, 0.3], [0.25, 0.25, 0.25, 0.25]])
  )

  def kept(top_k, top_p):
    found = generation.likeliest(logits, top_k, top_p)
    return np.isfinite(np.asarray(found)).tolist()

  assert kept(None, 1.0) == [[True] * 4] * 2
  assert kept(2, 1.0)[0] == [False, True, False, True]
  assert kept(None, 0.7)[0] == [False, True, False, True]
  assert kept(None, 1e-6)[0] == [False, True, False, False]
  assert sum(kept(1, 1.0)[1]) == 1  # Of equal ones, too.


def test_a_large_vocabulary_needs_no_large_prompts():
  large = OLanguageModel(300, 4, num_layers=1, num_heads=1, mlp_dim=2)
  prompts = np.array([[3, 4, 5], [77, 1, 0]])
  variables = jax.jit(large.init)(jax.random.key(3), prompts)
  drawn = {"temperature": 50.0, "key": jax.random.key(0)}
  want = generate(large, variables, prompts, 8, **drawn)
  got = generate(large, variables, prompts.astype(np.int8), 8, **drawn)
  np.testing.assert_array_equal(got, want)
  assert np.any(np.asarray(want) > 127)


def test_the_null_id_may_be_none_of_the_vocabulary():
  for null_id in (-1, 20):
    module = MODEL.clone(null_id=null_id)
    prompts = np.array([[3, 19], [4, null_id]])
    made = generate(
      module, VARIABLES, prompts, 60, temperature=50.0, key=jax.random.key(0)
    )
    assert set(np.unique(made)) == set(range(20))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"module": MODEL.clone(variant="host")}, "module.variant .*'host'"),
    ({"prompts": np.ones(3, int)}, r"prompts must be .*shape \(3,\)"),
    ({"prompts": np.ones((1, 3))}, "prompts must be integers .*float64"),
    ({"prompts": np.array([[1], [0]])}, "prompts must have .*row 1"),
    ({"prompts": np.array([[20]])}, "prompts must be below .*=20, got 20"),
    ({"steps": 0}, "steps must be .*got 0"),
    ({"temperature": -1.0}, "temperature must be .*got -1"),
    ({"temperature": 1e-50}, "temperature must be .*got 1e-50"),
    ({"temperature": 1e300}, "temperature must be .*got 1e[+]300"),
    ({"stop": 0}, "stop must be .*null_id=0, got 0"),
    ({"stop": 2**40}, "stop must be .*got 1099511627776"),
    ({"prompts": [[3, 4], [5]]}, "prompts must be integers"),
    ({"temperature": 1.0}, "key must be a random key .*None"),
    ({"top_k": 0}, "top_k must be .*got 0"),
    ({"top_p": 0.0}, "top_p must be .*got 0"),
    ({"stop": -1}, "stop must be .*got -1"),
  ],
)
def test_wrong_input_is_named_with_its_value(change, message):
  arguments = {"module": MODEL, "prompts": PROMPTS, "steps": 2}
  arguments |= {"temperature": 0.0, **change}
  with pytest.raises(ValueError, match=message):
    generate(
      arguments.pop("module"),
      VARIABLES,
      arguments.pop("prompts"),
      arguments.pop("steps"),
      **arguments,
    )
