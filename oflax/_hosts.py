"""Arrays as one process sees them, of however many."""

from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np


def whole(x: Any) -> np.ndarray:
  """An array as NumPy's, its parts fetched from where they are.

  All processes must call it together if the array is cut between them.
  """
  remote = isinstance(x, jax.Array) and not (
    x.is_fully_addressable or x.is_fully_replicated
  )
  if remote:
    x = multihost_utils.process_allgather(x, tiled=True)
  return np.asarray(x)


def everywhere(flag: bool) -> bool:
  """Whether a flag is set in every process; all must call it together."""
  if jax.process_count() == 1:
    return flag
  flags = multihost_utils.process_allgather(np.asarray(flag))
  return bool(np.all(flags))


def local(tree: Any) -> Any:
  """The tree on the first device of this process, for it to go on alone."""
  device = jax.local_devices()[0]

  def one(x: Any) -> Any:
    if not isinstance(x, jax.Array):
      return x
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      data = jax.device_put(whole(jax.random.key_data(x)), device)
      return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    return jax.device_put(whole(x), device)

  return jax.tree.map(one, tree)
