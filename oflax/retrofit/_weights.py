"""Weights from a safetensors file: every tensor taken, every shape checked."""

from collections.abc import Mapping
import os
from typing import Any

import numpy as np


def read(
  path: str | os.PathLike[str],
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """The tensors of a safetensors file, and the metadata in its header.

  Args:
    path: The file.

  Returns:
    Name to tensor, and the header's metadata.

  Raises:
    ImportError: The package safetensors is not installed.
    ValueError: The file is missing, truncated or not one that NumPy can hold.
  """
  safetensors = _package()
  try:
    with safetensors.safe_open(path, framework="numpy") as file:
      tensors = {name: file.get_tensor(name) for name in file.keys()}
      return tensors, dict(file.metadata() or {})
  except (OSError, TypeError, safetensors.SafetensorError) as error:
    raise ValueError(f"{path} cannot be read: {error}") from error


def packed(
  tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> bytes:
  """The content of a safetensors file.

  Raises:
    ImportError: The package safetensors is not installed.
  """
  content: bytes = _package().numpy.save(dict(tensors), dict(metadata))
  return content


def _package() -> Any:
  try:
    import safetensors.numpy
  except ImportError as error:
    raise ImportError(
      "files of weights need safetensors: pip install 'oflax[retrofit]'"
    ) from error
  return safetensors


class Taken:
  """Tensors that are taken one by one, by name and shape, until none is left.

  Args:
    tensors: Name to tensor.
    source: What they are from, for errors.

  Raises:
    ValueError: From `take`, a tensor is missing or of another shape; from
      `check_all_taken`, one was not taken.

  Example:
    >>> taken = Taken({"bias": np.ones(2)}, "model.safetensors")
    >>> taken.take("bias", (2,)).tolist()
    [1.0, 1.0]
    >>> taken.check_all_taken()
  """

  def __init__(self, tensors: Mapping[str, Any], source: str):
    self._left = dict(tensors)
    self._source = source

  def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Takes the tensor of this name, which must have this shape."""
    if name not in self._left:
      raise ValueError(f"{self._source} has no tensor {name!r}.")
    tensor = np.asarray(self._left.pop(name))
    if tensor.shape != shape:
      raise ValueError(
        f"{self._source}: {name} must have shape {shape}, got {tensor.shape}."
      )
    if not np.issubdtype(tensor.dtype, np.floating):
      raise ValueError(
        f"{self._source}: {name} must be floating point, got {tensor.dtype}."
      )
    return tensor.astype(np.float32)

  def drop(self, *names: str) -> None:
    """Leaves out tensors that the model has no use for, if they are there."""
    for name in names:
      self._left.pop(name, None)

  def check_all_taken(self) -> None:
    """Refuses tensors that nobody took: they belong to another model."""
    if self._left:
      names = ", ".join(sorted(self._left)[:5])
      raise ValueError(
        f"{self._source} has {len(self._left)} tensors that are no part of the"
        f" model, such as {names}."
      )
