"""The names and layouts of a file's tensors, and those of the Flax tree."""

import re

import numpy as np

# The collections that a file holds tensors of.
COLLECTIONS = ("params", "constants")
# In turn, each to the whole path: "params/block_3/ffn/up/kernel" and the like.
_RULES = tuple(
  (re.compile(pattern), replacement)
  for pattern, replacement in (
    (r"^(params|constants)/", ""),
    (r"^borders$", "regression_borders"),
    (r"^cell_embed/", "x_embed/"),
    (r"^column_target/", "col_y_encoder/"),
    (r"^row_target/", "icl_y_encoder/"),
    (r"^output_up/", "output_projection/0/"),
    (r"^output_down/", "output_projection/2/"),
    (r"^block_(\d+)/attention/", r"icl_blocks/\1/icl_attention/"),
    (r"^block_(\d+)/", r"icl_blocks/\1/"),
    (r"^row_embedder/frequencies$", "column_aggregator/rope/freqs"),
    (r"^row_embedder/output_norm/", "column_aggregator/out_ln/"),
    (r"^row_embedder/block_(\d+)/", r"column_aggregator/blocks/\1/"),
    (r"^row_embedder/", "column_aggregator/"),
    (r"/attention_norm/", "/layernorm/"),
    (r"^(column_aggregator|icl_blocks)(.*)/ffn_norm/", r"\1\2/layernorm_mlp/"),
    (
      r"^column_embedder/inducing_vectors_(\d+)$",
      r"feature_distribution_embedder/layers/\1/inducing_vectors",
    ),
    (r"^column_embedder/gather_(\d+)/", r"columns/\1/cross_attn_block1/"),
    (r"^column_embedder/scatter_(\d+)/", r"columns/\1/cross_attn_block2/"),
    (r"^columns/(.*)/attention/", r"columns/\1/attn/"),
    (r"^columns/", "feature_distribution_embedder/layers/"),
    (r"/receiver_norm/", "/layernorm_q/"),
    (r"/source_norm/", "/layernorm_kv/"),
    (r"/ffn_norm/", "/layernorm2/"),
    (r"/ffn/up/", "/mlp/0/"),
    (r"/ffn/down/", "/mlp/2/"),
    (r"/(base|query)_mlp_up/", r"/softmax_scaling_layer/\1_mlp/0/"),
    (r"/(base|query)_mlp_down/", r"/softmax_scaling_layer/\1_mlp/2/"),
    (r"/query/kernel$", "/q_projection/kernel"),
    (r"/key/kernel$", "/k_projection/kernel"),
    (r"/value/kernel$", "/v_projection/kernel"),
    (r"/out/kernel$", "/out_projection/kernel"),
    (r"/(kernel|scale)$", "/weight"),
    (r"/", "."),
  )
)


def file_name(path: str) -> str:
  """The name in a file of a leaf of the tree, its path joined by "/"."""
  for pattern, replacement in _RULES:
    path = pattern.sub(replacement, path)
  return path


def file_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """The shape of a leaf in a file, where kernels are [outputs, inputs]."""
  if not path.endswith("/kernel"):
    return shape
  inputs = int(np.prod(shape[: _input_axes(path)]))
  return (int(np.prod(shape)) // inputs, inputs)


def to_file(path: str, leaf: np.ndarray) -> np.ndarray:
  """A leaf in the layout of a file."""
  if not path.endswith("/kernel"):
    return leaf
  outputs, inputs = file_shape(path, leaf.shape)
  return np.ascontiguousarray(leaf.reshape(inputs, outputs).T)


def from_file(
  path: str, tensor: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
  """The inverse of `to_file`, for a leaf of that shape."""
  return (tensor.T if path.endswith("/kernel") else tensor).reshape(shape)


def _input_axes(path: str) -> int:
  """Heads and their features are the inputs of an output projection."""
  return 2 if path.endswith("/out/kernel") else 1
