"""Laws 5 to 8, of every map of carriers."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from oflax.laws import compare
from oflax.laws import rounding
from oflax.laws.nulls import insert_nulls
from oflax.laws.nulls import kept_places

Map = Callable[[jax.Array], jax.Array]


def assert_o_closure(
  fn: Map,
  tokens: jax.Array,
  positions: Sequence[int],
  *,
  bitwise: bool = False,
  rtol: float | None = None,
  atol: float | None = None,
) -> None:
  """Laws 5 and 8, O-closure: M(H ⊕ 0) = M(H) ⊕ 0.

  Args:
    fn: M, ``[..., n, d] -> [..., n, d']``.
    tokens: H.
    positions: Indices of the null tokens, once inserted.
    bitwise: Whether present tokens must agree bit for bit.
    rtol: Relative tolerance; None: the rounding rule.
    atol: Absolute tolerance; None: the rounding rule.

  Raises:
    AssertionError: The law is violated.

  Example:
    >>> import jax.numpy as jnp
    >>> assert_o_closure(lambda h: 2 * h, jnp.ones((2, 3)), [0], bitwise=True)
    >>> assert_o_closure(lambda h: h + 1, jnp.ones((2, 3)), [0])
    Traceback (most recent call last):
    ...
    AssertionError: Law "O-closure" violated at (0, 0) of the null tokens: \
1.0 instead of 0.0, deviation 1 over the allowed 0.

  Reference: docs/laws.md, laws 5 and 8.
  """
  if bitwise:
    rtol = atol = 0.0
  compare.assert_insertion("O-closure", fn, tokens, positions, rtol, atol)


def assert_gradient_closure(
  loss: Callable[[Any, jax.Array], jax.Array],
  params: Any,
  tokens: jax.Array,
  positions: Sequence[int],
  *,
  rtol: float | None = None,
  atol: float | None = None,
) -> None:
  """Law 6: gradients do not see null tokens, and null tokens get none.

  Args:
    loss: ``(params, tokens) -> scalar`` that reads present tokens only.
    params: Tree of arrays.
    tokens: ``[..., n, d]``.
    positions: Indices of the null tokens, once inserted.
    rtol: Tolerance relative to the largest gradient; None: the rounding rule.
    atol: Absolute tolerance; None: the rounding rule.

  Raises:
    AssertionError: The law is violated.

  Example:
    >>> import jax.numpy as jnp
    >>> loss = lambda w, h: jnp.sum(h**2 @ w)
    >>> assert_gradient_closure(loss, jnp.ones(3), jnp.ones((2, 3)), [1])

  Reference: docs/laws.md, law 6.
  """
  gradients = jax.grad(loss, argnums=(0, 1))
  inserted = insert_nulls(tokens, positions)
  want, want_tokens = gradients(params, tokens)
  got, got_tokens = gradients(params, inserted)
  kept = kept_places(tokens.shape[-2], positions)
  nulls = np.asarray(positions, int)
  compare.assert_zero(
    "gradient closure",
    got_tokens[..., nulls, :],
    None,
    " of the null tokens' gradient",
  )
  compare.assert_close(
    "gradient closure",
    (got, got_tokens[..., kept, :]),
    (want, want_tokens),
    *compare.tolerances(
      rtol,
      atol,
      lambda: rounding.rule(lambda h: gradients(params, h), tokens),
    ),
  )


def assert_permutation_equivariance(
  fn: Map,
  tokens: jax.Array,
  permutation: Sequence[int],
  *,
  rtol: float | None = None,
  atol: float | None = None,
) -> None:
  """Law 7: permuted tokens give permuted outputs, where order is free.

  Args:
    fn: ``[..., n, d] -> [..., n, d']``.
    tokens: ``[..., n, d]``.
    permutation: Of the n tokens.
    rtol: Relative tolerance; None: the rounding rule.
    atol: Absolute tolerance; None: the rounding rule.

  Raises:
    AssertionError: The law is violated.
    ValueError: `permutation` is none.

  Example:
    >>> import jax.numpy as jnp
    >>> centre = lambda h: h - h.mean(-2, keepdims=True)
    >>> assert_permutation_equivariance(centre, jnp.eye(2), [1, 0])

  Reference: docs/laws.md, law 7.
  """
  order = np.asarray(permutation, int)
  if sorted(order.tolist()) != list(range(tokens.shape[-2])):
    raise ValueError(
      f"permutation must be one of {tokens.shape[-2]} tokens, got"
      f" {permutation!r}."
    )
  compare.assert_close(
    "permutation equivariance",
    fn(tokens[..., order, :]),
    fn(tokens)[..., order, :],
    *compare.tolerances(rtol, atol, lambda: rounding.rule(fn, tokens)),
  )


def assert_nulls_preserved(
  before: jax.Array,
  after: jax.Array,
  *,
  rtol: float | None = None,
  atol: float | None = None,
) -> None:
  """Null tokens before are null tokens after; under jit with `chex.chexify`.

  Args:
    before: Carriers, ``[..., n, d]``.
    after: Carriers, ``[..., n, d']``.
    rtol: Ignored where the true value is 0.
    atol: Allowed deviation; None: exact.

  Raises:
    AssertionError: The law is violated.

  Example:
    >>> import chex, jax, jax.numpy as jnp
    >>> @chex.chexify
    ... @jax.jit
    ... def double(h):
    ...   assert_nulls_preserved(h, 2 * h)
    ...   return 2 * h
    >>> double(jnp.array([[0.0], [1.0]])).tolist()
    [[0.0], [2.0]]
    >>> chex.block_until_chexify_assertions_complete()

  Reference: docs/laws.md, law 5.
  """
  del rtol
  chex.assert_equal_shape_prefix((before, after), before.ndim - 1)
  null = jnp.all(before == 0, axis=-1, keepdims=True)
  at_nulls = jnp.where(null, after, 0)
  chex.assert_trees_all_close(
    at_nulls,
    jnp.zeros_like(at_nulls),
    rtol=0.0,
    atol=atol or 0.0,
    custom_message='Law "nulls preserved" violated',
  )
