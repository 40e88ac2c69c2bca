"""Attention whose queries grow with the number of sources."""

from flax import linen as nn
import jax
import jax.numpy as jnp

import oflax
from oflax import _rotary


class ScaledAttention(nn.Module):
  r"""OAttention without biases, its queries scaled by what there is to see.

  .. math:: q \leftarrow q \cdot \mathrm{base}(\log n) \cdot
     (1 + \tanh(\mathrm{query}(q))), \quad n = \max(1, \sum_j p_j)

  A null source counts for nothing in n; with every source present n is their
  number, as in the ordinary network.

  Attributes:
    num_heads: Heads of the queries.
    kv_heads: Of keys and values: how many the first S receivers use, which are
      the sources themselves, and how many the others; default: `num_heads`.
    scaling_features: Hidden features of the scaling; None: no scaling.
    implementation: As in `oflax.o_attention`.
  """

  num_heads: int
  kv_heads: tuple[int, int] | None = None
  scaling_features: int | None = None
  implementation: str | None = None

  @nn.compact
  def __call__(
    self,
    receivers: jax.Array,
    sources: jax.Array,
    receiver_presence: jax.Array,
    source_presence: jax.Array,
    *,
    angles: tuple[jax.Array, jax.Array] | None = None,
  ) -> jax.Array:
    """Maps ``[..., T, d]`` or ``[T, d]``, and ``[..., S, d]``, to the first.

    Args:
      receivers: Normed, with the batch axes of `sources` or none.
      sources: Normed.
      receiver_presence: ``[..., T]`` or ``[T]``.
      source_presence: ``[..., S]``.
      angles: Of the rotary positions of receivers and of sources.
    """
    features = receivers.shape[-1]
    head = features // self.num_heads
    kv_heads, kv_heads_test = self.kv_heads or (self.num_heads, self.num_heads)

    def project(name: str, heads: int, tokens: jax.Array) -> jax.Array:
      shape = (heads, head)
      return nn.DenseGeneral(shape, use_bias=False, name=name)(tokens)

    query = project("query", self.num_heads, receivers)
    key = project("key", kv_heads, sources)
    value = project("value", kv_heads, sources)
    query = self._scaled(query, source_presence)
    if angles is not None:
      query, key = map(_rotary.turn, (query, key), angles)

    def attend(part: slice, heads: int) -> jax.Array:
      outputs = oflax.o_attention(
        query[..., part, :, :],
        key[..., :heads, :],
        value[..., :heads, :],
        receiver_presence[..., part],
        source_presence,
        implementation=self.implementation,
      )
      assert isinstance(outputs, jax.Array)  # Says the type, as no support is.
      return outputs

    if kv_heads_test == kv_heads:
      mean = attend(slice(None), kv_heads)
    else:
      train, test = slice(sources.shape[-2]), slice(sources.shape[-2], None)
      parts = (attend(train, kv_heads), attend(test, kv_heads_test))
      mean = jnp.concatenate(parts, axis=-3)
    # Without a bias the gate may as well come before the projection.
    return nn.DenseGeneral(features, axis=(-2, -1), use_bias=False, name="out")(
      mean
    )

  def _scaled(self, query: jax.Array, source_presence: jax.Array) -> jax.Array:
    """The queries, with the batch axes of the sources."""
    batch = source_presence.shape[:-1]
    *_, heads, head = query.shape
    scaled = self.scaling_features is not None
    if scaled:
      query = query * (1 + jnp.tanh(self._two_layers("query_mlp", query, head)))
    query = jnp.broadcast_to(query, (*batch, *query.shape[-3:]))
    if not scaled:
      return query
    count = jnp.sum(source_presence, axis=-1, keepdims=True)
    log_count = jnp.log(jnp.maximum(count, 1))
    base = self._two_layers("base_mlp", log_count, heads * head)
    return query * base.reshape(*batch, 1, heads, head)

  def _two_layers(self, name: str, x: jax.Array, features: int) -> jax.Array:
    hidden = nn.Dense(self.scaling_features or 0, name=f"{name}_up")(x)
    hidden = nn.gelu(hidden, approximate=False)
    # Untrained, the base is about 1: queries are what they are.
    bias = nn.initializers.ones if name == "base_mlp" else nn.initializers.zeros
    return nn.Dense(features, bias_init=bias, name=f"{name}_down")(hidden)
