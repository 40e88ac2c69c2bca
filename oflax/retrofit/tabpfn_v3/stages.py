"""The stages before learning in context: columns, then rows."""

from collections.abc import Callable

from flax import linen as nn
import jax
import jax.numpy as jnp

from oflax import _presence
from oflax.retrofit.tabpfn_v3.blocks import CrossBlock
from oflax.retrofit.tabpfn_v3.blocks import Part
from oflax.retrofit.tabpfn_v3.blocks import SelfBlock

# What is part of a model, but not learnt.
CONSTANTS = "constants"


def constant(
  module: nn.Module, name: str, initial: Callable[[], jax.Array]
) -> jax.Array:
  """A variable of the collection "constants"; its initial value without it."""
  known = module.has_variable(CONSTANTS, name)
  if known or module.is_mutable_collection(CONSTANTS):
    value: jax.Array = module.variable(CONSTANTS, name, initial).value
    return value
  return initial()


class ColumnEmbedder(Part):
  """The rows of a column meet through a few vectors that see train rows."""

  @nn.compact
  def __call__(self, cells: jax.Array, num_train: int) -> jax.Array:
    """Maps ``[..., C, R, E]`` to the same shape."""
    config = self.config
    shape = (config.dist_embed_num_inducing_points, config.embed_dim)
    for i in range(config.dist_embed_num_blocks):
      vectors = self.param(
        f"inducing_vectors_{i}", nn.initializers.normal(0.02), shape
      )
      gather, scatter = (
        self.part(
          CrossBlock,
          f"{name}_{i}",
          num_heads=config.dist_embed_num_heads,
          scaled=name == "gather",
        )
        for name in ("gather", "scatter")
      )
      cells = scatter(cells, gather(vectors, cells[..., :num_train, :]))
    return cells


class RowEmbedder(Part):
  """The columns of a row meet, and a few CLS tokens sum them up."""

  @nn.compact
  def __call__(
    self,
    cells: jax.Array,
    row_present: jax.Array | None,
    column_present: jax.Array | None,
  ) -> jax.Array:
    """Maps ``[..., R, C, E]`` to ``[..., R, K · E]``."""
    config = self.config
    num_cls = config.feat_agg_num_cls_tokens
    batch = cells.shape[:-2]
    cls_tokens = self.param(
      "cls_tokens", nn.initializers.normal(0.02), (num_cls, config.embed_dim)
    )
    tokens = jnp.broadcast_to(cls_tokens, (*batch, *cls_tokens.shape))
    if row_present is not None:
      present = jnp.broadcast_to(row_present[..., None], (*batch, num_cls))
      tokens = _presence.nullify(tokens, present)
    tokens = jnp.concatenate([tokens, cells], axis=-2)

    angles = self._angles(cells, column_present) if config.use_rope else None
    for i in range(config.feat_agg_num_blocks):
      last = i == config.feat_agg_num_blocks - 1
      block = self.part(
        SelfBlock,
        f"block_{i}",
        num_heads=config.feat_agg_num_heads,
        num_special=num_cls,
      )
      receivers = num_cls if last else None
      tokens = block(tokens, num_receivers=receivers, angles=angles)
    presence = self.presence("output_presence", tokens)
    tokens = self.norm("output_norm", tokens, presence)
    return tokens.reshape(*batch, config.row_dim)

  def _angles(
    self, cells: jax.Array, column_present: jax.Array | None
  ) -> jax.Array:
    """Of rotary positions, ranks among the present: ``[..., 1, n, 1, H/2]``."""
    config = self.config
    head = config.embed_dim // config.feat_agg_num_heads

    def initial() -> jax.Array:
      exponents = -jnp.arange(0, head, 2, dtype=jnp.float32) / head
      return jnp.asarray(config.feat_agg_rope_base, jnp.float32) ** exponents

    frequency = constant(self, "frequencies", initial)
    num_cls, num_columns = config.feat_agg_num_cls_tokens, cells.shape[-2]
    if column_present is None:
      column_present = jnp.ones((*cells.shape[:-3], num_columns), bool)
    rank = num_cls + _presence.presence_rank(column_present)
    cls = jnp.broadcast_to(jnp.arange(num_cls), (*rank.shape[:-1], num_cls))
    position = jnp.concatenate([cls, rank], axis=-1).astype(frequency.dtype)
    position = position[..., None, :, None, None]
    shape = (*position.shape[:-1], frequency.size)
    return position * jnp.broadcast_to(frequency, shape)
