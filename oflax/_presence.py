"""Presence: how far a token exists."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax import _numerics
from oflax._numerics import AxisName


def presence(carrier: jax.Array, tau: float | jax.Array = 1.0) -> jax.Array:
  r"""The presence of every token, from the norm of its carrier.

  .. math:: p_i = \|h_i\|^2 / (\tau + \|h_i\|^2)

  It is exactly 0 for a null carrier, with derivative 0 and curvature
  :math:`2/\tau` there, and tends to 1 for :math:`\|h\|^2 \gg \tau`. A carrier
  with a non-finite entry has presence NaN, which is not absence.

  Args:
    carrier: Floating-point tokens, ``[..., n, d]``.
    tau: Positive scalar in units of the squared norm: presence is 1/2 there.

  Returns:
    Presence in [0, 1], ``[..., n]``: float64 for float64 carriers, else
    float32.

  Raises:
    ValueError: `carrier` is not floating point or `tau` not positive.

  Example:
    >>> import jax.numpy as jnp
    >>> presence(jnp.array([[3.0, 4.0], [0.0, 0.0]]), tau=25.0)
    Array([0.5, 0. ], dtype=float32)

  Reference: docs/concepts.md, presence.
  """
  carrier = jnp.asarray(carrier)
  _checks.check_floating("carrier", carrier)
  _checks.check_rank("carrier", carrier, 1, "[..., n, d]")
  _checks.check_positive("tau", tau)

  h = carrier.astype(_numerics.wide_dtype(carrier))
  # A learnt τ may leave the range of the dtype: it stops at its ends.
  limits = jnp.finfo(h.dtype)
  root = jnp.sqrt(jnp.clip(jnp.asarray(tau, h.dtype), limits.tiny, limits.max))
  # In units of the larger of √τ and the largest entry no square overflows, and
  # none vanishes that matters. p does not depend on the unit: no derivative.
  largest = jnp.max(jnp.abs(h), axis=-1, initial=0)
  unit = lax.stop_gradient(jnp.maximum(root, largest))
  square = jnp.sum(jnp.square(h / unit[..., None]), axis=-1)
  return square / (jnp.square(root / unit) + square)


def calibrate_tau(
  carriers: jax.Array, *, presence: float = 0.999, quantile: float = 0.01
) -> float:
  r"""The :math:`\tau` that gives the present tokens of a sample a presence.

  .. math:: \tau = Q_q(\|h\|^2 : h \ne 0) \, (1 - p) / p

  Runs on the host, in float64; not for use inside jit.

  Args:
    carriers: Tokens, ``[..., n, d]``.
    presence: The presence wanted at the quantile, in (0, 1).
    quantile: Of the squared norms of the non-null tokens, in [0, 1].

  Returns:
    :math:`\tau`, in units of the squared norm.

  Raises:
    ValueError: Every carrier is null, one is not finite, or an argument is out
      of range.

  Example:
    >>> import jax.numpy as jnp
    >>> calibrate_tau(jnp.array([[2.0], [0.0]]), presence=0.5)
    4.0

  Reference: docs/concepts.md, calibrate_tau.
  """
  _checks.check_interval("presence", presence, 0, 1, "()")
  _checks.check_interval("quantile", quantile, 0, 1)
  squares = np.sum(np.square(np.asarray(carriers, np.float64)), axis=-1)
  if not np.all(np.isfinite(squares)):
    raise ValueError(
      f"carriers must be finite, got {np.sum(~np.isfinite(squares))} tokens of"
      " infinite or undefined norm."
    )
  squares = squares[squares > 0]
  if squares.size == 0:
    raise ValueError(
      f"carriers hold no present token, got shape {np.shape(carriers)}, all"
      " null: there is nothing to calibrate on."
    )
  return float(np.quantile(squares, quantile) * (1 - presence) / presence)


def presence_rank(
  presence: jax.Array, *, axis_name: AxisName | None = None
) -> jax.Array:
  """A token's index among the present: its position, gaps ignored.

  Nearly null tokens (p > 0) count; absent ones take the rank of the present
  token before them, or 0.

  Args:
    presence: ``[..., n]``; absent means exactly 0.
    axis_name: Mapped axis over which the tokens are split, in order; ranks then
      count the present tokens of the shards before.

  Returns:
    int32 ranks, ``[..., n]``.

  Example:
    >>> import jax.numpy as jnp
    >>> presence_rank(jnp.array([0.0, 0.9, 0.0, 0.2])).tolist()
    [0, 0, 0, 1]

  Reference: docs/concepts.md, presence_rank.
  """
  presence = jnp.asarray(presence)
  _checks.check_rank("presence", presence, 1, "[..., n]")
  count = jnp.cumsum(presence != 0, axis=-1, dtype=jnp.int32)
  if axis_name is not None:
    own = jnp.sum(presence != 0, axis=-1, dtype=jnp.int32)
    everyone = lax.all_gather(own, axis_name, axis=-1)
    before = jnp.arange(everyone.shape[-1]) < lax.axis_index(axis_name)
    earlier = jnp.sum(
      jnp.where(jnp.broadcast_to(before, everyone.shape), everyone, 0),
      axis=-1,
      keepdims=True,
      dtype=jnp.int32,
    )
    count = count + earlier
  return jnp.maximum(count - 1, 0)


def nullify(carrier: jax.Array, present: jax.Array) -> jax.Array:
  """Makes tokens null: zero where not present, even where a carrier is NaN.

  Args:
    carrier: Tokens, ``[..., n, d]``.
    present: Boolean, ``[..., n]`` or ``[n]``; True keeps the token.

  Returns:
    Tokens, ``[..., n, d]``, in the dtype of `carrier`.

  Raises:
    ValueError: `present` is not boolean or its shape does not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> h = jnp.array([[1.0, 2.0], [jnp.nan, 3.0]])
    >>> nullify(h, jnp.array([True, False])).tolist()
    [[1.0, 2.0], [0.0, 0.0]]

  Reference: docs/numerics.md, quarantine.
  """
  carrier = jnp.asarray(carrier)
  _checks.check_rank("carrier", carrier, 2, "[..., n, d]")
  present = _checks.per_token("present", present, carrier.shape[:-1])
  if present.dtype != jnp.bool_:
    raise ValueError(f"present must be boolean, got {present.dtype}.")
  return jnp.where(present[..., None], carrier, 0)
