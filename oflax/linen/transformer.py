"""A stack of blocks in which null tokens stay null."""

import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from oflax import _checks
from oflax import _compaction
from oflax import _presence
from oflax import _visibility
from oflax.linen import arrangements
from oflax.linen import cache
from oflax.linen import placement
from oflax.linen.block import SHARED
from oflax.linen.block import Fields
from oflax.linen.block import OBlock
from oflax.linen.cache import COLLECTION
from oflax.linen.calibration import CALIBRATING


class OTransformer(Fields):
  """A stack of OBlocks: OTransformer(H ⊕ 0) = OTransformer(H) ⊕ 0.

  Attributes:
    num_layers: Number of blocks.
    num_heads: Heads of the attention.
    mlp_dim: Hidden features of the feed-forward networks.
    final_norm: Whether an ONorm follows the last block.
    compact: Compute on the tokens that are not null, and only on them: exact
      to the bit however many nulls there are (see `oflax.compacted`). Needs
      variant="full". A call that records something, as intermediates, computes
      on all. Under `jax.vmap` every bucket would run: use batch axes instead.
    remat: Recompute each block in the backward pass, to save memory.
    scan_layers: Compile one block and scan over it; its variables are under
      "blocks" with a leading layer axis (see `stack_blocks`).

  The other fields are those of `OBlock`.

  Raises:
    ValueError: Fields that do not fit, named with their values.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> h = jnp.array([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])
    >>> model = OTransformer(num_layers=2, num_heads=2, mlp_dim=4)
    >>> variables = model.init(jax.random.key(0), h)
    >>> out = model.apply(variables, h)
    >>> alone = model.apply(variables, h[jnp.array([0, 2])])
    >>> out[1].tolist(), bool(jnp.allclose(out[0], alone[0], atol=1e-6))
    ([0.0, 0.0], True)

  Reference: docs/concepts.md, OTransformer.
  """

  num_layers: int
  num_heads: int
  mlp_dim: int
  _: dataclasses.KW_ONLY
  final_norm: bool = False
  compact: bool = False
  remat: bool = False
  scan_layers: bool = False

  @nn.compact
  def __call__(
    self,
    carriers: jax.Array,
    *,
    mask: jax.Array | None = None,
    positions: jax.Array | None = None,
    segments: jax.Array | None = None,
    deterministic: bool | None = None,
    sow_weights: bool = False,
  ) -> jax.Array:
    """Maps ``[..., n, d]`` to ``[..., n, d]``.

    Args:
      carriers: Tokens, ``[..., n, d]``.
      mask: Boolean, True = visible, ``[n, n]`` or ``[..., N, n, n]``.
      positions: ``[..., n]``, for rotary, causal order and window; default: the
        presence ranks of the input carriers (host: indices), for every layer.
      segments: ``[..., n]``; tokens of unequal segments do not see each other.
      deterministic: Whether dropout is off; default: the field, or True.
      sow_weights: Sow the attention weights into "intermediates".

    Returns:
      Carriers, ``[..., n, d]``.
    """
    self.check()
    if self.compact and not (self.variant == "full" and self.closed):
      raise ValueError(
        f'compact=True needs variant="full", got {self.variant!r}: the others'
        " are not closed."
      )
    if self.num_layers < 0:
      raise ValueError(
        f"num_layers must not be negative, got {self.num_layers!r}."
      )
    carriers = jnp.asarray(carriers)
    _checks.check_rank("carriers", carriers, 2, "[..., n, d]")
    if deterministic is None:
      deterministic = self.deterministic is not False
    if self.compact and not any(map(self.is_mutable_collection, _LAYERED)):
      return self._on_present(
        carriers, mask, positions, segments, deterministic
      )
    recording = any(map(self.is_mutable_collection, _LAYERED))
    if positions is None or self.decode:
      presence = _presence.presence(carriers)
      if self.variant == "host" or not self.closed:
        presence = jnp.ones_like(presence)
      ranks = _presence.presence_rank(presence)
      if self.decode:
        ranks = cache.ranks_after(presence, self._seen(presence))
      positions = ranks if positions is None else positions
    # What is recorded is of the tokens as they came.
    arrangement = arrangements.Arrangement(0)
    if not (recording or self.decode):
      arrangement = arrangements.of_context(
        carriers.shape[-2],
        causal=self.is_causal,
        closed=self.closed and self.variant == "full",
      )
    count = carriers.shape[-2]
    carriers, mask, positions, segments = arrangement.arrange(
      carriers, mask, positions, segments
    )

    def apply_block(block: OBlock, h: jax.Array) -> jax.Array:
      return block(
        h,
        mask=mask,
        positions=positions,
        segments=segments,
        deterministic=deterministic,
        sow_weights=sow_weights,
      )

    if self.remat:
      apply_block = nn.remat(apply_block, prevent_cse=not self.scan_layers)
    h = placement.constrain(carriers)
    if self.scan_layers:
      h, _ = nn.scan(
        lambda block, h, _: (apply_block(block, h), None),
        variable_axes={name: 0 for name in _LAYERED},
        split_rngs={"params": True, "dropout": True},
        length=self.num_layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
      )(self.block("blocks"), h, None)
    else:
      for i in range(self.num_layers):
        h = apply_block(self.block(f"block_{i}"), h)
    if self.final_norm:
      h = self.make_norm("final_norm")(h)
    return arrangement.restore(h, count)

  def _on_present(
    self,
    carriers: jax.Array,
    mask: jax.Array | None,
    positions: jax.Array | None,
    segments: jax.Array | None,
    deterministic: bool,
  ) -> jax.Array:
    """The same map of the tokens that are not null, by `oflax.compacted`."""
    tokens = carriers.shape[:-1]
    if positions is not None:
      positions = _checks.per_token("positions", positions, tokens)
    if segments is not None:
      segments = _checks.per_token("segments", segments, tokens)
    if mask is not None:
      n = tokens[-1]
      mask = jnp.asarray(mask)
      _visibility.pairwise("mask", mask, (*tokens[:-1], self.num_heads, n, n))
    rngs = {}
    if self.dropout_rate and not deterministic:
      rngs["dropout"] = self.make_rng("dropout")
    model = self.clone(parent=None, name=None, compact=False)
    variables = self.variables

    def run(h: jax.Array, place: jax.Array, *aligned: Any) -> jax.Array:
      outputs: Any = model.apply(
        variables,
        h,
        mask=None if mask is None else _visibility.taken(mask, place),
        positions=aligned[0],
        segments=aligned[1],
        deterministic=deterministic,
        rngs=rngs,
      )
      return outputs

    place = jnp.broadcast_to(jnp.arange(tokens[-1]), tokens)
    return _compaction.compacted(run)(carriers, place, positions, segments)

  def _seen(self, presence: jax.Array) -> jax.Array:
    """How many tokens came in earlier calls, ``[...]``; counts these."""
    batch = presence.shape[:-1]
    initialised = self.has_variable(COLLECTION, "index")
    index = self.variable(COLLECTION, "index", jnp.zeros, batch, jnp.int32)
    seen: jax.Array = index.value
    if initialised:
      index.value = seen + jnp.sum(presence != 0, axis=-1, dtype=jnp.int32)
    return seen

  @nn.nowrap
  def block(self, name: str | None = None) -> OBlock:
    """A block of the stack: a part of it inside its call, else on its own."""
    return OBlock(
      num_heads=self.num_heads,
      mlp_dim=self.mlp_dim,
      name=name,
      **self.shared(*SHARED),
    )


# The collections whose variables have one entry a layer under scan.
_LAYERED = ("params", "calibration", "intermediates", CALIBRATING, COLLECTION)
