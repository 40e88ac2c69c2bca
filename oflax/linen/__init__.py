"""Flax modules over the functions of oflax, in Flax's conventions."""

from oflax.linen.attention import OAttention
from oflax.linen.block import OBlock
from oflax.linen.calibration import calibrate
from oflax.linen.components import OFFN
from oflax.linen.components import OInject
from oflax.linen.components import ONorm
from oflax.linen.components import OPool
from oflax.linen.components import OStandardize
from oflax.linen.embed import OEmbed
from oflax.linen.language_model import OLanguageModel
from oflax.linen.presence import OPresence
from oflax.linen.stacking import stack_blocks
from oflax.linen.stacking import unstack_blocks
from oflax.linen.transformer import OTransformer

__all__ = (
  "OFFN",
  "OAttention",
  "OBlock",
  "OEmbed",
  "OInject",
  "OLanguageModel",
  "ONorm",
  "OPool",
  "OPresence",
  "OStandardize",
  "OTransformer",
  "calibrate",
  "stack_blocks",
  "unstack_blocks",
)
