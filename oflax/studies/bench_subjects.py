"""What `oflax bench` compares: ours, and what people use today."""

from collections.abc import Callable
import importlib.util
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import oflax
from oflax import linen
from oflax.studies.bench import Subject

# B, N, H, D, and whether the backward pass is measured, too.
SIZES = (
  ((8, 128, 8, 64), True),
  ((4, 512, 8, 64), True),
  ((1, 2048, 8, 64), True),
  ((1, 4096, 8, 64), True),
  ((1, 16384, 8, 64), False),
)
MODEL_SIZE = (2, 2048, 256)
MODEL: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "mlp_dim": 1024}
NULL_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
PEAK = 2048

OURS, BLOCKED = "oflax", "oflax, blocked"
CAUSAL = "oflax, blocked, causal"
BIAS, MASK = "jax.nn, bias", "jax.nn, mask"
TORCH, TORCH_MASK = "PyTorch", "PyTorch, float mask"
TORCH_DIFFERENTIABLE = "PyTorch, float mask with gradient"
TORCH_JAGGED = "PyTorch, jagged"
MATMUL = f"matrix product, {PEAK}"
FLAX, COMPACTED, DENSE = "Flax, masked", "oflax, compacted", "oflax, dense"


def peak() -> Subject:
  """The matrix product that sets the limit."""
  x = jnp.ones((PEAK, PEAK))
  return Subject(MATMUL, lambda x: x @ x, (x,))


def attention(
  size: tuple[int, int, int, int], *, backward: bool, gpu: bool = False
) -> list[Subject]:
  """Attention of heads with presences, as each library expresses it.

  Args:
    size: B, N, H, D.
    backward: Whether gradients of everything are computed, too.
    gpu: Whether to compare on a GPU, in bfloat16.
  """
  batch, tokens, _, _ = size
  rng = np.random.default_rng(0)
  dtype = jnp.bfloat16 if gpu else jnp.float32
  q, k, v = (jnp.asarray(rng.normal(size=size), dtype) for _ in range(3))
  p = jnp.asarray(rng.uniform(0.1, 1.0, (batch, tokens)), jnp.float32)

  def ours(q: Any, k: Any, v: Any, p: Any, **options: Any) -> Any:
    return oflax.o_attention(q, k, v, p, p, **options)

  def theirs(q: Any, k: Any, v: Any, p: Any, **options: Any) -> jax.Array:
    bias = jnp.log(p)[:, None, None].astype(q.dtype)
    return jax.nn.dot_product_attention(q, k, v, bias=bias, **options)

  def masked(q: Any, k: Any, v: Any, p: Any, **options: Any) -> jax.Array:
    mask = (p > 0)[:, None, None]
    return jax.nn.dot_product_attention(q, k, v, mask=mask, **options)

  functions: dict[str, Callable[..., Any]] = {
    OURS: ours,
    f"{OURS}, reference": _with(ours, implementation="reference"),
    BLOCKED: _with(ours, implementation="blocked"),
    CAUSAL: _with(ours, implementation="blocked", is_causal=True),
    f"{OURS}, folded": _with(ours, implementation="folded"),
    BIAS: theirs,
    MASK: masked,
  }
  if gpu:
    functions["cuDNN, bias"] = _with(theirs, implementation="cudnn")
    functions["cuDNN, no mask"] = lambda q, k, v, p: (
      jax.nn.dot_product_attention(q, k, v, implementation="cudnn")
    )
  arguments = (q, k, v, p)
  subjects = [
    Subject(name, _gradient(fn, 4) if backward else fn, arguments)
    for name, fn in functions.items()
  ]
  if not gpu and importlib.util.find_spec("torch"):
    subjects += _torch(q, k, v, p, backward)
  return subjects


def modules(
  size: tuple[int, int, int, int], *, backward: bool
) -> list[Subject]:
  """Attention with its projections: two modules of the same parameters."""
  batch, tokens, heads, features = size
  rng = np.random.default_rng(0)
  h = jnp.asarray(rng.normal(size=(batch, tokens, heads * features)))
  h = h.astype(jnp.float32)
  module = linen.OAttention(heads)
  peer = nn.MultiHeadDotProductAttention(heads)
  params = jax.jit(module.init)(jax.random.key(0), h[:, :8])["params"]

  def ours(params: Any, h: jax.Array) -> Any:
    return module.apply({"params": params}, h)

  def theirs(params: Any, h: jax.Array) -> Any:
    mask = jnp.any(h != 0, axis=-1)[:, None, None]
    return peer.apply({"params": params}, h, mask=mask)

  functions = {"OAttention": ours, "Flax, MultiHeadDotProductAttention": theirs}
  return [
    Subject(name, _gradient(fn, 2) if backward else fn, (params, h))
    for name, fn in functions.items()
  ]


class _FlaxTransformer(nn.Module):
  """A pre-norm transformer of Flax's modules, on our tree of parameters."""

  @nn.compact
  def __call__(self, h: jax.Array) -> jax.Array:
    mask = jnp.any(h != 0, axis=-1)[:, None, None]
    for i in range(MODEL["num_layers"]):
      h = _FlaxBlock(name=f"block_{i}")(h, mask)
    return h


class _FlaxBlock(nn.Module):
  @nn.compact
  def __call__(self, h: jax.Array, mask: jax.Array) -> jax.Array:
    attention = nn.MultiHeadDotProductAttention(
      MODEL["num_heads"], name="attention"
    )
    h = h + attention(nn.LayerNorm(name="attention_norm")(h), mask=mask)
    return h + _FlaxFFN(name="ffn")(nn.LayerNorm(name="ffn_norm")(h))


