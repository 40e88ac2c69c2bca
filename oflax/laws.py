"""The laws of a library in which a zero token does not exist, as assertions.

Each assertion takes a user's own function and raises an AssertionError that
names the law, the place and the size of the violation. With `rtol` and `atol`
None, what must be exact is compared exactly, and the rest by the rounding rule:
8 · eps · max(1, amplification), relative to max(1, largest value), where the
amplification is how strongly the function magnifies a relative perturbation of
its input (for attention, about the largest score).
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from oflax import _laws_trials
from oflax._report import Report

Attend = Callable[[jax.Array, jax.Array], jax.Array]
Map = Callable[[jax.Array], jax.Array]


def insert_nulls(tokens: jax.Array, positions: Sequence[int]) -> jax.Array:
  """H ⊕ 0: inserts null tokens at given places.

  Args:
    tokens: ``[..., n, d]``.
    positions: The indices that are null in the result, distinct.

  Returns:
    ``[..., n + len(positions), d]``.

  Raises:
    ValueError: A position is repeated or out of range.

  Example:
    >>> import jax.numpy as jnp
    >>> insert_nulls(jnp.array([[1.0], [2.0]]), [0, 2]).tolist()
    [[0.0], [1.0], [0.0], [2.0]]

  Reference: DESIGN §1, H ⊕ 0.
  """
  tokens = jnp.asarray(tokens)
  kept = _kept(tokens.shape[-2], positions)
  size = tokens.shape[-2] + len(positions)
  result = jnp.zeros((*tokens.shape[:-2], size, tokens.shape[-1]), tokens.dtype)
  return result.at[..., kept, :].set(tokens)


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

  Reference: DESIGN §2, law 1.
  """
  del rtol
  for i in range(receivers.shape[-2]):
    outputs = attend(receivers.at[..., i, :].set(0), sources)
    chex.assert_axis_dimension(outputs, -2, receivers.shape[-2])
    _assert_zero(
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

  Reference: DESIGN §2, law 2.
  """
  rounding = _laws_trials.rounding(lambda s: attend(receivers, s), sources)
  _assert_close(
    "null-source insertion",
    attend(receivers, insert_nulls(sources, positions)),
    attend(receivers, sources),
    *_tolerances(rtol, atol, rounding),
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

  Reference: DESIGN §2, law 3.
  """
  _assert_insertion(
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

  Reference: DESIGN §2, law 4.
  """
  del rtol
  *batch, _, features = receivers.shape
  sources = jnp.zeros((*batch, num_sources, features), receivers.dtype)
  outputs, pullback = jax.vjp(attend, receivers, sources)
  _assert_zero("empty support", outputs, atol)
  for name, gradient in zip(
    ("receivers", "sources"), pullback(jnp.ones_like(outputs)), strict=True
  ):
    _assert_zero("empty support", gradient, atol, f" of the gradient of {name}")


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

  Reference: DESIGN §2, laws 5 and 8.
  """
  if bitwise:
    rtol = atol = 0.0
  _assert_insertion("O-closure", fn, tokens, positions, rtol, atol)


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
    >>> loss = lambda w, h: jnp.sum(w * h**2)
    >>> assert_gradient_closure(loss, jnp.ones(3), jnp.ones((2, 3)), [1])

  Reference: DESIGN §2, law 6.
  """
  gradients = jax.grad(loss, argnums=(0, 1))
  inserted = insert_nulls(tokens, positions)
  want, want_tokens = gradients(params, tokens)
  got, got_tokens = gradients(params, inserted)
  kept = _kept(tokens.shape[-2], positions)
  nulls = np.asarray(positions, int)
  _assert_zero(
    "gradient closure",
    got_tokens[..., nulls, :],
    None,
    " of the null tokens' gradient",
  )
  _assert_close(
    "gradient closure",
    (got, got_tokens[..., kept, :]),
    (want, want_tokens),
    *_tolerances(
      rtol, atol, _laws_trials.rounding(lambda h: gradients(params, h), tokens)
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

  Reference: DESIGN §2, law 7.
  """
  order = np.asarray(permutation, int)
  if sorted(order.tolist()) != list(range(tokens.shape[-2])):
    raise ValueError(
      f"permutation must be one of {tokens.shape[-2]} tokens, got"
      f" {permutation!r}."
    )
  _assert_close(
    "permutation equivariance",
    fn(tokens[..., order, :]),
    fn(tokens)[..., order, :],
    *_tolerances(rtol, atol, _laws_trials.rounding(fn, tokens)),
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

  Reference: DESIGN §2, law 5.
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
    >>> report = check_laws(lambda h: 2 * h, jnp.ones((4, 3)), jax.random.key(0))
    >>> report.passed
    True

  Reference: DESIGN §2.
  """
  tokens = jnp.asarray(tokens)
  if tokens.ndim < 2 or tokens.shape[-2] == 0:
    raise ValueError(f"tokens must be [..., n, d], n > 0, got {tokens.shape}.")
  if trials < 1:
    raise ValueError(f"trials must be positive, got {trials!r}.")
  return _laws_trials.run(
    fn, tokens, key, trials, lambda rule: _tolerances(rtol, atol, rule)
  )


def _kept(n: int, positions: Sequence[int]) -> np.ndarray:
  """The indices, among n tokens and the inserted nulls, of the n tokens."""
  size = n + len(positions)
  nulls = np.asarray(positions, int).reshape(-1)
  bad = (nulls < 0) | (nulls >= size)
  if bad.any() or len(set(nulls.tolist())) != len(nulls):
    raise ValueError(
      f"positions must be distinct and in [0, {size}), got {list(positions)}."
    )
  return np.setdiff1d(np.arange(size), nulls)


def _tolerances(rtol: Any, atol: Any, rounding: Any) -> tuple[Any, Any]:
  return (
    rounding if rtol is None else rtol,
    rounding if atol is None else atol,
  )


def _assert_insertion(
  law: str,
  fn: Map,
  tokens: jax.Array,
  positions: Sequence[int],
  rtol: float | None,
  atol: float | None,
) -> None:
  kept = _kept(tokens.shape[-2], positions)
  outputs = fn(insert_nulls(tokens, positions))
  chex.assert_axis_dimension(outputs, -2, len(kept) + len(positions))
  nulls = np.asarray(positions, int)
  _assert_zero(law, outputs[..., nulls, :], None, " of the null tokens")
  rounding = 0.0
  if rtol is None or atol is None:
    rounding = _laws_trials.rounding(fn, tokens)
  _assert_close(
    law,
    outputs[..., kept, :],
    fn(tokens),
    *_tolerances(rtol, atol, rounding),
  )


def _assert_zero(
  law: str, got: jax.Array, atol: float | None, place: str = ""
) -> None:
  _assert_close(law, got, jnp.zeros_like(got), 0.0, atol or 0.0, place)


def _assert_close(
  law: str, got: Any, want: Any, rtol: float, atol: float, place: str = ""
) -> None:
  """Compares trees, relative to the largest value in all of `want`."""
  chex.assert_trees_all_equal_shapes(got, want)
  leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(want)]
  largest = max((np.max(np.abs(x), initial=0) for x in leaves), default=0.0)
  allowed = float(atol + rtol * (largest if rtol else 0.0))
  flat, _ = jax.tree_util.tree_flatten_with_path(got)
  for (path, leaf), expected in zip(flat, leaves, strict=True):
    actual = np.asarray(leaf, np.float64)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    deviation = np.where(same, 0, np.abs(actual - expected))
    bad = ~(deviation <= allowed)
    if bad.any():
      worst = np.where(np.isnan(deviation), np.inf, deviation)
      index = np.unravel_index(np.argmax(worst), worst.shape)
      where = jax.tree_util.keystr(path) + str(tuple(map(int, index)))
      raise AssertionError(
        f'Law "{law}" violated at {where}{place}: {actual[index]} instead of'
        f" {expected[index]}, deviation {deviation[index]:.3g} over the allowed"
        f" {allowed:.3g}."
      )
