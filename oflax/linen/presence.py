"""OPresence, and the base of every module that may own one."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from oflax import _checks
from oflax import _presence


class OPresence(nn.Module):
  """The presence of carriers, with a threshold τ that never recompiles.

  τ is the variable "tau" of the collection "calibration" (without it, at apply,
  the field) or, if learnable, exp of the parameter "log_tau". The presence is
  sown as "presence" into "intermediates".

  Attributes:
    tau: Initial threshold, in units of the squared norm.
    learnable: Whether τ is a parameter.

  Raises:
    ValueError: `tau` is not positive.

  Example:
    >>> import jax.numpy as jnp
    >>> module = OPresence(tau=25.0)
    >>> module.apply({}, jnp.array([[3.0, 4.0], [0.0, 0.0]]))
    Array([0.5, 0. ], dtype=float32)

  Reference: docs/concepts.md, presence.
  """

  tau: float = 1.0
  learnable: bool = False

  @nn.compact
  def __call__(self, carrier: jax.Array) -> jax.Array:
    """Maps carriers ``[..., n, d]`` to presences ``[..., n]``."""
    _checks.check_positive("tau", self.tau)
    present = _presence.presence(carrier, self._tau())
    self.sow("intermediates", "presence", present)
    return present

  def _tau(self) -> jax.Array:
    def initial(*_: jax.Array) -> jax.Array:
      return jnp.asarray(self.tau, jnp.float32)

    if self.learnable:
      log_tau = self.param("log_tau", lambda key: jnp.log(initial(key)))
      return jnp.exp(log_tau)
    known = self.has_variable("calibration", "tau")
    if known or self.is_mutable_collection("calibration"):
      return self.variable("calibration", "tau", initial).value
    return initial()


class WithPresence(nn.Module, kw_only=True):
  """A module that computes presence of its own unless it is passed one.

  Attributes:
    tau: Threshold of the presence, in units of the squared norm.
    learnable_tau: Whether it is a parameter.
    closed: If False, every token counts as present: the ordinary counterpart of
      the module, on the same variables.
  """

  tau: float = 1.0
  learnable_tau: bool = False
  closed: bool = True

  def own_presence(
    self,
    carrier: jax.Array,
    presence: jax.Array | None,
    name: str = "presence",
  ) -> jax.Array:
    """`presence` if given, else that of `carrier`; 1 if not closed."""
    if presence is None:
      presence = OPresence(self.tau, self.learnable_tau, name=name)(carrier)
    return presence if self.closed else jnp.ones_like(presence)
