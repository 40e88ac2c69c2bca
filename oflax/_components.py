"""Maps of single tokens, gated by presence, and what keeps them closed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from oflax import _checks
from oflax import _numerics

NORMS = ("layer", "rms")


def o_gate(update: jax.Array, presence: jax.Array) -> jax.Array:
  r"""Closes a token-local map: what a token emits, times its presence.

  .. math:: p_i \cdot u_i

  Args:
    update: What each token emits, ``[..., n, d]``, finite with finite
      derivatives at null tokens (non-finite values there count as 0).
    presence: ``[..., n]`` or ``[n]``.

  Returns:
    ``[..., n, d]`` in the dtype of `update`; exactly 0 where `presence` is 0.

  Raises:
    ValueError: The shapes do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> o_gate(jnp.array([[2.0], [7.0]]), jnp.array([0.5, 0.0])).tolist()
    [[1.0], [0.0]]

  Reference: docs/concepts.md, OFFN.
  """
  update, p = _checks.carriers_and_presence("update", update, presence)
  return _numerics.gate(update, p).astype(update.dtype)


def o_ffn(
  carrier: jax.Array,
  presence: jax.Array,
  ffn: Callable[[jax.Array], jax.Array],
) -> jax.Array:
  r"""A token-local network, biases included, gated by presence.

  .. math:: p_i \cdot \mathrm{FFN}(h_i)

  Args:
    carrier: Tokens, ``[..., n, d]``.
    presence: ``[..., n]`` or ``[n]``.
    ffn: Token-local callable, ``[..., n, d] -> [..., n, d']``.

  Returns:
    ``[..., n, d']`` in the dtype of `carrier`.

  Raises:
    ValueError: The shapes do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> h = jnp.array([[2.0], [0.0]])
    >>> o_ffn(h, jnp.array([1.0, 0.0]), lambda h: 3 * h + 1).tolist()
    [[7.0], [0.0]]

  Reference: docs/concepts.md, OFFN.
  """
  carrier, p = _checks.carriers_and_presence("carrier", carrier, presence)
  update = ffn(_numerics.quarantine_input(carrier, p))
  return _numerics.gate(update, p).astype(carrier.dtype)


def o_norm(
  carrier: jax.Array,
  presence: jax.Array,
  *,
  kind: str = "layer",
  scale: jax.Array | None = None,
  bias: jax.Array | None = None,
  epsilon: float = 1e-6,
) -> jax.Array:
  r"""Layer or root-mean-square normalisation, gated by presence.

  .. math:: p_i \cdot \left(\gamma \, \frac{h_i - \mu_i}{\sqrt{\sigma_i^2
     + \epsilon}} + \beta\right)

  with :math:`\mu_i = 0` and :math:`\sigma_i^2` the mean square for "rms".

  Args:
    carrier: Tokens, ``[..., n, d]``.
    presence: ``[..., n]`` or ``[n]``.
    kind: "layer" or "rms".
    scale: :math:`\gamma`, ``[d]``, or None for 1.
    bias: :math:`\beta`, ``[d]``, or None for 0.
    epsilon: Positive, in units of the variance.

  Returns:
    ``[..., n, d]`` in the dtype of `carrier`.

  Raises:
    ValueError: Unknown `kind`, `epsilon` not positive, shapes that do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> h = jnp.array([[1.0, -1.0], [0.0, 0.0]])
    >>> o_norm(h, jnp.array([1.0, 0.0]), bias=jnp.ones(2)).round(3).tolist()
    [[2.0, 0.0], [0.0, 0.0]]

  Reference: docs/concepts.md, ONorm; Ba et al. 2016, Zhang and Sennrich 2019.
  """
  _checks.check_choice("kind", kind, NORMS)
  _checks.check_positive("epsilon", epsilon)
  carrier, p = _checks.carriers_and_presence("carrier", carrier, presence)

  h = _numerics.quarantine(carrier, p)
  h = h.astype(_numerics.wide_dtype(h))
  unit = _numerics.square_unit(h, axis=-1)
  h = h / unit
  if kind == "layer":
    h = h - jnp.mean(h, axis=-1, keepdims=True)
  variance = jnp.mean(jnp.square(h), axis=-1, keepdims=True)
  h = h * _numerics.inverse_root(variance, epsilon, unit)
  if scale is not None:
    h = h * _per_feature("scale", scale, h)
  if bias is not None:
    h = h + _per_feature("bias", bias, h)
  return _numerics.gate(h, p).astype(carrier.dtype)


def o_inject(
  carrier: jax.Array, signal: jax.Array, presence: jax.Array
) -> jax.Array:
  r"""Outside information (positions, types, targets) for present tokens only.

  .. math:: h_i + p_i \cdot u_i

  Args:
    carrier: Tokens, ``[..., n, d]``.
    signal: :math:`u`, of the shape of `carrier` or broadcasting to it.
    presence: ``[..., n]`` or ``[n]``.

  Returns:
    ``[..., n, d]`` in the dtype of `carrier`.

  Raises:
    ValueError: The shapes do not fit.

  Example:
    >>> import jax.numpy as jnp
    >>> h = jnp.array([[2.0], [0.0]])
    >>> o_inject(h, jnp.array([[1.0], [1.0]]), jnp.array([0.5, 0.0])).tolist()
    [[2.5], [0.0]]

  Reference: docs/concepts.md, OInject.
  """
  carrier, p = _checks.carriers_and_presence("carrier", carrier, presence)
  signal = jnp.asarray(signal)
  try:
    signal = jnp.broadcast_to(signal, carrier.shape)
  except ValueError:
    raise ValueError(
      f"signal of shape {signal.shape} does not broadcast to the carrier's"
      f" {carrier.shape}."
    ) from None
  carrier = _numerics.quarantine(carrier, p)
  return (carrier + _numerics.gate(signal, p)).astype(carrier.dtype)


def residual(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  """Adds the input to a map, h + fn(h): closed if fn is.

  Args:
    fn: ``(carrier, ...) -> update`` of the carrier's shape.

  Returns:
    ``(carrier, ...) -> carrier``, passing further arguments on to `fn`.

  Example:
    >>> residual(lambda h: 2 * h)(1.0)
    3.0

  Reference: docs/concepts.md, closures.
  """

  def with_residual(carrier: Any, *args: Any, **kwargs: Any) -> Any:
    return carrier + fn(carrier, *args, **kwargs)

  return with_residual


def compose(*fns: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """Applies functions in turn, the first one first: closed if each is.

  Args:
    *fns: Maps of carriers to carriers; none is the identity.

  Returns:
    The composition, ``compose(f, g)(h) == g(f(h))``.

  Example:
    >>> compose(lambda h: h + 1, lambda h: 2 * h)(1.0)
    4.0

  Reference: docs/concepts.md, closures.
  """

  def composed(carrier: Any) -> Any:
    for fn in fns:
      carrier = fn(carrier)
    return carrier

  return composed


def _per_feature(name: str, value: Any, like: jax.Array) -> jax.Array:
  value = jnp.asarray(value)
  if value.shape != like.shape[-1:]:
    raise ValueError(
      f"{name} must have shape {like.shape[-1:]}, got {value.shape}."
    )
  return jnp.broadcast_to(value.astype(like.dtype), like.shape)
