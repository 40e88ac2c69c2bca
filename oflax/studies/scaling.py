"""What a train step sends on several devices: formulas, and compiled programs.

``python -m oflax.studies.scaling docs`` writes docs/scaling.md. Nothing is run:
programs are compiled for simulated devices, and read.
"""

from collections.abc import Callable
import dataclasses
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np
import optax

import oflax
from oflax import sharding
from oflax.linen import OTransformer
from oflax.studies import collectives
from oflax.studies import ring_memory

COMPILED = (8, 64)
# Data × sequence × tensor.
WORKED = ((1, 1, 8), (8, 4, 8), (32, 16, 8))
BYTES = 4  # Of a float32.


@dataclasses.dataclass(frozen=True)
class Setting:
  """A model and a batch."""

  layers: int
  features: int
  mlp: int
  heads: int
  samples: int
  tokens: int

  @property
  def parameters(self) -> int:
    """Of the blocks: kernels, biases, norms."""
    d, m = self.features, self.mlp
    return self.layers * (4 * d * d + 2 * d * m + 9 * d + m)

  @property
  def carriers(self) -> int:
    """Numbers in the carriers of a batch."""
    return self.samples * self.tokens * self.features


# Small enough to compile in seconds; and one as people train them.
SMALL = Setting(2, 256, 1024, 64, 64, 128)
LARGE = Setting(32, 4096, 16384, 32, 8, 8192)


@dataclasses.dataclass(frozen=True)
class Parallelism:
  """One way of cutting.

  Attributes:
    axis: Of the mesh.
    formula: As printed; P parameters, A = B·N·d numbers of the carriers.
    numbers: (setting, devices) -> numbers that the results of a device's
      collectives hold in a train step.
    when: What is sent when.
    limit: Where it stops paying.
  """

  axis: str
  formula: str
  numbers: Callable[[Setting, int], float]
  when: str
  limit: str


PARALLELISMS = (
  Parallelism(
    "data",
    "P",
    lambda s, n: s.parameters,
    "gradients are summed once, after the backward pass",
    "once a device has fewer tokens than R/3: the sum of P then takes longer"
    " than 6·P FLOP for each token",
  ),
  Parallelism(
    "fsdp",
    "2·P + P/n",
    lambda s, n: 2 * s.parameters + s.parameters / n,
    "parameters are gathered layer by layer, forward and backward; gradients"
    " are summed to where they belong",
    "once a device has fewer tokens than R/2; it buys memory, P/n parameters"
    " and moments a device",
  ),
  Parallelism(
    "tensor",
    "4·L·A",
    lambda s, n: 4 * s.layers * s.carriers,
    "carriers are summed after attention and feed-forward network of every"
    " block, and their gradients likewise",
    "once d/n is below about R/9, with m = 4·d: it sends as much however many"
    " devices share. Keep it within one machine",
  ),
  Parallelism(
    "sequence",
    "6·L·A + P",
    lambda s, n: 6 * s.layers * s.carriers + s.parameters,
    "keys and values go round in a ring, forward, and backward with their"
    " gradients, each turn while attention is computed; gradients are summed",
    "once N/n, the tokens of a device, is below about R/2, or R under causal"
    " order: a turn then sends longer than it computes",
  ),
)


def train_program(setting: Setting, axis: str, devices: int) -> Any:
  """The compiled train step of a setting, cut along one axis."""
  model = OTransformer(
    setting.layers,
    setting.heads,
    setting.mlp,
    scan_layers=True,
  )

  def loss_fn(variables: Any, h: jax.Array, rng: jax.Array) -> Any:
    del rng
    outputs: Any = model.apply(variables, h)
    errors = jnp.mean(jnp.square(outputs - h), axis=-1)
    return oflax.present_mean(errors, oflax.presence(h)), {}

  shape = (setting.samples, setting.tokens, setting.features)
  batch = jax.ShapeDtypeStruct(shape, jnp.float32)
  placed = sharding.shard(
    model,
    Mesh(np.array(jax.devices()[:devices]), (axis,)),
    tx=optax.sgd(0.1),
    key=jax.random.key(0),
    batch=batch,
    loss_fn=loss_fn,
    batch_axes=("batch", "length"),
  )
  with sharding.on_mesh(placed.mesh, placed.rules):
    return placed.program.lower(placed.state, batch).compile()


def _row(parallelism: Parallelism, devices: int) -> str:
  """A line of the table of compiled programs."""
  program = train_program(SMALL, parallelism.axis, devices)
  by_kind = collectives.sent(program.as_text())
  cost, memory = program.cost_analysis(), program.memory_analysis()
  formula = BYTES * parallelism.numbers(SMALL, devices)
  measured = sum(by_kind.values())
  kinds = ", ".join(f"{k} {_mib(v)}" for k, v in sorted(by_kind.items()))
  cells = (
    parallelism.axis,
    str(devices),
    _mib(formula),
    _mib(measured),
    f"{measured / formula:.2f}",
    kinds,
    _mib(memory.argument_size_in_bytes),
    _mib(memory.temp_size_in_bytes),
    f"{cost['flops'] / 1e9:.2f}",
  )
  return f"| {' | '.join(cells)} |"


