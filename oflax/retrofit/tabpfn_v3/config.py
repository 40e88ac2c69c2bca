"""The configuration of a TabPFN v3, under the names its files use."""

from collections.abc import Mapping
import dataclasses
import typing
from typing import Any

from oflax import _checks

_POSITIVE = (
  "num_buckets",
  "embed_dim",
  "dist_embed_num_blocks",
  "dist_embed_num_heads",
  "dist_embed_num_inducing_points",
  "feature_group_size",
  "feat_agg_num_blocks",
  "feat_agg_num_heads",
  "feat_agg_num_cls_tokens",
  "nlayers",
  "icl_num_heads",
  "ff_factor",
  "softmax_scaling_mlp_hidden_dim",
)


@dataclasses.dataclass(frozen=True)
class V3Config:
  """The shape of a TabPFN v3 regressor; the defaults are those of the paper.

  Attributes:
    num_buckets: Buckets of the predictive distribution; at least 2.
    embed_dim: Width E of a cell.
    dist_embed_num_blocks: Layers of the column embedder.
    dist_embed_num_heads: Heads of each.
    dist_embed_num_inducing_points: Vectors through which rows of a column meet.
    feature_group_size: Columns that share a cell token.
    feat_agg_num_blocks: Blocks of the row embedder.
    feat_agg_num_heads: Heads of each.
    feat_agg_num_cls_tokens: Tokens K that sum up a row, of width K · E.
    feat_agg_rope_base: Base of the rotary frequencies.
    use_rope: Whether columns have rotary positions.
    nlayers: Blocks that learn in context, over rows.
    icl_num_heads: Heads of each.
    icl_num_kv_heads: Heads of keys and values; default: `icl_num_heads`.
    icl_num_kv_heads_test: How many of these test rows use; default: all.
    ff_factor: Hidden features of a feed-forward network, in its widths.
    softmax_scaling_mlp_hidden_dim: Hidden features of the softmax scaling.
    layernorm_elementwise_affine: Whether norms have a scale.
    use_nan_indicators: Whether a cell says that it was NaN or infinite.
    max_num_classes: Below 2: a regressor. Classifiers are refused.
    softmax_temperature: By which predictions divide the logits.

  Raises:
    ValueError: A classifier, or a number that does not fit, named.

  Example:
    >>> V3Config(num_buckets=100, embed_dim=32).row_dim
    128

  Reference: Prior Labs, TabPFN-3, arXiv 2605.13986.
  """

  num_buckets: int
  embed_dim: int = 128
  dist_embed_num_blocks: int = 3
  dist_embed_num_heads: int = 8
  dist_embed_num_inducing_points: int = 128
  feature_group_size: int = 3
  feat_agg_num_blocks: int = 3
  feat_agg_num_heads: int = 8
  feat_agg_num_cls_tokens: int = 4
  feat_agg_rope_base: float = 100000.0
  use_rope: bool = True
  nlayers: int = 24
  icl_num_heads: int = 8
  icl_num_kv_heads: int | None = None
  icl_num_kv_heads_test: int | None = None
  ff_factor: int = 2
  softmax_scaling_mlp_hidden_dim: int = 64
  layernorm_elementwise_affine: bool = True
  use_nan_indicators: bool = True
  max_num_classes: int = 0
  softmax_temperature: float = 0.9

  def __post_init__(self) -> None:
    self._check_types()
    if self.max_num_classes >= 2:
      raise ValueError(
        f"max_num_classes={self.max_num_classes} is a classifier: only"
        " regressors are supported, of max_num_classes below 2."
      )
    for name in _POSITIVE:
      _checks.check_at_least(name, getattr(self, name), 1)
    _checks.check_at_least("num_buckets", self.num_buckets, 2)
    for name in ("feat_agg_rope_base", "softmax_temperature"):
      _checks.check_positive(name, getattr(self, name))
    self._check_heads()

  @property
  def row_dim(self) -> int:
    """The width of a row, which is all its CLS tokens, one after the other."""
    return self.embed_dim * self.feat_agg_num_cls_tokens

  @property
  def cell_features(self) -> int:
    """How many numbers enter a cell token, values and what kind they are."""
    return self.feature_group_size * (2 if self.use_nan_indicators else 1)

  @property
  def kv_heads(self) -> tuple[int, int]:
    """Heads of keys and values that train rows use, and test rows."""
    train = self.icl_num_kv_heads or self.icl_num_heads
    return train, self.icl_num_kv_heads_test or train

  @classmethod
  def from_mapping(cls, entries: Mapping[str, Any]) -> "V3Config":
    """The configuration in a file.

    Names it does not know are ignored: those of a file concern classifiers,
    training, and how inference is cut up.

    Args:
      entries: Names to values, as a file has them.

    Returns:
      The configuration.

    Raises:
      ValueError: `num_buckets` is missing, or a value does not fit.
    """
    if "num_buckets" not in entries:
      raise ValueError(f"config lacks num_buckets, got only {sorted(entries)}.")
    known = {field.name for field in dataclasses.fields(cls)}
    return cls(**{k: v for k, v in entries.items() if k in known})

  def _check_types(self) -> None:
    for name, wanted in typing.get_type_hints(type(self)).items():
      value = getattr(self, name)
      allowed = typing.get_args(wanted) or (wanted,)
      if float in allowed:
        allowed = (*allowed, int)
      # A bool is an int to Python, but no number of layers.
      if type(value) not in allowed:
        names = " or ".join(kind.__name__ for kind in allowed)
        raise ValueError(f"{name} must be {names}, got {value!r}.")

  def _check_heads(self) -> None:
    widths = {
      "dist_embed_num_heads": self.embed_dim,
      "feat_agg_num_heads": self.embed_dim,
      "icl_num_heads": self.row_dim,
    }
    for name, width in widths.items():
      _check_divides(name, getattr(self, name), "a width of", width)
    for name in ("icl_num_kv_heads", "icl_num_kv_heads_test"):
      if getattr(self, name) is not None:
        heads = getattr(self, name)
        _checks.check_at_least(name, heads, 1)
        _check_divides(name, heads, "icl_num_heads =", self.icl_num_heads)
    train, test = self.kv_heads
    if test > train:
      raise ValueError(
        f"icl_num_kv_heads_test={test} must be at most the {train} heads of"
        " keys and values."
      )
    head = self.embed_dim // self.feat_agg_num_heads
    if self.use_rope and head % 2:
      raise ValueError(
        "use_rope needs an even number of features a head, got"
        f" {head} from feat_agg_num_heads={self.feat_agg_num_heads}."
      )


def _check_divides(name: str, count: int, what: str, total: int) -> None:
  if total % count:
    raise ValueError(f"{name}={count} must divide {what} {total}.")
