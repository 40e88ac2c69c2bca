"""OAttention and its implementations."""

from oflax._attention.attention import CACHED as CACHED
from oflax._attention.attention import o_attention as o_attention
from oflax._attention.attention import (
  o_attention_weights as o_attention_weights,
)
from oflax._attention.blocked import BlockSizes as BlockSizes
from oflax._attention.reference import KEPT as KEPT