class _FlaxFFN(nn.Module):
  @nn.compact
  def __call__(self, h: jax.Array) -> jax.Array:
    up = nn.Dense(MODEL["mlp_dim"], name="up")(h)
    return nn.Dense(h.shape[-1], name="down")(nn.gelu(up))


def models(null_share: float, *, training: bool) -> list[Subject]:
  """A 2-layer transformer: compacted, dense, and Flax's with a mask.

  Args:
    null_share: Of the tokens, at random places.
    training: Whether a step of training is measured instead of a forward pass.
  """
  batch, tokens, features = MODEL_SIZE
  rng = np.random.default_rng(0)
  drawn = rng.normal(size=(batch, tokens, features)).astype(np.float32)
  for sample in drawn:
    sample[rng.permutation(tokens)[: round(null_share * tokens)]] = 0
  h = jnp.asarray(drawn)
  compacted = linen.OTransformer(compact=True, **MODEL)
  dense = linen.OTransformer(**MODEL)
  subjects = {COMPACTED: compacted, DENSE: dense, FLAX: _FlaxTransformer()}
  params = jax.jit(dense.init)(jax.random.key(0), h[:, :8])["params"]
  optimizer = optax.adam(1e-3)

  def forward(model: nn.Module) -> Callable[..., Any]:
    return lambda params, h: model.apply({"params": params}, h)

  def step(model: nn.Module) -> Callable[..., Any]:
    def loss(params: Any, h: jax.Array) -> jax.Array:
      outputs: Any = model.apply({"params": params}, h)
      return jnp.mean(outputs**2)

    def train(params: Any, state: Any, h: jax.Array) -> Any:
      updates, state = optimizer.update(jax.grad(loss)(params, h), state)
      return optax.apply_updates(params, updates), state

    return train

  return [
    Subject(name, step(model), (params, optimizer.init(params), h))
    if training
    else Subject(name, forward(model), (params, h))
    for name, model in subjects.items()
  ]


def model_work(null_share: float) -> float:
  """Operations of the products in a compacted forward pass."""
  batch, tokens, d = MODEL_SIZE
  size = 2 ** math.ceil(math.log2(tokens - round(null_share * tokens)))
  attention = 4 * size * size * d
  projections = 8 * size * d * d + 4 * size * d * MODEL["mlp_dim"]
  return batch * MODEL["num_layers"] * (attention + projections)


def _with(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
  return lambda *arguments: fn(*arguments, **options)


def _gradient(fn: Callable[..., Any], count: int) -> Callable[..., Any]:
  def loss(*arguments: Any) -> jax.Array:
    return jnp.sum(fn(*arguments).astype(jnp.float32) ** 2)

  return jax.grad(loss, tuple(range(count)))


def _torch(
  q: jax.Array, k: jax.Array, v: jax.Array, p: jax.Array, backward: bool
) -> list[Subject]:
  """`scaled_dot_product_attention`, on CPU, as JAX uses it: all cores."""
  import torch

  attend: Any = torch.nn.functional.scaled_dot_product_attention
  arrays = [
    torch.tensor(np.asarray(x)).transpose(1, 2).contiguous() for x in (q, k, v)
  ]
  batch, tokens = p.shape
  bias = torch.log(torch.tensor(np.asarray(p)))[:, None, None]
  bias = bias.expand(batch, 1, tokens, tokens).contiguous()

  def run(mask: Any, differentiable: bool = False) -> Callable[[], Any]:
    def forward() -> Any:
      with torch.no_grad():
        return attend(*arrays, attn_mask=mask)

    def both() -> Any:
      leaves = [x.detach().requires_grad_() for x in arrays]
      other = mask
      if differentiable:
        other = mask.detach().requires_grad_()
        leaves.append(other)
      out = attend(*leaves[:3], attn_mask=other)
      return torch.autograd.grad((out**2).sum(), leaves)

    return both if backward else forward

  subjects = [
    Subject(TORCH, run(None), (), jitted=False),
    Subject(TORCH_MASK, run(bias), (), jitted=False),
  ]
  if backward:
    call = run(bias, differentiable=True)
    subjects.append(Subject(TORCH_DIFFERENTIABLE, call, (), jitted=False))
  if batch > 1:
    call = _jagged(torch, arrays, backward)
    subjects.append(Subject(TORCH_JAGGED, call, (), jitted=False))
  return subjects


def _jagged(torch: Any, arrays: list[Any], backward: bool) -> Callable[[], Any]:
  """The same batch as a nested tensor of ragged samples, half full."""
  tokens = arrays[0].shape[2]
  lengths = [
    max(1, math.ceil(tokens * (i + 1) / len(arrays[0])))
    for i in range(len(arrays[0]))
  ]
  nested = [
    torch.nested.nested_tensor(
      [
        x[i].transpose(0, 1)[:length].contiguous()
        for i, length in enumerate(lengths)
      ],
      layout=torch.jagged,
    )
    for x in arrays
  ]
  attend: Any = torch.nn.functional.scaled_dot_product_attention

  def run() -> Any:
    leaves = [x.detach().requires_grad_(backward) for x in nested]
    with torch.set_grad_enabled(backward):
      out = attend(*(x.transpose(1, 2) for x in leaves))
      if backward:
        return torch.autograd.grad((out.values() ** 2).sum(), leaves)
      return out

  return run
