"""OAttention and its implementations."""

from oflax._attention.attention import o_attention as o_attention
from oflax._attention.attention import (
  o_attention_weights as o_attention_weights,
)
