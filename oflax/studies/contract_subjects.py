"""What the contract tries: every operator and module."""

from collections.abc import Callable
import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import oflax
from oflax import linen

NUM_TOKENS, FEATURES, HEADS = 6, 8, 2
Map = Callable[[jax.Array], jax.Array]
Attend = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Subject:
  """A closed map of carriers, or one of two sets of carriers.

  Attributes:
    name: As printed.
    shapes: Tree of the shapes of its parameters.
    apply: ``(params, tokens) -> outputs``; if `cross`,
      ``(params, receivers, sources) -> outputs``.
    unordered: Whether permutation equivariance is promised.
    cross: Whether it maps two sets of carriers.
    all_present: ``(params, tokens) -> (outputs, standard)``: with every token
      present, and what the ordinary operator gives for them; or None.
    exact: Whether nulls change no bit of the others.
  """

  name: str
  shapes: Any
  apply: Callable[..., jax.Array]
  unordered: bool = True
  cross: bool = False
  all_present: Callable[..., tuple[jax.Array, jax.Array]] | None = None
  exact: bool = False

  def draw(self, rng: np.random.Generator, trials: int) -> Any:
    """Parameters for every trial, all non-zero; thresholds positive."""

    def leaf(path: Any, shape: jax.ShapeDtypeStruct) -> np.ndarray:
      value = 0.5 * rng.normal(size=(trials, *shape.shape))
      is_tau = getattr(path[-1], "key", None) == "tau"
      return (np.exp(value) if is_tau else value).astype(shape.dtype)

    return jax.tree_util.tree_map_with_path(leaf, self.shapes)


def module_subject(name: str, module: nn.Module, **flags: Any) -> Subject:
  """A module that maps carriers to carriers."""
  h = jnp.zeros((NUM_TOKENS, FEATURES))
  inputs = (h, h) if flags.get("cross") else (h,)
  shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)

  def apply(variables: Any, *tokens: jax.Array) -> jax.Array:
    outputs: Any = module.apply(variables, *tokens)
    return outputs

  return Subject(name, shapes, apply, **flags)


