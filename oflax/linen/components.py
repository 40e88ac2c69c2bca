"""The O-components as modules."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from flax.typing import Dtype
from flax.typing import Initializer
from flax.typing import PrecisionLike
import jax
import jax.numpy as jnp

from oflax import _checks
from oflax import _components
from oflax import _statistics
from oflax.linen.presence import WithPresence


class OInject(WithPresence):
  """Adds outside information to present tokens: h + p · u.

  Attributes:
    tau: Threshold of the presence, in units of the squared norm.
    learnable_tau: Whether it is a parameter.

  Example:
    >>> import jax.numpy as jnp
    >>> h = jnp.array([[1.0], [0.0]])
    >>> OInject().apply({}, h, jnp.ones((2, 1))).tolist()
    [[1.5], [0.0]]

  Reference: docs/concepts.md, OInject.
  """

  @nn.compact
  def __call__(
    self,
    carrier: jax.Array,
    signal: jax.Array,
    *,
    presence: jax.Array | None = None,
  ) -> jax.Array:
    """Maps ``[..., n, d]``, and a signal that fits it, to ``[..., n, d]``."""
    presence = self.own_presence(carrier, presence)
    return _components.o_inject(carrier, signal, presence)


class ONorm(WithPresence):
  """Layer or root-mean-square normalisation, gated: p · Norm(h).

  Parameters "scale" and "bias", as flax.linen.LayerNorm names them.

  Attributes:
    kind: "layer" or "rms".
    epsilon: Added to the variance.
    dtype: Of the output; default: that of the carrier.
    param_dtype: Of the parameters.
    use_bias: Whether there is a bias.
    use_scale: Whether there is a scale.
    bias_init: Initialiser of the bias.
    scale_init: Initialiser of the scale.
    tau: Threshold of the presence, in units of the squared norm.
    learnable_tau: Whether it is a parameter.

  Raises:
    ValueError: Unknown `kind`, or `epsilon` not positive.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> h = jnp.array([[8.0, -8.0], [0.0, 0.0]])
    >>> norm = ONorm(tau=1e-3)
    >>> norm.apply(norm.init(jax.random.key(0), h), h).round(3).tolist()
    [[1.0, -1.0], [0.0, 0.0]]

  Reference: docs/concepts.md, ONorm.
  """

  kind: str = "layer"
  epsilon: float = 1e-6
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  use_bias: bool = True
  use_scale: bool = True
  bias_init: Initializer = nn.initializers.zeros
  scale_init: Initializer = nn.initializers.ones

  @nn.compact
  def __call__(
    self, carrier: jax.Array, *, presence: jax.Array | None = None
  ) -> jax.Array:
    """Maps ``[..., n, d]`` to ``[..., n, d]``."""
    carrier = jnp.asarray(carrier)
    presence = self.own_presence(carrier, presence)
    scale = bias = None
    if self.use_scale:
      scale = self.param(
        "scale", self.scale_init, carrier.shape[-1:], self.param_dtype
      )
    if self.use_bias:
      bias = self.param(
        "bias", self.bias_init, carrier.shape[-1:], self.param_dtype
      )
    normed = _components.o_norm(
      carrier,
      presence,
      kind=self.kind,
      scale=scale,
      bias=bias,
      epsilon=self.epsilon,
    )
    return normed.astype(self.dtype or carrier.dtype)


class OFFN(WithPresence):
  """A feed-forward network of two layers, gated by presence: p · FFN(h).

  Layers "up" and "down", and for the gated form "gate": the update is
  down(activation(up(h))) or down(activation(gate(h)) · up(h)).

  Attributes:
    hidden_features: Width between the layers.
    gated: Whether the hidden layer is a gated linear unit.
    activation: Between the layers.
    dtype: Of the computation; default: that of carrier and parameters.
    param_dtype: Of the parameters.
    kernel_init: Initialiser of the kernels.
    bias_init: Initialiser of the biases.
    use_bias: Whether the layers have biases.
    precision: Of the matrix products.
    dropout_rate: Share of the update dropped, in [0, 1).
    deterministic: Whether dropout is off.
    tau: Threshold of the presence, in units of the squared norm.
    learnable_tau: Whether it is a parameter.

  Raises:
    ValueError: `dropout_rate` or `hidden_features` out of range.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> h = jnp.array([[1.0, 2.0], [0.0, 0.0]])
    >>> ffn = OFFN(8, bias_init=jax.nn.initializers.ones)
    >>> out, _ = ffn.init_with_output(jax.random.key(0), h)
    >>> out[1].tolist()
    [0.0, 0.0]

  Reference: docs/concepts.md, OFFN; Shazeer 2020 for the gated form.
  """

  hidden_features: int
  gated: bool = False
  activation: Callable[[jax.Array], jax.Array] = nn.gelu
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  kernel_init: Initializer = nn.linear.default_kernel_init
  bias_init: Initializer = nn.initializers.zeros
  use_bias: bool = True
  precision: PrecisionLike = None
  dropout_rate: float = 0.0
  deterministic: bool | None = None

  @nn.compact
  def __call__(
    self,
    carrier: jax.Array,
    *,
    presence: jax.Array | None = None,
    deterministic: bool | None = None,
  ) -> jax.Array:
    """Maps ``[..., n, d]`` to ``[..., n, d]``."""
    _checks.check_interval("dropout_rate", self.dropout_rate, 0, 1, "[)")
    if self.hidden_features < 1:
      raise ValueError(
        f"hidden_features must be at least 1, got {self.hidden_features!r}."
      )
    carrier = jnp.asarray(carrier)
    presence = self.own_presence(carrier, presence)
    return _components.o_ffn(
      carrier, presence, lambda h: self._network(h, deterministic)
    ).astype(self.dtype or carrier.dtype)

  def _network(self, h: jax.Array, deterministic: bool | None) -> jax.Array:
    features = h.shape[-1]
    up = self._dense(self.hidden_features, "up")(h)
    if self.gated:
      gate = self._dense(self.hidden_features, "gate")(h)
      hidden = self.activation(gate) * up
    else:
      hidden = self.activation(up)
    update = self._dense(features, "down")(hidden)
    return branch_dropout(self, update, deterministic)

  def _dense(self, features: int, name: str) -> nn.Dense:
    return nn.Dense(
      features,
      use_bias=self.use_bias,
      dtype=self.dtype,
      param_dtype=self.param_dtype,
      precision=self.precision,
      kernel_init=self.kernel_init,
      bias_init=self.bias_init,
      name=name,
    )


class OStandardize(WithPresence):
  """Standardises every feature over the tokens, each by its presence.

  Attributes:
    epsilon: Added to the variance.
    tau: Threshold of the presence, in units of the squared norm.
    learnable_tau: Whether it is a parameter.

  Example:
    >>> import jax.numpy as jnp
    >>> h = jnp.array([[-3.0], [-1.0], [0.0]])
    >>> OStandardize(tau=1e-6).apply({}, h).round(3).tolist()
    [[-1.0], [1.0], [0.0]]

  Reference: docs/concepts.md, OStandardize.
  """

  epsilon: float = 1e-6

  @nn.compact
  def __call__(
    self, values: jax.Array, *, presence: jax.Array | None = None
  ) -> jax.Array:
    """Maps ``[..., n, d]`` to ``[..., n, d]``."""
    presence = self.own_presence(values, presence)
    return _statistics.o_standardize(values, presence, epsilon=self.epsilon)


class OPool(WithPresence):
  """The mean over the tokens, each by its presence.

  Attributes:
    tau: Threshold of the presence, in units of the squared norm.
    learnable_tau: Whether it is a parameter.

  Example:
    >>> import jax.numpy as jnp
    >>> OPool().apply({}, jnp.array([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [2.0, 0.0]

  Reference: docs/concepts.md, OPool.
  """

  @nn.compact
  def __call__(
    self, values: jax.Array, *, presence: jax.Array | None = None
  ) -> jax.Array:
    """Maps ``[..., n, d]`` to ``[..., d]``."""
    return _statistics.o_pool(values, self.own_presence(values, presence))


def branch_dropout(
  module: Any, update: jax.Array, deterministic: bool | None
) -> jax.Array:
  """Dropout of a residual branch by the fields of `module`; zeros stay zero."""
  if module.dropout_rate == 0:
    return update
  deterministic = nn.merge_param(
    "deterministic", module.deterministic, deterministic
  )
  return nn.Dropout(module.dropout_rate)(update, deterministic=deterministic)
