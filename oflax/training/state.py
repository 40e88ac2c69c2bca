"""The train state: Flax's, with the other collections and a random key."""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import Any

from flax import linen as nn
from flax import struct
from flax.training import train_state
import jax
import jax.numpy as jnp
import optax

from oflax.linen import calibration


class TrainState(train_state.TrainState):
  """Everything that a run changes, and what it needs to go on.

  Attributes:
    collections: The variables other than "params", such as "calibration".
    key: Random key of the run; the key of a step is folded from it.
    module: The module that is trained.
    forward: How the module reads a batch, ``(module, batch) -> Any``.

  The other fields are those of flax.training.train_state.TrainState. Make one
  with `create_state`.

  Example:
    >>> import jax, jax.numpy as jnp, optax
    >>> from oflax.linen import OPool
    >>> h = jnp.ones((2, 3))
    >>> state = create_state(OPool(), optax.sgd(0.1), jax.random.key(0), h)
    >>> state.variables["calibration"]["presence"]["tau"].tolist()
    1.0

  Reference: flax.training.train_state.
  """

  collections: Mapping[str, Any]
  key: jax.Array
  module: nn.Module = struct.field(pytree_node=False)
  forward: Callable[..., Any] = struct.field(pytree_node=False)

  @property
  def variables(self) -> dict[str, Any]:
    """All collections, as ``module.apply`` takes them."""
    return {**self.collections, "params": self.params}

  @property
  def rng(self) -> jax.Array:
    """The random key of the step to come."""
    return jax.random.fold_in(self.key, self.step)

  def calibrate(self, batch: Any) -> "TrainState":
    """The state with every τ set from a batch, and a fresh optimizer state.

    Args:
      batch: What `forward` reads.

    Returns:
      The calibrated state.

    Raises:
      ValueError: The module has no OPresence, or the batch no present token.
    """
    variables = calibration.calibrate(
      self.module, self.variables, batch, method=self.forward
    )
    params, collections = _split(variables)
    return self.replace(
      params=params,
      collections=collections,
      opt_state=self.tx.init(params),
    )


def whole(module: nn.Module, batch: Any) -> Any:
  """The default `forward`: the module reads the whole batch."""
  return module(batch)


def create_state(
  module: nn.Module,
  tx: optax.GradientTransformation,
  key: jax.Array,
  batch: Any,
  *,
  forward: Callable[..., Any] = whole,
  variables: Mapping[str, Any] | None = None,
) -> TrainState:
  """The state before the first step.

  Args:
    module: What to train.
    tx: The optimizer.
    key: Random key, from ``jax.random.key``: for the parameters and for the
      steps.
    batch: One batch, for the shapes.
    forward: How the module reads a batch, ``(module, batch) -> Any``, with
      dropout off; for initialisation and calibration, never for the loss.
    variables: Start from these instead of initialising.

  Returns:
    The state at step 0.

  Raises:
    ValueError: `key` is no typed key, or `variables` lacks "params".

  Example:
    >>> import jax, jax.numpy as jnp, optax
    >>> from oflax.linen import OTransformer
    >>> state = create_state(
    ...   OTransformer(num_layers=1, num_heads=2, mlp_dim=8),
    ...   optax.adam(1e-3),
    ...   jax.random.key(0),
    ...   {"carriers": jnp.ones((4, 8)), "label": jnp.int32(1)},
    ...   forward=lambda module, batch: module(batch["carriers"]),
    ... )
    >>> int(state.step), sorted(state.variables)
    (0, ['calibration', 'params'])

  Reference: flax.training.train_state.
  """
  dtype = getattr(key, "dtype", type(key))
  if not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
    raise ValueError(f"key must come from jax.random.key, got {key!r}.")
  # Under jit the forward pass of an initialisation is dropped as dead code.
  init = jax.jit(functools.partial(module.init, method=forward))
  init_key, step_key = jax.random.split(key)
  if variables is None:
    variables = {"params": {}, **init(init_key, batch)}
  if "params" not in variables:
    raise ValueError(f"variables lack 'params', got {sorted(variables)}.")
  params, collections = _split(variables)
  state = TrainState.create(
    apply_fn=module.apply,
    params=params,
    tx=tx,
    collections=collections,
    key=step_key,
    module=module,
    forward=forward,
  )
  # An array from the start, so that step 1 does not trace anew.
  return state.replace(step=jnp.zeros((), jnp.int32))


def _split(variables: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
  """Parameters, and the rest; what a forward pass sows is no state."""
  rest = dict(variables)
  params = rest.pop("params", {})
  rest.pop("intermediates", None)
  return params, rest