def _worked(data: int, sequence: int, tensor: int) -> str:
  """GiB that the large setting sends along each axis of a mesh."""
  blocks = LARGE.layers * LARGE.carriers
  cut = data * sequence > 1
  numbers = (
    LARGE.parameters / tensor if cut else 0,
    6 * blocks / tensor if sequence > 1 else 0,
    4 * blocks / sequence,
  )
  cells = (
    f"{data * sequence * tensor:,}",
    f"{data} × {sequence} × {tensor}",
    *(f"{BYTES * number / 2**30:.1f}" for number in numbers),
  )
  return f"| {' | '.join(cells)} |"


def _mib(size: float) -> str:
  return f"{size / 2**20:.2f}"


def _table(header: tuple[str, ...], rows: list[str]) -> str:
  rule = "|---" * len(header) + "|"
  return "\n".join([f"| {' | '.join(header)} |", rule, *rows])


def _settings(setting: Setting) -> str:
  fields = dataclasses.asdict(setting)
  numbers = ", ".join(f"{value:,} {name}" for name, value in fields.items())
  return f"{numbers}; {setting.parameters:,} parameters"


def page() -> str:
  """The text of docs/scaling.md; compiles programs for the devices there are.

  Returns:
    Markdown.

  Raises:
    ValueError: There are fewer devices than the largest program needs.
  """
  if jax.device_count() < max(COMPILED):
    raise ValueError(
      f"devices must be at least {max(COMPILED)}, got {jax.device_count()}."
    )
  formulas = [
    f"| {p.axis} | {p.when} | {p.formula} | {p.limit} |" for p in PARALLELISMS
  ]
  compiled = [_row(p, n) for p in PARALLELISMS for n in COMPILED]
  return TEXT.format(
    formulas=_table(
      ("axis", "what is sent when", "numbers a step", "stops paying"), formulas
    ),
    small=_settings(SMALL),
    compiled=_table(
      (
        "axis",
        "devices",
        "formula, MiB",
        "compiled, MiB",
        "ratio",
        "of it",
        "arguments, MiB",
        "temporaries, MiB",
        "GFLOP",
      ),
      compiled,
    ),
    large=_settings(LARGE),
    worked=_table(
      ("devices", "data × sequence × tensor", "data", "sequence", "tensor"),
      [_worked(*axes) for axes in WORKED],
    ),
    forward=ring_memory.FORWARD,
    both=ring_memory.BOTH,
    memory=_table(ring_memory.HEADER, ring_memory.rows()),
    jax=jax.__version__,
  )


TEXT = """\
# Beyond one device

`oflax.sharding.shard(module, mesh)` trains a module on a mesh; the axes of the
mesh say how. Written by `python -m oflax.studies.scaling docs`, which compiles
train steps for simulated devices and reads them; nothing was timed.

## What is sent

P parameters, L blocks, A = B·N·d numbers in the carriers of B samples of N
tokens of d features, n devices along the axis. Counted are the results of
collectives on one device, in float32; a ring on the wire moves 2·(n−1)/n of
that for a sum, (n−1)/n for a gathering, and all of it for a permutation.

{formulas}

Axes multiply: along tensor and sequence travel only the samples that data left
to a group, along sequence only the heads that tensor left to a device, and
along tensor only the tokens that sequence did. Attention itself sends nothing
under data and tensor: samples and heads are apart. The ring sends every share
home in the end: n turns, where n − 1 would do for the forward pass.

R is the FLOP that a device does in the time in which it sends a number.

What null tokens cost: a sequence is filled up with nulls to a multiple of n
(under causal order 2·n, for the shards to have equal work: shard i holds piece
i from the front and piece i from behind). They change nothing, by closure.

## Compiled

{small}; one axis at a time.
Arguments, temporaries and FLOP are of one device,
by JAX's `memory_analysis` and `cost_analysis`; the latter counts the body of a
loop once. JAX {jax}, XLA for CPU.

{compiled}

Where the ratio is not 1, XLA for CPU sends more than it must. Under fsdp it
sums gradients whole, where a reduce-scatter would do: 3·P. Under tensor it sums
the gradients that come back through query, key and value apart (one collective
of three arrays of A numbers), where their sum would do: 6·L·A.

## Memory of the ring

32,768 tokens, 8 heads of 64 features, on one device and in a ring of 8: the
temporaries of a device, next to arguments and results.

{memory}

The terms, forward: {forward.shares} array of a device's tokens and all heads
(8 MiB: the result), {forward.groups} of the two heads that go round together
(2 MiB: query, keys and values at home and under way, the sum so far),
{forward.blocks} of a block (1 MiB: scores, weights, a head's keys and values).
Forward and backward: {both.shares} of all heads (the result, its gradient, that
of the inputs), {both.groups} of two heads (gradients go round, too) and
{both.blocks} of a block. None grows with the tokens of all devices.

## Worked

{large}.
The samples are those of one group along data. GiB a step and device:

{worked}

Tensor goes no further than a machine; sequence as far as a sample needs; data,
or fsdp in its place, over all that is left.
"""


def main(folder: str) -> None:
  """Writes scaling.md into a folder."""
  jax.config.update("jax_num_cpu_devices", max(COMPILED))
  path = pathlib.Path(folder) / "scaling.md"
  path.write_text(page())
  print(f"Written: {path}.")


if __name__ == "__main__":
  main(*sys.argv[1:] or ["docs"])
