"""Files of weights: read whole or refused, and nothing in them is run."""

from collections.abc import Mapping
import json
import os
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from oflax.retrofit import _weights

ARCHITECTURE = "tabpfn_v3"


class Contents(NamedTuple):
  """What a file holds.

  Attributes:
    tensors: By name.
    entries: The rest: "config", "architecture_name", "inference_config".
  """

  tensors: dict[str, np.ndarray]
  entries: dict[str, Any]


def read(path: str | os.PathLike[str]) -> Contents:
  """Reads a .safetensors file, or with PyTorch at hand a .ckpt.

  Args:
    path: The file.

  Returns:
    Its contents, of the architecture that is asked for.

  Raises:
    FileNotFoundError: There is no such file.
    ImportError: A .ckpt, and no PyTorch.
    ValueError: The file is damaged, of another kind or architecture.
  """
  path = pathlib.Path(path)
  readers = {".safetensors": _read_safetensors, ".ckpt": _read_ckpt}
  if path.suffix not in readers:
    raise ValueError(f"path must end in {' or '.join(readers)}, got {path}.")
  if not path.is_file():
    raise FileNotFoundError(f"path names no file, got {path}.")
  contents = readers[path.suffix](path)
  name = contents.entries.get("architecture_name")
  if name != ARCHITECTURE:
    raise ValueError(
      f"{path} must have architecture_name {ARCHITECTURE!r}, got {name!r}."
    )
  if not isinstance(contents.entries.get("config"), Mapping):
    raise ValueError(
      f"{path} has no config, got only {sorted(contents.entries)}."
    )
  # The state of a training loss, not of the network.
  tensors = {k: v for k, v in contents.tensors.items() if "criterion." not in k}
  return contents._replace(tensors=tensors)


def write(
  path: str | os.PathLike[str],
  tensors: dict[str, np.ndarray],
  entries: dict[str, Any],
) -> None:
  """Writes a .safetensors file that `read` reads, all of it or nothing."""
  path = pathlib.Path(path)
  if path.suffix != ".safetensors":
    raise ValueError(f"path must end in .safetensors, got {path}.")
  metadata = {name: json.dumps(entry) for name, entry in entries.items()}
  write_whole(path, _weights.packed(tensors, metadata))


def write_whole(path: pathlib.Path, content: bytes) -> None:
  """Writes a file that is there complete, or not at all."""
  part = path.with_name(f"{path.name}.{os.getpid()}.part")
  try:
    part.write_bytes(content)
    part.replace(path)
  finally:
    part.unlink(missing_ok=True)


def _read_safetensors(path: pathlib.Path) -> Contents:
  tensors, metadata = _weights.read(path)
  try:
    entries = {name: json.loads(entry) for name, entry in metadata.items()}
  except (json.JSONDecodeError, RecursionError) as error:
    raise ValueError(
      f"{path} has a header with an entry that is no JSON: {error}"
    ) from error
  return Contents(tensors, entries)


def _read_ckpt(path: pathlib.Path) -> Contents:
  try:
    import torch
  except ImportError as error:
    raise ImportError(
      f"a .ckpt is read by PyTorch, which is not installed, got {path}: install"
      " torch, or convert the file to .safetensors where it is."
    ) from error
  try:
    # Plain types and tensors only: nothing that a pickle could run.
    loaded = torch.load(path, map_location="cpu", weights_only=True)
  except Exception as error:  # Damage raises whatever the reader hits.
    reason = str(error).partition("\n")[0]
    raise ValueError(
      f"{path} is damaged, or holds more than tensors and plain types; the"
      f" latter is not read, convert it to .safetensors: {reason}"
    ) from error
  if not isinstance(loaded, Mapping) or "state_dict" not in loaded:
    raise ValueError(f"{path} has no state_dict.")
  entries = {k: v for k, v in loaded.items() if k != "state_dict"}
  tensors = {}
  for name, tensor in loaded["state_dict"].items():
    wide = tensor.dtype in (torch.bfloat16, torch.float16)
    tensors[name] = (tensor.float() if wide else tensor).numpy()
  return Contents(tensors, entries)


def check_tensors(
  path: Any, tensors: Mapping[str, np.ndarray], wanted: Mapping[str, Any]
) -> None:
  """Refuses tensors other than those wanted, of another shape or not finite.

  Args:
    path: Of the file, for the message.
    tensors: Those in the file.
    wanted: Name to shape.

  Raises:
    ValueError: One is missing, one too many, or one does not fit.
  """
  missing = sorted(wanted.keys() - tensors.keys())
  extra = sorted(tensors.keys() - wanted.keys())
  for kind, names in (("lacks", missing), ("has, beyond its config,", extra)):
    if names:
      shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
      raise ValueError(f"{path} {kind} {len(names)} tensors: {shown}.")
  for name, shape in wanted.items():
    tensor = tensors[name]
    if tensor.shape != shape:
      raise ValueError(
        f"{path}: {name} must have shape {shape}, got {tensor.shape}."
      )
    if not jax.dtypes.issubdtype(tensor.dtype, np.floating):
      raise ValueError(
        f"{path}: {name} must be floating point, got {tensor.dtype}."
      )
    wrong = int(np.sum(~np.isfinite(tensor)))
    if wrong:
      raise ValueError(f"{path}: {name} must be finite, {wrong} are not.")
