"""Every τ of a model from one batch."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax import _hosts
from oflax import _presence
from oflax.linen.presence import OPresence

# The collection into which the one forward pass sows the carriers it sees.
CALIBRATING = "calibrating"


def calibrate(
  module: nn.Module,
  variables: Mapping[str, Any],
  *args: Any,
  presence: float = 0.999,
  quantile: float = 0.01,
  **kwargs: Any,
) -> dict[str, Any]:
  """Sets every τ so that the tokens of a batch have a given presence.

  One forward pass in which every presence is 1[h ≠ 0]; each OPresence called
  then gets the `oflax.calibrate_tau` of the carriers it saw, per layer under
  scan. Runs on the host; not for use inside jit.

  Args:
    module: Any module with OPresences in it.
    variables: Its variables; the collection "calibration" may be missing.
    *args: Of the forward pass, as are the further keyword arguments. Keep it
      deterministic.
    presence: The presence wanted at the quantile, in (0, 1).
    quantile: Of the squared norms of the present tokens, in [0, 1].
    **kwargs: Of the forward pass.

  Returns:
    The variables with the new thresholds, in "calibration" or as the parameters
    "log_tau"; nothing else changes, so nothing is compiled again.

  Raises:
    ValueError: An OPresence saw no present token, or none was called.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from oflax.linen import OPresence
    >>> h = jnp.array([[3.0, 4.0]])
    >>> variables = calibrate(OPresence(), {}, h, presence=0.5)
    >>> OPresence().apply(variables, h).tolist()
    [0.5]

  Reference: docs/concepts.md, presence.
  """
  _checks.check_interval("presence", presence, 0, 1, "()")
  _checks.check_interval("quantile", quantile, 0, 1)
  with nn.intercept_methods(_record):
    seen = _forward(module, variables, args, kwargs)
  sites = traverse_util.flatten_dict(seen.get(CALIBRATING, {}))
  if not sites:
    raise ValueError(
      f"module calls no OPresence, got {type(module).__name__}: there is"
      " nothing to calibrate. (A lifted transform of your own must carry the"
      f' collection "{CALIBRATING}" in its variable axes.)'
    )

  result = traverse_util.flatten_dict(dict(variables))
  for (*site, kind), carriers in sites.items():
    if kind != "carriers":
      continue
    layers = sites[(*site, "scalar")][0].shape
    try:
      tau = _taus(carriers, layers, presence, quantile)
    except ValueError as error:
      raise ValueError(f"{'/'.join(site) or 'OPresence'}: {error}") from None
    learnt = ("params", *site, "log_tau")
    if learnt in result:
      result[learnt] = jnp.log(tau)
    else:
      result[("calibration", *site, "tau")] = tau
  return traverse_util.unflatten_dict(result)


def _forward(
  module: nn.Module,
  variables: Mapping[str, Any],
  args: tuple[Any, ...],
  kwargs: dict[str, Any],
) -> Mapping[str, Any]:
  """What one forward pass sows; compiled, for op by op it takes far longer."""
  leaves, structure = jax.tree.flatten((args, kwargs))
  arrays = {
    i: leaf
    for i, leaf in enumerate(leaves)
    if isinstance(leaf, jax.Array | np.ndarray)
  }

  @jax.jit
  def run(variables: Mapping[str, Any], arrays: dict[int, Any]) -> Any:
    filled = [arrays.get(i, leaf) for i, leaf in enumerate(leaves)]
    args, kwargs = jax.tree.unflatten(structure, filled)
    _, seen = module.apply(variables, *args, mutable=[CALIBRATING], **kwargs)
    return seen

  seen: Mapping[str, Any] = run(variables, arrays)
  return seen


def _record(
  next_fun: Callable[..., Any],
  args: tuple[Any, ...],
  kwargs: dict[str, Any],
  context: Any,
) -> Any:
  """Interceptor: keeps what an OPresence sees, and answers 1[h ≠ 0]."""
  is_presence = isinstance(context.module, OPresence)
  if not is_presence or context.method_name != "__call__":
    return next_fun(*args, **kwargs)
  (carrier,) = (*args, *kwargs.values())
  context.module.sow(CALIBRATING, "carriers", carrier)
  # Under scan a scalar gains the layer axes, and tells them by its shape.
  context.module.sow(CALIBRATING, "scalar", jnp.float32(0))
  presence = next_fun(carrier)
  return jnp.any(carrier != 0, axis=-1).astype(presence.dtype)


def _taus(
  carriers: tuple[jax.Array, ...],
  layers: tuple[int, ...],
  presence: float,
  quantile: float,
) -> jax.Array:
  """The τ of one OPresence; of all its layers under scan."""
  count = int(np.prod(layers))
  calls = [_hosts.whole(x).reshape(count, -1, x.shape[-1]) for x in carriers]
  taus = [
    _presence.calibrate_tau(seen, presence=presence, quantile=quantile)
    for seen in np.concatenate(calls, axis=1)
  ]
  for tau in taus:
    _checks.check_positive("tau of these carriers", tau)
  return jnp.asarray(taus, jnp.float32).reshape(layers)
