"""Sequences: caches to decode with, packing, generation."""

from oflax.sequences.generation import generate
from oflax.sequences.packing import Packed
from oflax.sequences.packing import pack
from oflax.sequences.packing import unpack
from oflax.sequences.slots import evict
from oflax.sequences.slots import init_cache
from oflax.sequences.slots import reorder

__all__ = (
  "Packed",
  "evict",
  "generate",
  "init_cache",
  "pack",
  "reorder",
  "unpack",
)
