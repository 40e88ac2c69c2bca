"""Generation: prompts of any lengths, one program, rows that end by design."""

from collections.abc import Mapping
import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax.linen.language_model import OLanguageModel
from oflax.sequences.slots import init_cache

# Prompts are padded up to 16, 32, 64, … so that few programs are compiled.
SHORTEST = 16


def generate(
  module: OLanguageModel,
  variables: Mapping[str, Any],
  prompts: Any,
  steps: int,
  *,
  temperature: float = 1.0,
  top_k: int | None = None,
  top_p: float | None = None,
  key: jax.Array | None = None,
  stop: int | None = None,
) -> jax.Array:
  """Goes on with prompts, id by id.

  One program serves all prompts whose longest is in the same of 16, 32, 64, …
  ids, and every temperature. Once a row ends its tokens are null: it costs the
  others nothing more, and when all have ended the loop does.

  Args:
    module: A language model of the variant "full".
    variables: Its variables.
    prompts: Integer ids ``[B, n]``, null ids anywhere for shorter ones.
    steps: Ids to add, at most.
    temperature: By which logits are divided; 0: the likeliest id always.
    top_k: Only so many of the likeliest ids are drawn from.
    top_p: Only the likeliest ids that make up this probability are.
    key: Random key, for a temperature above 0.
    stop: The id that ends a row.

  Returns:
    The new ids, int32 ``[B, steps]``, the stop included and null ids after it.

  Raises:
    ValueError: An argument that does not fit, named with its value.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> model = OLanguageModel(50, 8, num_layers=1, num_heads=2, mlp_dim=16)
    >>> prompts = jnp.array([[3, 4, 5], [7, 0, 0]])
    >>> variables = model.init(jax.random.key(0), prompts)
    >>> generate(model, variables, prompts, 4, temperature=0).shape
    (2, 4)

  Reference: Fan et al. 2018, top k; Holtzman et al. 2020, top p.
  """
  try:
    prompts = np.asarray(prompts)
  except ValueError as error:
    raise ValueError(f"prompts must be integers [B, n]: {error}") from None
  temperature = float(temperature)
  _check(module, prompts, steps, temperature, top_k, top_p, key, stop)
  prompts = np.where(prompts < 0, module.null_id, prompts).astype(np.int32)
  longest = SHORTEST
  while longest < prompts.shape[1]:
    longest *= 2
  null = module.null_id
  padding = ((0, 0), (0, longest - prompts.shape[1]))
  prompts = np.pad(prompts, padding, constant_values=null)
  return _generate(
    module.clone(decode=True, compact=False),
    steps,
    top_k,
    temperature == 0,
    dict(variables),
    jnp.asarray(prompts),
    jnp.float32(temperature),
    jnp.float32(1 if top_p is None else top_p),
    jax.random.key(0) if key is None else key,
    jnp.int32(-1 if stop is None else stop),
  )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _generate(
  module: OLanguageModel,
  steps: int,
  top_k: int | None,
  greedy: bool,
  variables: dict[str, Any],
  prompts: jax.Array,
  temperature: jax.Array,
  top_p: jax.Array,
  key: jax.Array,
  stop: jax.Array,
) -> jax.Array:
  batch, longest = prompts.shape

  def seen(cache: Any, ids: jax.Array) -> tuple[jax.Array, Any]:
    """The carrier of the last present id of each row, and the cache."""
    carriers, after = module.apply(
      {**variables, "cache": cache}, ids, mutable=["cache"], method="hidden"
    )
    place = lax.broadcasted_iota(jnp.int32, ids.shape, 1)
    last = jnp.max(jnp.where(ids != module.null_id, place, 0), axis=1)
    last = last[:, None, None]
    return jnp.take_along_axis(carriers, last, axis=1), after["cache"]

  def draw(carriers: jax.Array, key: jax.Array) -> jax.Array:
    logits: Any = module.apply(variables, carriers, method="head")
    ids = jnp.arange(module.vocabulary)
    # The null id is no token to go on with.
    logits = jnp.where(ids == module.null_id, -jnp.inf, logits[:, 0])
    if greedy:
      return jnp.argmax(logits, axis=-1)
    # Not above 0, lest a low temperature make them infinite.
    logits -= jnp.max(logits, axis=-1, keepdims=True)
    logits = likeliest(logits / temperature, top_k, top_p)
    return jax.random.categorical(key, logits)

  def unfinished(state: Any) -> jax.Array:
    step, ended = state[0], state[1]
    return (step < steps) & ~jnp.all(ended)

  def go_on(state: Any) -> Any:
    step, ended, carriers, cache, made = state
    ids = draw(carriers, jax.random.fold_in(key, step)).astype(prompts.dtype)
    ids = jnp.where(ended, module.null_id, ids)
    made = lax.dynamic_update_slice_in_dim(made, ids[:, None], step, axis=1)
    ended = ended | (ids == stop)
    ids = jnp.where(ended, module.null_id, ids)
    carriers, cache = seen(cache, ids[:, None])
    return step + 1, ended, carriers, cache, made

  cache = init_cache(variables, batch, longest + steps)
  carriers, cache = seen(cache, prompts)
  made = jnp.full((batch, steps), module.null_id, prompts.dtype)
  ended = jnp.zeros(batch, bool)
  state = (jnp.int32(0), ended, carriers, cache, made)
  result: jax.Array = lax.while_loop(unfinished, go_on, state)[-1]
  return result


