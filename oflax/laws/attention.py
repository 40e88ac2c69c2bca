"""Laws 1 to 4, of attention."""

from collections.abc import Callable
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp

from oflax.laws import compare
from oflax.laws import rounding
from oflax.laws.nulls import insert_nulls

Attend = Callable[[jax.Array, jax.Array], jax.Array]


def assert_null_receiver(
  attend: Attend,
  receivers: jax.Array,
  sources: jax.Array,
  *,
  rtol: float | None = None,
  atol: float | None = None,
) -> None:
  """Law 1: a null receiver gets exactly 0; each is zeroed in turn.

  Args:
    attend: ``(receivers, sources) -> outputs``, carriers in, ``[..., T, d']``
      out.
    receivers: ``[..., T, d]``.
    sources: ``[..., S, d]``.
    rtol: Ignored where the true value is 0.
    atol: Allowed deviation; None: exact.

  Raises:
    AssertionError: The law is violated.

  Example:
    >>> import jax.numpy as jnp
    >>> tokens = jnp.ones((2, 3))
    >>> assert_null_receiver(lambda r, s: r + s[..., :1, :], tokens, tokens)
    Traceback (most recent call last):
    ...
    AssertionError: Law "null receiver" violated at (0,) with receiver 0 null: \
1.0 instead of 0.0, deviation 1 over the allowed 0.

  Reference: docs/laws.md, law 1.
  """
  del rtol
  receivers = jnp.asarray(receivers)
  for i in range(receivers.shape[-2]):
    outputs = attend(receivers.at[..., i, :].set(0), sources)
    chex.assert_axis_dimension(outputs, -2, receivers.shape[-2])
    compare.assert_zero(
      "null receiver", outputs[..., i, :], atol, f" with receiver {i} null"
    )


def assert_null_source_insertion(
  attend: Attend,
  receivers: jax.Array,
  sources: jax.Array,
  positions: Sequence[int],
  *,
  rtol: float | None = None,
  atol: float | None = None,
) -> None:
  """Law 2: adding null sources changes no output.

  Args:
    attend: ``(receivers, sources) -> outputs``.
    receivers: ``[..., T, d]``.
    sources: ``[..., S, d]``.
    positions: Indices of the null sources, once inserted.
    rtol: Relative tolerance; None: the rounding rule.
    atol: Absolute tolerance; None: the rounding rule.

  Raises:
    AssertionError: The law is violated.

  Example:
    >>> import jax.numpy as jnp
    >>> tokens = jnp.ones((2, 3))
    >>> total = lambda r, s: r * s.sum(-2, keepdims=True)
    >>> assert_null_source_insertion(total, tokens, tokens, [0, 1])

  Reference: docs/laws.md, law 2.
  """
  sources = jnp.asarray(sources)

  def rule() -> jax.Array:
    return rounding.rule(lambda s: attend(receivers, s), sources)

  compare.assert_close(
    "null-source insertion",
    attend(receivers, insert_nulls(sources, positions)),
    attend(receivers, sources),
    *compare.tolerances(rtol, atol, rule),
  )


def assert_self_insertion(
  attend: Attend,
  tokens: jax.Array,
  positions: Sequence[int],
  *,
  rtol: float | None = None,
  atol: float | None = None,
) -> None:
  """Law 3: null tokens in a self-attention change no other, and stay null.

  Args:
    attend: ``(receivers, sources) -> outputs``; called with the same tokens on
      both sides.
    tokens: ``[..., n, d]``.
    positions: Indices of the null tokens, once inserted.
    rtol: Relative tolerance; None: the rounding rule.
    atol: Absolute tolerance; None: the rounding rule.

  Raises:
    AssertionError: The law is violated.

  Example:
    >>> import jax.numpy as jnp
    >>> total = lambda r, s: r * s.sum(-2, keepdims=True)
    >>> assert_self_insertion(total, jnp.ones((2, 3)), [1])

  Reference: docs/laws.md, law 3.
  """
  compare.assert_insertion(
    "self-attention insertion",
    lambda h: attend(h, h),
    tokens,
    positions,
    rtol,
    atol,
  )


def assert_empty_support(
  attend: Attend,
  receivers: jax.Array,
  num_sources: int,
  *,
  rtol: float | None = None,
  atol: float | None = None,
) -> None:
  """Law 4: without a present source, output and derivatives are exactly 0.

  Args:
    attend: ``(receivers, sources) -> outputs``.
    receivers: ``[..., T, d]``; the null sources have their features.
    num_sources: Number of null sources; may be 0.
    rtol: Ignored where the true value is 0.
    atol: Allowed deviation; None: exact.

  Raises:
    AssertionError: The law is violated.

  Example:
    >>> import jax.numpy as jnp
    >>> total = lambda r, s: s.sum(-2, keepdims=True) * jnp.ones_like(r)
    >>> assert_empty_support(total, jnp.ones((2, 3)), 0)

  Reference: docs/laws.md, law 4.
  """
  del rtol
  *batch, _, features = receivers.shape
  sources = jnp.zeros((*batch, num_sources, features), receivers.dtype)
  outputs, pullback = jax.vjp(attend, receivers, sources)
  compare.assert_zero("empty support", outputs, atol)
  for name, gradient in zip(
    ("receivers", "sources"), pullback(jnp.ones_like(outputs)), strict=True
  ):
    compare.assert_zero(
      "empty support", gradient, atol, f" of the gradient of {name}"
    )
