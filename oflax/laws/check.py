"""All laws of closure on one map, many times."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from oflax.laws import compare
from oflax.laws import trials as law_trials
from oflax.laws.report import Report

Map = Callable[[jax.Array], jax.Array]


def check_laws(
  fn: Map,
  tokens: jax.Array,
  key: jax.Array,
  *,
  trials: int = 100,
  rtol: float | None = None,
  atol: float | None = None,
) -> Report:
  """Tries the laws on a map of carriers, with random tokens and null patterns.

  One compilation; trials run in batches. Each draws rows from `tokens`, adds
  noise of half their size, and inserts half as many nulls in front, in the
  middle, behind or scattered.

  Args:
    fn: ``[..., n, d] -> [..., n, d']``, for any n; it must vmap.
    tokens: A sample of carriers, ``[..., n, d]``.
    key: Of the trials.
    trials: How many of each law.
    rtol: Relative tolerance; None: the rounding rule.
    atol: Absolute tolerance; None: the rounding rule.

  Returns:
    Per law: trials, violations, the largest deviation. Prints as a table; HTML
    in a notebook.

  Raises:
    ValueError: `tokens` hold no token, or `trials` is not positive.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> h, key = jnp.ones((4, 3)), jax.random.key(0)
    >>> check_laws(lambda h: 2 * h, h, key).passed
    True

  Reference: docs/laws.md.
  """
  tokens = jnp.asarray(tokens)
  if tokens.ndim < 2 or tokens.shape[-2] == 0:
    raise ValueError(f"tokens must be [..., n, d], n > 0, got {tokens.shape}.")
  if trials < 1:
    raise ValueError(f"trials must be positive, got {trials!r}.")
  return law_trials.run(
    fn,
    tokens,
    key,
    trials,
    lambda rule: compare.tolerances(rtol, atol, lambda: rule),
  )
