"""TabPFN v3: cells, then columns, then rows, then learning in context."""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from oflax import _checks
from oflax import _components
from oflax import _presence
from oflax.linen import OInject
from oflax.retrofit.tabpfn_v3 import table
from oflax.retrofit.tabpfn_v3.bar_distribution import default_borders
from oflax.retrofit.tabpfn_v3.blocks import VARIANTS
from oflax.retrofit.tabpfn_v3.blocks import Part
from oflax.retrofit.tabpfn_v3.blocks import SelfBlock
from oflax.retrofit.tabpfn_v3.stages import ColumnEmbedder
from oflax.retrofit.tabpfn_v3.stages import RowEmbedder
from oflax.retrofit.tabpfn_v3.stages import constant


class TabPFNV3(Part):
  """A TabPFN v3 regressor: from a table and its targets to distributions.

  Absent rows and columns enter as null tokens, and one tree of variables serves
  three variants:

  - "full": every component is closed. What is absent changes nothing: the
    result is that of the table without it, whatever its cells hold.
  - "attention": attention is closed, and the other components are the host's.
    What is absent enters as null tokens, and is left out of the statistics.
  - "host": the ordinary network. It knows no absence, only missing values: the
    cells and targets of what is absent count as NaN.

  "params" are learnt, "calibration" has the thresholds of the presences, and
  "constants" the "borders" of the buckets and the rotary frequencies.

  Attributes:
    config: The shape of the network.
    variant: "host", "attention" or "full".
    tau: Initial threshold of every presence.
    implementation: Of attention, as in `oflax.o_attention`.

  Raises:
    ValueError: An unknown variant, or arguments that do not fit.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from oflax.retrofit.tabpfn_v3 import V3Config
    >>> config = V3Config(
    ...   num_buckets=10,
    ...   embed_dim=8,
    ...   nlayers=1,
    ...   icl_num_heads=2,
    ...   dist_embed_num_blocks=1,
    ...   dist_embed_num_heads=2,
    ...   dist_embed_num_inducing_points=4,
    ...   feat_agg_num_blocks=1,
    ...   feat_agg_num_heads=2,
    ... )
    >>> x, y = jnp.ones((5, 3)), jnp.ones(4)  # 4 train rows, 1 test row
    >>> module = TabPFNV3(config, "full")
    >>> init = jax.jit(module.init_with_output)
    >>> logits, variables = init(jax.random.key(0), x, y)
    >>> logits.shape, sorted(variables)
    ((1, 10), ['calibration', 'constants', 'params'])

  Reference: docs/concepts.md; the network is that of Prior Labs' TabPFN-3,
    arXiv 2605.13986. Its weights carry a licence of their own.
  """

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    y: jax.Array,
    *,
    row_present: jax.Array | None = None,
    column_present: jax.Array | None = None,
  ) -> jax.Array:
    """Predicts the targets of the test rows.

    Args:
      x: The table, ``[..., R, C]``, train rows first; NaN and ±inf allowed, but
        the squares of finite cells must not overflow.
      y: Standardised targets of the N train rows, ``[..., N]``, 1 ≤ N ≤ R.
      row_present: Boolean, ``[..., R]`` or ``[R]``; default: all.
      column_present: Boolean, ``[..., C]`` or ``[C]``; default: all.

    Returns:
      Logits of the buckets for the M = R − N test rows, ``[..., M, buckets]``;
      with the variant "full" 0 for absent ones. Divergence shows: NaN logits
      stay NaN.
    """
    _checks.check_choice("variant", self.variant, VARIANTS)
    x, y = jnp.asarray(x), jnp.asarray(y)
    _check_table(x, y)
    num_train = y.shape[-1]
    rows = _pattern("row_present", row_present, x.shape[:-1])
    columns = _pattern(
      "column_present", column_present, (*x.shape[:-2], x.shape[-1])
    )
    if self.variant == "host":
      x = _filled(x, rows, columns, jnp.nan)
      if rows is not None:
        y = jnp.where(rows[..., : y.shape[-1]], y, jnp.nan)
      rows = columns = None
    # What stands in absent cells must not overflow, for the gradient's sake.
    x = _filled(x, rows, columns, 0)
    borders = default_borders(self.config.num_buckets)
    constant(self, "borders", lambda: jnp.asarray(borders))

    cells, y = self._cells(x, y, rows, columns)
    cells = self._inject("column_target", cells, y[..., None, :])
    cells = self.part(ColumnEmbedder, "column_embedder")(cells, num_train)
    cells = jnp.swapaxes(cells, -2, -3)
    tokens = self.part(RowEmbedder, "row_embedder")(cells, rows, columns)
    tokens = self._inject("row_target", tokens, y)
    for i in range(self.config.nlayers):
      block = self.part(
        SelfBlock,
        f"block_{i}",
        num_heads=self.config.icl_num_heads,
        kv_heads=self.config.kv_heads,
        scaled=True,
      )
      tokens = block(tokens, num_sources=num_train)
    return self._head(tokens[..., num_train:, :])

  def _cells(
    self,
    x: jax.Array,
    y: jax.Array,
    rows: jax.Array | None,
    columns: jax.Array | None,
  ) -> tuple[jax.Array, jax.Array]:
    """The carriers of the cells, ``[..., C, R, E]``, and finite targets."""
    weight = jnp.ones(y.shape, x.dtype)
    if rows is not None:
      weight = rows[..., : y.shape[-1]].astype(x.dtype)
    features = table.cell_features(
      jnp.swapaxes(x, -1, -2), weight, columns, self.config
    )
    cells = nn.Dense(self.config.embed_dim, name="cell_embed")(features)
    for present, axis in ((rows, -2), (columns, -1)):
      if present is not None:
        present = jnp.expand_dims(present, axis)
        present = jnp.broadcast_to(present, cells.shape[:-1])
        cells = _presence.nullify(cells, present)
    return cells, table.known_targets(y, weight)

  def _inject(self, name: str, tokens: jax.Array, y: jax.Array) -> jax.Array:
    """Tells the train rows, first on axis -2, their targets ``[..., N]``."""
    signal = nn.Dense(tokens.shape[-1], name=name)(y[..., None])
    padding = [(0, 0)] * signal.ndim
    padding[-2] = (0, tokens.shape[-2] - y.shape[-1])
    inject = OInject(tau=self.tau, closed=self.closed, name=f"{name}_inject")
    return inject(tokens, jnp.pad(signal, padding))

  def _head(self, tokens: jax.Array) -> jax.Array:
    presence = self.presence("output_presence", tokens)
    normed = self.norm("output_norm", tokens, presence)

    width = self.config.ff_factor * self.config.row_dim

    def network(h: jax.Array) -> jax.Array:
      hidden = nn.Dense(width, name="output_up")(h)
      hidden = nn.gelu(hidden, approximate=False)
      return nn.Dense(self.config.num_buckets, name="output_down")(hidden)

    if not self.closed:
      return network(normed)
    return _components.o_ffn(normed, presence, network)


