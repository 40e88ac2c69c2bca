"""Stacks of blocks, taken out of their hosts, to put null rows in.

Three hosts, each with what the others lack: a pre-norm transformer whose
LayerNorms and networks have biases, the pre-norm blocks without biases in which
a TabPFN v3 learns in context, and the post-norm blocks of MiniLM.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from oflax.linen import OTransformer
from oflax.linen import calibrate
from oflax.linen.block import VARIANTS
from oflax.retrofit import minilm
from oflax.retrofit import synthetic
from oflax.retrofit.tabpfn_v3 import TabPFNV3
from oflax.retrofit.tabpfn_v3.blocks import SelfBlock
from oflax.retrofit.tabpfn_v3.thresholds import ALPHA

WIDTH = 64
TEXT = (
  "A token that is a zero vector does not exist: it emits nothing, it weighs"
  " nothing, and whoever computes with the others computes as if it were not"
  " there, in whichever place of the sentence it may stand."
)


@dataclasses.dataclass(frozen=True)
class Stack:
  """Blocks in a row, in three variants on the same variables.

  Attributes:
    name: Of the host.
    present: The carriers that enter the first block, ``[n, d]``.
    num_sources: How many of them, the first ones, are looked at. Null rows come
      after these.
    blocks: Variant to module of a block.
    variables: Of each block.
    sources_named: Whether the module is told the number of sources.
  """

  name: str
  present: jax.Array
  num_sources: int
  blocks: Mapping[str, nn.Module]
  variables: Sequence[Mapping[str, Any]]
  sources_named: bool = False

  def thresholds(self) -> list[float]:
    """The τ with which each block meets its tokens."""
    return [
      float(each["calibration"]["attention_presence"]["tau"])
      for each in self.variables
    ]

  def with_nulls(self, nulls: jax.Array) -> jax.Array:
    """The carriers with rows ``[..., k, d]`` put in: ``[..., n + k, d]``."""
    batch = nulls.shape[:-2]
    present = jnp.broadcast_to(self.present, (*batch, *self.present.shape))
    first, last = jnp.split(present, [self.num_sources], axis=-2)
    return jnp.concatenate([first, nulls, last], axis=-2)

  def run(
    self, variant: str, nulls: jax.Array, num_blocks: int | None = None
  ) -> list[tuple[jax.Array, jax.Array]]:
    """The null rows and the present ones after each block.

    Args:
      variant: "host", "attention" or "full".
      nulls: Rows to put in, ``[..., k, d]``; k may be 0.
      num_blocks: The first ones; default: all.

    Returns:
      For each block ``[..., k, d]`` and ``[..., n, d]``.
    """
    tokens, count = self.with_nulls(nulls), nulls.shape[-2]
    sources = self.num_sources + count if self.sources_named else None
    place = slice(self.num_sources, self.num_sources + count)
    result = []
    for variables in self.variables[:num_blocks]:
      tokens = _apply(self.blocks[variant], variables, tokens, sources)
      present = jnp.delete(tokens, place, axis=-2)
      result.append((tokens[..., place, :], present))
    return result


def layer_norm_stack(seed: int = 0, num_tokens: int = 60) -> Stack:
  """A pre-norm transformer with random weights, every bias among them."""
  model = OTransformer(
    num_layers=3,
    num_heads=4,
    mlp_dim=2 * WIDTH,
    bias_init=nn.initializers.normal(0.1),
  )
  init_key, token_key = jax.random.split(jax.random.key(seed))
  present = jax.random.normal(token_key, (num_tokens, WIDTH))
  variables = jax.jit(model.init)(init_key, present)
  variables = calibrate(
    model, variables, present, presence=1 / (1 + ALPHA), quantile=0.5
  )
  blocks = {
    variant: model.clone(variant=variant).block() for variant in VARIANTS
  }
  return Stack(
    "LayerNorm host",
    present,
    num_tokens,
    blocks,
    _of_blocks(variables, model.num_layers),
  )


def v3_stack(
  module: TabPFNV3,
  variables: Mapping[str, Any],
  name: str = "v3-mini",
  seed: int = 1,
) -> Stack:
  """The blocks in which a TabPFN v3 learns in context, on a synthetic table.

  Args:
    module: In any variant.
    variables: Its variables, calibrated.
    name: Of the host.
    seed: Of the table; not that of the thresholds, which is 0.
  """
  tables = synthetic.tables(seed)
  columns = int(tables.column_present[-1].sum())
  present = _output_of(
    module.clone(variant="host"),
    "row_target_inject",
    variables,
    tables.x[-1, :, :columns],
    tables.y[-1],
  )
  config = module.config
  blocks = {
    variant: SelfBlock(
      config,
      variant,
      num_heads=config.icl_num_heads,
      kv_heads=config.kv_heads,
      scaled=True,
    )
    for variant in VARIANTS
  }
  each = _of_blocks(variables, config.nlayers)
  return Stack(name, present, tables.y.shape[-1], blocks, each, True)


def minilm_stack() -> Stack:
  """The body of MiniLM, on a sentence; "host" is without its mask here.

  Raises:
    ImportError: The package with the weights, or one to read them, is missing.
  """
  model = minilm.load()
  ids = model.tokenize([TEXT])
  ids = ids[:, : int((ids != 0).sum())]
  present = _output_of(model.encoder, "norm", dict(model.variables), ids)[0]
  body = {name: tree["body"] for name, tree in model.variables.items()}
  blocks = {}
  for variant in VARIANTS:
    bound = model.encoder.clone(variant=variant).bind(dict(model.variables))
    blocks[variant] = bound.body.block()
  count = model.encoder.num_layers
  return Stack("MiniLM", present, len(present), blocks, _of_blocks(body, count))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _output_of(
  module: nn.Module, name: str, variables: Mapping[str, Any], *inputs: Any
) -> jax.Array:
  """What a part of a module gives when the module is called."""
  _, seen = module.apply(
    variables,
    *inputs,
    mutable=["intermediates"],
    capture_intermediates=lambda part, _: part.path == (name,),
  )
  output: jax.Array = seen["intermediates"][name]["__call__"][0]
  return output


def _of_blocks(
  variables: Mapping[str, Any], count: int
) -> list[dict[str, Any]]:
  """The variables of each block out of those of the whole."""
  names = [name for name in ("params", "calibration") if name in variables]
  return [
    {name: variables[name][f"block_{i}"] for name in names}
    for i in range(count)
  ]


@functools.partial(jax.jit, static_argnums=(0, 3))
def _apply(
  block: nn.Module,
  variables: Mapping[str, Any],
  tokens: jax.Array,
  num_sources: int | None,
) -> Any:
  if num_sources is None:
    return block.apply(variables, tokens)
  return block.apply(variables, tokens, num_sources=num_sources)
