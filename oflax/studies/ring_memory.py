"""Memory of attention over a ring of devices, of compiled programs."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec
import numpy as np

import oflax
from oflax._attention import ring

TOKENS = 32768
HEADS = 8
FEATURES = 64
DEVICES = 8
MIB = 2**20
HEADER = ("", "one device, MiB", "ring, MiB a device", "ratio", "terms, MiB")


@dataclasses.dataclass(frozen=True)
class Terms:
  """How many arrays of a kind a device holds at once.

  Attributes:
    shares: Of the device's tokens and all heads.
    groups: Of its tokens and the heads that go round together.
    blocks: Of the scores computed at a time, or of a head's tokens.
  """

  shares: int
  groups: int
  blocks: int

  @property
  def size(self) -> float:
    """MiB of all of them."""
    tokens = TOKENS // DEVICES
    head = 4 * tokens * FEATURES / MIB
    block = 1.0  # Of `blocked.small_block_sizes`.
    return (
      HEADS * head * self.shares
      + ring.AT_ONCE // tokens * head * self.groups
      + block * self.blocks
    )


# As the buffer assignments of the two programs have them.
FORWARD = Terms(shares=1, groups=6, blocks=6)
BOTH = Terms(shares=3, groups=10, blocks=10)


def rows() -> list[str]:
  """Lines of a table: forward, and forward with backward.

  Returns:
    Markdown, in the order of `HEADER`.
  """
  lines = []
  for name, backward, terms in (
    ("forward", False, FORWARD),
    ("forward and backward", True, BOTH),
  ):
    whole = temporaries(1, TOKENS, backward=backward) / MIB
    share = temporaries(DEVICES, TOKENS, backward=backward) / MIB
    numbers = f"{whole:.1f} | {share:.1f} | {share / whole:.2f}"
    lines.append(f"| {name} | {numbers} | {terms.size:.1f} |")
  return lines


def temporaries(devices: int, tokens: int, *, backward: bool) -> int:
  """Bytes that a device holds next to arguments and results.

  Args:
    devices: In the ring; 1: no ring.
    tokens: N, on all of them together.
    backward: With the gradients of all inputs.

  Returns:
    The size of the temporaries of the compiled program.
  """
  attend: Callable[..., Any] = oflax.o_attention
  shardings: dict[str, Any] = {}
  if devices > 1:
    mesh = Mesh(np.array(jax.devices()[:devices]), ("s",))
    spec = PartitionSpec("s")
    attend = jax.shard_map(
      functools.partial(attend, axis_name="s"),
      mesh=mesh,
      in_specs=(spec,) * 5,
      out_specs=spec,
    )
    shardings = {"in_shardings": (jax.NamedSharding(mesh, spec),) * 5}

  def loss(*operands: jax.Array) -> jax.Array:
    return jnp.sum(attend(*operands) ** 2)

  x = jax.ShapeDtypeStruct((tokens, HEADS, FEATURES), jnp.float32)
  p = jax.ShapeDtypeStruct((tokens,), jnp.float32)
  subject = jax.grad(loss, (0, 1, 2, 3, 4)) if backward else attend
  program = jax.jit(subject, **shardings).lower(x, x, x, p, p).compile()
  memory: Any = program.memory_analysis()
  return int(memory.temp_size_in_bytes)
