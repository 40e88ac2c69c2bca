"""`load` and `save`: a module and its variables, from and to one file."""

from collections.abc import Mapping
import dataclasses
import functools
import os
import pathlib
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax.retrofit.tabpfn_v3 import files
from oflax.retrofit.tabpfn_v3 import names
from oflax.retrofit.tabpfn_v3 import thresholds
from oflax.retrofit.tabpfn_v3.bar_distribution import BarDistribution
from oflax.retrofit.tabpfn_v3.blocks import VARIANTS
from oflax.retrofit.tabpfn_v3.config import V3Config
from oflax.retrofit.tabpfn_v3.module import TabPFNV3

MINI = pathlib.Path(__file__).with_name("v3-mini.safetensors")
_TEMPERATURE = "SOFTMAX_TEMPERATURE"
# What `load` reads in a header.
_ENTRIES = {
  "architecture_name",
  "config",
  "inference_config",
  thresholds.ENTRY,
}


def load(
  path: str | os.PathLike[str] | None = None, variant: str = "host"
) -> tuple[TabPFNV3, dict[str, Any]]:
  """Loads a model from a file of TabPFN's, or of `save`.

  The configuration is the one in the file. Every tensor there is used, and
  checked against it. Nothing in the file is run.

  The variants "attention" and "full" need thresholds: those in the file; else
  those in a small JSON file beside it, ``<path>.tau.json``; else they are
  computed on synthetic tables (see `calibrated`) and written there, if the
  folder may be written to. With "host" they are as the file has them, or 1.

  Args:
    path: A .safetensors file; or a .ckpt, if PyTorch is installed. None:
      v3-mini, a small model that this project trained (``oflax pretrain``) and
      ships.
    variant: "host", "attention" or "full".

  Returns:
    The module and its variables, in float32.

  Raises:
    FileNotFoundError: There is no such file.
    ImportError: A .ckpt, and no PyTorch.
    ValueError: A damaged file, another architecture, a classifier, a tensor
      missing, one too many, of another shape or not finite, an unknown variant.

  Example:
    >>> import pathlib, tempfile, jax, jax.numpy as jnp
    >>> from oflax.retrofit.tabpfn_v3 import TabPFNV3, V3Config
    >>> config = V3Config(
    ...   num_buckets=10,
    ...   embed_dim=8,
    ...   nlayers=1,
    ...   dist_embed_num_blocks=1,
    ...   feat_agg_num_blocks=1,
    ...   feat_agg_num_heads=2,
    ... )
    >>> init = jax.jit(TabPFNV3(config).init)
    >>> variables = init(jax.random.key(0), jnp.ones((5, 3)), jnp.ones(4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   path = pathlib.Path(folder, "model.safetensors")
    ...   save(path, TabPFNV3(config), variables)
    ...   module, variables = load(path)
    >>> module.variant, module.config.embed_dim
    ('host', 8)

  Reference: Prior Labs, TabPFN-3, arXiv 2605.13986. Weights carry a licence of
    their own.
  """
  _checks.check_choice("variant", variant, VARIANTS)
  path = MINI if path is None else path
  contents = files.read(path)
  module = TabPFNV3(_config(path, contents.entries), variant)
  flat = {}
  leaves = _leaves(module)
  wanted = {
    names.file_name(name): names.file_shape(name, leaf.shape)
    for name, leaf in leaves.items()
    if name.startswith(names.COLLECTIONS)
  }
  files.check_tensors(path, contents.tensors, wanted)
  for name, leaf in leaves.items():
    if name.startswith(names.COLLECTIONS):
      tensor = contents.tensors[names.file_name(name)].astype(np.float32)
      flat[name] = jnp.asarray(names.from_file(name, tensor, leaf.shape))
  try:
    BarDistribution(flat["constants/borders"])
  except ValueError as error:
    raise ValueError(f"{path}: regression_borders: {error}") from None
  variables = traverse_util.unflatten_dict(flat, sep="/")
  sites = {name for name in leaves if not name.startswith(names.COLLECTIONS)}
  return module, {
    **variables,
    **thresholds.find(path, contents, sites, module, variables),
  }


def save(
  path: str | os.PathLike[str],
  module: TabPFNV3,
  variables: Mapping[str, Any],
  *,
  notes: Mapping[str, Any] | None = None,
) -> None:
  """Saves a model in the layout of TabPFN's own .safetensors files.

  The thresholds, if there are any, go into the header.

  Args:
    path: The file, ending in .safetensors; written over if it exists.
    module: The module; its variant is not saved.
    variables: Its variables, "params" and "constants" and "calibration".
    notes: Further entries of the header, such as where the weights come from;
      `load` ignores them.

  Raises:
    ValueError: Another ending, variables that are not those of `module`, or a
      note with the name of an entry that `load` reads.

  Example:
    >>> import jax, jax.numpy as jnp, pathlib, tempfile
    >>> from oflax.retrofit.tabpfn_v3 import TabPFNV3, V3Config
    >>> config = V3Config(
    ...   num_buckets=10,
    ...   embed_dim=16,
    ...   nlayers=1,
    ...   dist_embed_num_blocks=1,
    ...   feat_agg_num_blocks=1,
    ... )
    >>> module = TabPFNV3(config)
    >>> init = jax.jit(module.init)
    >>> variables = init(jax.random.key(0), jnp.ones((5, 3)), jnp.ones(4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   save(pathlib.Path(folder, "model.safetensors"), module, variables)

  Reference: huggingface.co/docs/safetensors.
  """
  given = traverse_util.flatten_dict(dict(variables), sep="/")
  leaves = _leaves(module)
  taken = sorted(_ENTRIES & set(notes or {}))
  if taken:
    raise ValueError(f"notes must have names of their own, got {taken}.")
  extra = sorted(given.keys() - leaves.keys())
  if extra:
    raise ValueError(
      f"variables must be those of module, got {extra[0]}, too, and"
      f" {len(extra) - 1} more."
    )
  tensors = {}
  for name, leaf in leaves.items():
    if not name.startswith(names.COLLECTIONS):
      continue
    if jnp.shape(given.get(name)) != leaf.shape:
      raise ValueError(
        f"variables must hold {name} of shape {leaf.shape}, got"
        f" {jnp.shape(given[name]) if name in given else 'nothing'}."
      )
    array = np.asarray(given[name], np.float32)
    tensors[names.file_name(name)] = names.to_file(name, array)
  # Without an inference_config: the package takes none that is not complete,
  # but ignores names of a config that it does not know.
  entries = {
    **(notes or {}),
    "architecture_name": files.ARCHITECTURE,
    "config": dataclasses.asdict(module.config),
    **thresholds.entry(given, leaves),
  }
  files.write(path, tensors, entries)


def _config(path: Any, entries: Mapping[str, Any]) -> V3Config:
  config = dict(entries["config"])
  inference = entries.get("inference_config") or {}
  if not isinstance(inference, Mapping):
    raise ValueError(
      f"{path}: inference_config must be a mapping, got {inference!r:.80}."
    )
  if inference.get(_TEMPERATURE) is not None:
    config["softmax_temperature"] = inference[_TEMPERATURE]
  try:
    return V3Config.from_mapping(config)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from None


@functools.cache
def _leaves(module: TabPFNV3) -> dict[str, Any]:
  """The shapes of all variables, by their paths."""
  x, y = jnp.zeros((2, 1)), jnp.zeros(1)
  shapes = jax.eval_shape(module.init, jax.random.key(0), x, y)
  return traverse_util.flatten_dict(shapes, sep="/")
