"""What decoding costs: a step, and a prompt, with a cache of many slots."""

from collections.abc import Callable
import importlib.util
from typing import Any

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from oflax import linen
from oflax import sequences
from oflax.studies.bench import Subject

BATCH, CONTEXT, HEADS, FEATURES = 8, 1024, 8, 512
# Tokens a row; a loop over them writes into the cache in place.
STEPS = 32
OURS, RAGGED, ONE_BY_ONE = "oflax", "oflax, ragged rows", "oflax, one by one"
FLAX, FLAX_MASK = "Flax", "Flax, ragged rows padded and masked"
TORCH = "PyTorch, static cache"


def steps() -> list[Subject]:
  """The last tokens of a context, one after the other."""
  rng = np.random.default_rng(0)
  ours, theirs, params = _modules()
  h = _normal(rng, (BATCH, STEPS, FEATURES))
  key, value = (
    _normal(rng, (BATCH, HEADS, CONTEXT, FEATURES // HEADS)) for _ in range(2)
  )
  seen = CONTEXT - STEPS
  place = jnp.broadcast_to(jnp.arange(CONTEXT), (BATCH, CONTEXT))
  # Rows of all lengths: ours begin at slot 0, padded ones end together.
  lengths = jnp.linspace(seen // BATCH, seen, BATCH).astype(jnp.int32)

  def our_cache(count: jax.Array) -> dict[str, jax.Array]:
    return {
      "key": key,
      "value": value,
      "presence": (place < count[:, None]).astype(jnp.float32),
      "position": place,
      "index": count,
    }

  flax_cache = {
    "cached_key": jnp.swapaxes(key, 1, 2),
    "cached_value": jnp.swapaxes(value, 1, 2),
    "cache_index": jnp.int32(seen),
  }
  mask = (place >= (seen - lengths)[:, None])[:, None, None]
  full = our_cache(jnp.full(BATCH, seen))
  subjects = [
    Subject(OURS, one_by_one(ours), (params, full, h)),
    Subject(RAGGED, one_by_one(ours), (params, our_cache(lengths), h)),
    Subject(FLAX, one_by_one(theirs), (params, flax_cache, h)),
    Subject(FLAX_MASK, one_by_one(theirs), (params, flax_cache, h, mask)),
  ]
  if importlib.util.find_spec("torch"):
    subjects.append(Subject(TORCH, _torch_steps(rng), (), jitted=False))
  return subjects


def prefill() -> list[Subject]:
  """A prompt as long as the cache: at once, and token by token."""
  ours, theirs, params = _modules()
  h = _normal(np.random.default_rng(0), (BATCH, CONTEXT, FEATURES))
  cache = sequences.init_cache({"params": params}, BATCH, CONTEXT)
  empty = jnp.zeros((BATCH, CONTEXT, HEADS, FEATURES // HEADS))
  flax_cache = {
    "cached_key": empty,
    "cached_value": empty,
    "cache_index": jnp.int32(0),
  }

  def at_once(*inputs: Any) -> Any:
    return _call(ours, *inputs)[0]

  return [
    Subject(OURS, at_once, (params, cache, h)),
    Subject(ONE_BY_ONE, one_by_one(ours), (params, cache, h)),
    Subject(FLAX, one_by_one(theirs), (params, flax_cache, h)),
  ]


def one_by_one(module: nn.Module) -> Callable[..., Any]:
  """Feeds a module tokens ``[B, T, d]`` in a loop: outputs and the cache."""

  def scan(params: Any, cache: Any, h: jax.Array, *mask: jax.Array) -> Any:
    def one(cache: Any, token: jax.Array) -> Any:
      out, cache = _call(module, params, cache, token[:, None], *mask)
      return cache, out[:, 0]

    _, out = lax.scan(one, cache, jnp.moveaxis(h, 1, 0))
    return jnp.moveaxis(out, 0, 1)

  return scan


def _modules() -> tuple[nn.Module, nn.Module, Any]:
  """Ours and Flax's, of the same parameters, causal."""
  # With this threshold all are present, as they are to Flax.
  ours = linen.OAttention(HEADS, is_causal=True, decode=True, tau=1e-9)
  theirs = nn.MultiHeadDotProductAttention(HEADS, decode=True)
  init = jax.jit(linen.OAttention(HEADS).init)
  params = init(jax.random.key(0), jnp.zeros((1, 8, FEATURES)))["params"]
  return ours, theirs, params


def _call(
  module: nn.Module, params: Any, cache: Any, h: jax.Array, *mask: jax.Array
) -> Any:
  variables = {"params": params, "cache": cache}
  given: dict[str, Any] = {"mask": mask[0]} if mask else {}
  out, seen = module.apply(variables, h, **given, mutable=["cache"])
  return out, seen["cache"]


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> jax.Array:
  return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _torch_steps(rng: np.random.Generator) -> Callable[[], Any]:
  """The same: projections, a write into the slots, fused attention."""
  import torch

  width = FEATURES // HEADS
  dense = [torch.nn.Linear(FEATURES, FEATURES) for _ in range(4)]
  shape = (BATCH, HEADS, CONTEXT, FEATURES // HEADS)
  h, keys, values = (
    torch.tensor(rng.normal(size=size), dtype=torch.float32)
    for size in ((STEPS, BATCH, 1, FEATURES), shape, shape)
  )
  attend: Any = torch.nn.functional.scaled_dot_product_attention

  def step(slot: int) -> Any:
    q, k, v = (
      layer(h[slot - CONTEXT]).view(BATCH, 1, HEADS, width).transpose(1, 2)
      for layer in dense[:3]
    )
    keys[:, :, slot : slot + 1] = k
    values[:, :, slot : slot + 1] = v
    seen = slice(slot + 1)
    out = attend(q, keys[:, :, seen], values[:, :, seen])
    return dense[3](out.transpose(1, 2).reshape(BATCH, 1, FEATURES))

  def steps() -> Any:
    with torch.no_grad():
      return [step(slot) for slot in range(CONTEXT - STEPS, CONTEXT)]

  return steps
