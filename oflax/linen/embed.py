"""OEmbed: ids to carriers, with ids that are null."""

from flax import linen as nn
from flax.typing import Dtype
from flax.typing import Initializer
import jax
import jax.numpy as jnp
import numpy as np


class OEmbed(nn.Module):
  """Looks up carriers; `null_id` and negative ids give exact zeros.

  Parameter "embedding", as flax.linen.Embed names it. Under jit an id out of
  range gives NaN, which is not absence.

  Attributes:
    num_embeddings: Number of ids.
    features: Width of a carrier.
    null_id: The id of the null token (padding).
    dtype: Of the carriers; default: that of the parameters.
    param_dtype: Of the parameters.
    embedding_init: Initialiser of the table.

  Raises:
    ValueError: The ids are not integers or, eagerly, one is out of range.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> embed = OEmbed(10, 2, embedding_init=jax.nn.initializers.ones)
    >>> ids = jnp.array([3, 0, -1])
    >>> embed.init_with_output(jax.random.key(0), ids)[0].tolist()
    [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]

  Reference: docs/concepts.md, OEmbed.
  """

  num_embeddings: int
  features: int
  null_id: int = 0
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  embedding_init: Initializer = nn.linear.default_embed_init

  @nn.compact
  def __call__(self, ids: jax.Array) -> jax.Array:
    """Maps integer ids ``[..., n]`` to carriers ``[..., n, features]``."""
    ids = jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
      raise ValueError(f"ids must be integers, got {ids.dtype}.")
    if not isinstance(ids, jax.core.Tracer) and ids.size:
      found = np.asarray(ids)
      largest = int(np.max(found, where=found != self.null_id, initial=-1))
      if largest >= self.num_embeddings:
        raise ValueError(
          f"ids must be below num_embeddings={self.num_embeddings}, got"
          f" {largest}."
        )
    table = self.param(
      "embedding",
      self.embedding_init,
      (self.num_embeddings, self.features),
      self.param_dtype,
    )
    (table,) = nn.dtypes.promote_dtype(table, dtype=self.dtype, inexact=False)
    null = (ids == self.null_id) | (ids < 0)
    # Nulls look up row 0, so that no id out of range reaches the table.
    carrier = jnp.take(table, jnp.where(null, 0, ids), axis=0, mode="fill")
    return jnp.where(null[..., None], 0, carrier)

  def attend(self, carrier: jax.Array) -> jax.Array:
    """Maps carriers ``[..., n, features]`` to scores ``[..., n, ids]``."""
    table: jax.Array = self.get_variable("params", "embedding")
    carrier, table = nn.dtypes.promote_dtype(carrier, table, dtype=self.dtype)
    scores: jax.Array = carrier @ table.T
    return scores