def attention_subject(
  name: str,
  *,
  options: Callable[[jax.Array, jax.Array], dict[str, Any]] | None = None,
  kv_heads: int = HEADS,
  scores: float = 1.0,
  cross: bool = False,
  unordered: bool = True,
  attention: Callable[..., Any] = oflax.o_attention,
  **fixed: Any,
) -> Subject:
  """`o_attention` with biased projections, as every model has them.

  `options(receivers, sources)` makes the visibility arguments from carriers, so
  that they follow their tokens; `scores` scales the scores; `attention` may be
  another than ours, to see it fail.
  """

  def projected(
    params: Any, receivers: jax.Array, sources: jax.Array
  ) -> list[jax.Array]:
    outputs = []
    for name, h in (("q", receivers), ("k", sources), ("v", sources)):
      kernel, bias = params[name]
      wide = jnp.promote_types(h.dtype, kernel.dtype)
      out = jnp.einsum("nd,dhf->nhf", h.astype(wide), kernel.astype(wide))
      out = out + jnp.broadcast_to(bias, out.shape)
      outputs.append((out * scores if name == "q" else out).astype(h.dtype))
    return outputs

  def attend(
    params: Any, receivers: jax.Array, sources: jax.Array
  ) -> jax.Array:
    out = attention(
      *projected(params, receivers, sources),
      oflax.presence(receivers),
      oflax.presence(sources),
      **(options(receivers, sources) if options else {}),
      **fixed,
    )
    return out.reshape(receivers.shape)

  def all_present(params: Any, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    qkv = projected(params, h, h)
    ones = jnp.ones(h.shape[:1])
    standard = {k: v for k, v in fixed.items() if k != "implementation"}
    return (
      attention(*qkv, ones, ones, **fixed),
      jax.nn.dot_product_attention(*qkv, **standard),
    )

  shapes = {
    name: (
      jax.ShapeDtypeStruct((FEATURES, heads, FEATURES // HEADS), jnp.float32),
      jax.ShapeDtypeStruct((heads, FEATURES // HEADS), jnp.float32),
    )
    for name, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads))
  }
  if cross:
    return Subject(name, shapes, attend, unordered, cross)
  return Subject(
    name,
    shapes,
    lambda params, h: attend(params, h, h),
    unordered,
    all_present=None if options else all_present,
  )


def pair_mask(receivers: jax.Array, sources: jax.Array) -> dict[str, Any]:
  """A mask made from carriers."""
  # Signs survive the relative perturbations of the rounding rule.
  return {"mask": (receivers[:, 0] > 0)[:, None] | (sources[:, 1] > 0)[None]}


def pair_bias(receivers: jax.Array, sources: jax.Array) -> dict[str, Any]:
  """A bias made from carriers, −inf for some."""
  bias = receivers @ sources.T
  return {"bias": jnp.where(sources[:, 0] > 1, -jnp.inf, bias)}


def segments(receivers: jax.Array, sources: jax.Array) -> dict[str, Any]:
  """Segments made from carriers."""
  return {
    "receiver_segments": (receivers[:, 0] > 0).astype(jnp.int32),
    "source_segments": (sources[:, 0] > 0).astype(jnp.int32),
  }


def local_subject(
  name: str, fn: Callable[..., jax.Array], unordered: bool
) -> Subject:
  """A subject from fn(h, presence, kernel, bias)."""
  shapes = (
    jax.ShapeDtypeStruct((FEATURES, FEATURES), jnp.float32),
    jax.ShapeDtypeStruct((FEATURES,), jnp.float32),
  )

  def apply(params: Any, h: jax.Array) -> jax.Array:
    return fn(h, oflax.presence(h), *params)

  return Subject(name, shapes, apply, unordered)


def _affine(h: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
  update = h.astype(jnp.float32) @ kernel
  return (update + jnp.broadcast_to(bias, update.shape)).astype(h.dtype)


def _inject(
  h: jax.Array, p: jax.Array, kernel: jax.Array, bias: jax.Array
) -> jax.Array:
  del bias
  return oflax.o_inject(h, kernel[oflax.presence_rank(p)], p)


def _pool(
  h: jax.Array, p: jax.Array, kernel: jax.Array, bias: jax.Array
) -> jax.Array:
  del kernel, bias
  return oflax.o_gate(jnp.broadcast_to(oflax.o_pool(h, p), h.shape), p)


def _closures(
  h: jax.Array, p: jax.Array, kernel: jax.Array, bias: jax.Array
) -> jax.Array:
  del p

  def norm(h: jax.Array) -> jax.Array:
    return oflax.o_norm(h, oflax.presence(h), scale=bias, bias=bias)

  def ffn(h: jax.Array) -> jax.Array:
    return oflax.o_ffn(
      h, oflax.presence(h), lambda h: jnp.tanh(_affine(h, kernel, bias))
    )

  return oflax.residual(oflax.compose(norm, ffn))(h)


# Blocks small enough for a few tokens to need several.
BLOCKS = oflax.BlockSizes(batch=1, heads=1, receivers=4)
IMPLEMENTATIONS: dict[str, tuple[Any, tuple[str, ...]]] = {
  "reference": (
    "reference",
    (
      "o_attention",
      "mask",
      "bias",
      "segments",
      "causal",
      "window",
      "grouped heads",
      "large scores",
      "cross",
      "cross, mask",
    ),
  ),
  "blocked": (BLOCKS, ("o_attention", "bias", "causal", "window", "cross")),
  "folded": ("folded", ("o_attention", "causal", "grouped heads", "cross")),
}


def functions() -> list[Subject]:
  """The functional core; the attentions in every implementation."""
  local = {
    "o_gate": lambda h, p, w, b: oflax.o_gate(_affine(h, w, b), p),
    "o_ffn": lambda h, p, w, b: oflax.o_ffn(h, p, lambda h: _affine(h, w, b)),
    "o_norm": lambda h, p, w, b: oflax.o_norm(h, p, scale=b, bias=w[0]),
    "o_norm rms": lambda h, p, w, b: oflax.o_norm(
      h, p, kind="rms", scale=b, bias=w[0]
    ),
    "o_inject": _inject,
    "o_standardize": lambda h, p, w, b: oflax.o_standardize(h, p),
    "o_pool": _pool,
    "residual, compose": _closures,
  }
  attentions: dict[str, dict[str, Any]] = {
    "o_attention": {},
    "mask": {"options": pair_mask},
    "bias": {"options": pair_bias},
    "segments": {"options": segments},
    "causal": {"is_causal": True, "unordered": False},
    "window": {"local_window_size": (1, 2), "unordered": False},
    "grouped heads": {"kv_heads": 1},
    "large scores": {"scores": 30.0},
    "cross": {"cross": True},
    "cross, mask": {"cross": True, "options": pair_mask},
  }
  return [
    *(
      local_subject(name, fn, unordered=name != "o_inject")
      for name, fn in local.items()
    ),
    *(
      attention_subject(
        f"{name}, {suffix}", implementation=value, **attentions[name]
      )
      for suffix, (value, names) in IMPLEMENTATIONS.items()
      for name in names
    ),
  ]


def modules() -> list[Subject]:
  """The modules and the OTransformer."""
  ordered: dict[str, Any] = {
    "rotary": True,
    "is_causal": True,
    "local_window_size": (3, 0),
  }
  model: dict[str, Any] = {"num_layers": 2, "num_heads": HEADS, "mlp_dim": 12}
  return [
    module_subject("ONorm", linen.ONorm()),
    module_subject("OFFN", linen.OFFN(12)),
    module_subject("OFFN gated", linen.OFFN(12, gated=True)),
    module_subject("OStandardize", linen.OStandardize()),
    module_subject("OAttention", linen.OAttention(HEADS, normalize_qk=True)),
    module_subject(
      "OAttention ordered",
      linen.OAttention(HEADS, num_kv_heads=1, **ordered),
      unordered=False,
    ),
    module_subject("OAttention cross", linen.OAttention(HEADS), cross=True),
    module_subject("OBlock", linen.OBlock(HEADS, 12)),
    module_subject(
      "OBlock post", linen.OBlock(HEADS, 12, norm_placement="post")
    ),
    module_subject("OTransformer", linen.OTransformer(**model)),
    module_subject(
      "OTransformer post",
      linen.OTransformer(norm_placement="post", norm="rms", **model),
    ),
    module_subject(
      "OTransformer ordered",
      linen.OTransformer(gated=True, final_norm=True, **ordered, **model),
      unordered=False,
    ),
    module_subject(
      "OTransformer compacted",
      linen.OTransformer(compact=True, **model),
      exact=True,
    ),
    module_subject(
      "OTransformer compacted, ordered",
      linen.OTransformer(compact=True, **ordered, **model),
      unordered=False,
      exact=True,
    ),
    module_subject(
      "OTransformer scanned",
      linen.OTransformer(
        scan_layers=True, remat=True, learnable_tau=True, **model
      ),
    ),
  ]
