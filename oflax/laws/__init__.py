"""The laws of a library in which a zero token does not exist, as assertions.

Each assertion takes a user's own function and raises an AssertionError that
names the law, the place and the size of the violation. With `rtol` and `atol`
None, what must be exact is compared exactly, and the rest by the rounding rule:
8 · eps · max(1, amplification), relative to max(1, largest value), where the
amplification is how strongly the function magnifies a change of the last bits
of its input (for attention, about the largest score).
"""

from oflax.laws.attention import assert_empty_support
from oflax.laws.attention import assert_null_receiver
from oflax.laws.attention import assert_null_source_insertion
from oflax.laws.attention import assert_self_insertion
from oflax.laws.check import check_laws
from oflax.laws.closure import assert_gradient_closure
from oflax.laws.closure import assert_nulls_preserved
from oflax.laws.closure import assert_o_closure
from oflax.laws.closure import assert_permutation_equivariance
from oflax.laws.nulls import insert_nulls

__all__ = (
  "assert_empty_support",
  "assert_gradient_closure",
  "assert_null_receiver",
  "assert_null_source_insertion",
  "assert_nulls_preserved",
  "assert_o_closure",
  "assert_permutation_equivariance",
  "assert_self_insertion",
  "check_laws",
  "insert_nulls",
)