def _check_table(x: jax.Array, y: jax.Array) -> None:
  for name, array in (("x", x), ("y", y)):
    _checks.check_floating(name, array)
  _checks.check_rank("x", x, 2, "[..., R, C]")
  _checks.check_rank("y", y, 1, "[..., N]")
  if x.shape[:-2] != y.shape[:-1] or not 1 <= y.shape[-1] <= x.shape[-2]:
    raise ValueError(
      "y must be [..., N] with the batch axes of x, [..., R, C], and 1 ≤ N ≤ R,"
      f" got shapes {y.shape} and {x.shape}."
    )
  if x.shape[-1] == 0:
    raise ValueError(f"x must have a column, got shape {x.shape}.")


def _pattern(
  name: str, present: Any, shape: tuple[int, ...]
) -> jax.Array | None:
  if present is None:
    return None
  present = _checks.per_token(name, present, shape)
  if present.dtype != jnp.bool_:
    raise ValueError(f"{name} must be boolean, got {present.dtype}.")
  return present


def _filled(
  x: jax.Array,
  rows: jax.Array | None,
  columns: jax.Array | None,
  value: float,
) -> jax.Array:
  """The table with a value in the cells of absent rows and columns."""
  if rows is not None:
    x = jnp.where(rows[..., None], x, value)
  if columns is not None:
    x = jnp.where(columns[..., None, :], x, value)
  return x
