"""oflax: a token that is a zero vector does not exist."""

from oflax._attention import BlockSizes
from oflax._attention import o_attention
from oflax._attention import o_attention_weights
from oflax._compaction import compact
from oflax._compaction import compacted
from oflax._compaction import expand
from oflax._components import compose
from oflax._components import o_ffn
from oflax._components import o_gate
from oflax._components import o_inject
from oflax._components import o_norm
from oflax._components import residual
from oflax._presence import calibrate_tau
from oflax._presence import nullify
from oflax._presence import presence
from oflax._presence import presence_rank
from oflax._statistics import o_pool
from oflax._statistics import o_standardize
from oflax._statistics import present_mean
from oflax.linen import calibrate

__version__ = "0.1.0"

__all__ = (
  "BlockSizes",
  "calibrate",
  "calibrate_tau",
  "compact",
  "compacted",
  "compose",
  "expand",
  "nullify",
  "o_attention",
  "o_attention_weights",
  "o_ffn",
  "o_gate",
  "o_inject",
  "o_norm",
  "o_pool",
  "o_standardize",
  "presence",
  "presence_rank",
  "present_mean",
  "residual",
)
