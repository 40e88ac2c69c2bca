"""Variables of an OTransformer, unrolled to scanned and back."""

from collections.abc import Mapping
import re
from typing import Any

from flax import core
import jax
import jax.numpy as jnp

_BLOCK = re.compile(r"block_(\d+)")


def stack_blocks(variables: Mapping[str, Any]) -> dict[str, Any]:
  """Stacks ``block_0 … block_L-1`` to ``blocks``, with a leading layer axis.

  Args:
    variables: Of an OTransformer, or of a module that holds one: any nesting,
      all collections or one.

  Returns:
    The variables of the same module with `scan_layers`.

  Raises:
    ValueError: The blocks are not numbered from 0 without gaps.

  Example:
    >>> import jax.numpy as jnp
    >>> tree = stack_blocks({"block_0": jnp.zeros(3), "block_1": jnp.ones(3)})
    >>> tree["blocks"].shape
    (2, 3)
  """
  blocks, rest = {}, {}
  variables = core.unfreeze(dict(variables))
  for name, value in variables.items():
    match = _BLOCK.fullmatch(name)
    if match:
      blocks[int(match[1])] = value
    else:
      nested = isinstance(value, Mapping)
      rest[name] = stack_blocks(value) if nested else value
  if blocks:
    if sorted(blocks) != list(range(len(blocks))):
      raise ValueError(f"variables have blocks {sorted(blocks)}, with gaps.")
    layers = [blocks[i] for i in range(len(blocks))]
    rest["blocks"] = jax.tree.map(lambda *x: jnp.stack(x), *layers)
  return rest


def unstack_blocks(variables: Mapping[str, Any]) -> dict[str, Any]:
  """Splits ``blocks`` to ``block_0 … block_L-1``: the inverse of stacking.

  Args:
    variables: Of an OTransformer with `scan_layers`, or of a module that holds
      one.

  Returns:
    The variables of the same module without `scan_layers`.

  Example:
    >>> import jax.numpy as jnp
    >>> tree = unstack_blocks({"blocks": jnp.array([1.0, 2.0])})
    >>> {name: float(value) for name, value in tree.items()}
    {'block_0': 1.0, 'block_1': 2.0}
  """
  result = {}
  variables = core.unfreeze(dict(variables))
  for name, value in variables.items():
    if name == "blocks":
      for i in range(len(jax.tree.leaves(value)[0])):
        result[f"block_{i}"] = jax.tree.map(lambda x, i=i: x[i], value)
    else:
      nested = isinstance(value, Mapping)
      result[name] = unstack_blocks(value) if nested else value
  return result