def likeliest(
  logits: jax.Array, top_k: int | None, top_p: jax.Array | float
) -> jax.Array:
  """Logits ``[..., ids]`` with −inf for all but the likeliest ids.

  Args:
    logits: Of all ids.
    top_k: How many are kept at most; None: all.
    top_p: Ids are kept, the likeliest first, until they make up this
      probability; at least one is.

  Returns:
    Logits of the same shape.

  Example:
    >>> logits = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
    >>> likeliest(logits, 3, 0.7).tolist()
    [-0.69, -1.2, -inf, -inf]

  Reference: Fan et al. 2018, top k; Holtzman et al. 2020, top p.
  """
  order = jnp.argsort(logits, axis=-1, descending=True)
  ordered = jnp.take_along_axis(logits, order, axis=-1)
  probability = jax.nn.softmax(ordered, axis=-1)
  before = jnp.cumsum(probability, axis=-1) - probability
  kept = before < top_p
  kept = kept.at[..., 0].set(True)
  if top_k is not None:
    rank = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    kept &= rank < top_k
  # By rank: of equal ones only as many as are asked for.
  kept = jnp.take_along_axis(kept, jnp.argsort(order, axis=-1), axis=-1)
  return jnp.where(kept, logits, -jnp.inf)


def _check(
  module: OLanguageModel,
  prompts: np.ndarray,
  steps: int,
  temperature: float,
  top_k: int | None,
  top_p: float | None,
  key: jax.Array | None,
  stop: int | None,
) -> None:
  _checks.check_choice("module.variant", module.variant, ("full",))
  if prompts.ndim != 2 or not np.issubdtype(prompts.dtype, np.integer):
    raise ValueError(
      f"prompts must be integers [B, n], got {prompts.dtype} of shape"
      f" {prompts.shape}."
    )
  empty = np.all((prompts == module.null_id) | (prompts < 0), axis=1)
  if np.any(empty):
    raise ValueError(
      "prompts must have an id that is not null in every row, got none in row"
      f" {int(np.argmax(empty))}."
    )
  largest = int(prompts.max(where=prompts != module.null_id, initial=0))
  if largest >= module.vocabulary:
    raise ValueError(
      f"prompts must be below vocabulary={module.vocabulary}, got {largest}."
    )
  _checks.check_at_least("steps", steps, 1)
  limits = np.finfo(np.float32)
  lowest, highest = float(limits.tiny), float(limits.max)
  if temperature and not lowest <= temperature <= highest:
    raise ValueError(
      f"temperature must be 0, or from {lowest:.2g} to {highest:.2g}, got"
      f" {temperature!r}."
    )
  if temperature and key is None:
    raise ValueError(
      f"key must be a random key if temperature is positive ({temperature!r}),"
      " got None."
    )
  if top_k is not None:
    _checks.check_at_least("top_k", top_k, 1)
  if top_p is not None:
    _checks.check_interval("top_p", top_p, 0, 1, "(]")
  if stop is not None:
    if not 0 <= stop < module.vocabulary or stop == module.null_id:
      raise ValueError(
        f"stop must be an id below vocabulary={module.vocabulary} other than"
        f" null_id={module.null_id}, got {stop!r}."
      )
