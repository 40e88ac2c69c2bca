"""Text that is on every machine: the Python standard library's own sources."""

from collections.abc import Callable
import functools
import pathlib
import sysconfig
import zlib

import jax.numpy as jnp
import numpy as np

# Id 0 is no token, byte b is the id b + 1.
VOCABULARY = 257
# Folders that are no part of the library, or far larger than the rest.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
# One file in so many is kept for evaluation.
SHARE = 20


@functools.cache
def corpus() -> tuple[np.ndarray, np.ndarray]:
  """The bytes of the sources to learn from, and of those to be judged on.

  Files go one way or the other by their names, whole.

  Returns:
    Two arrays of uint8.
  """
  root = pathlib.Path(sysconfig.get_paths()["stdlib"])
  learnt: list[bytes] = []
  judged: list[bytes] = []
  for path in sorted(root.rglob("*.py")):
    name = path.relative_to(root)
    if not LEFT_OUT & set(name.parts):
      held_out = zlib.crc32(name.as_posix().encode()) % SHARE == 0
      (judged if held_out else learnt).append(path.read_bytes())
  return _joined(learnt), _joined(judged)


def encode(text: str | bytes) -> np.ndarray:
  """Text as ids.

  Args:
    text: Characters, which are encoded as UTF-8, or bytes.

  Returns:
    int32 ``[n]``.

  Example:
    >>> encode("def").tolist()
    [101, 102, 103]

  Reference: None.
  """
  raw = text.encode() if isinstance(text, str) else text
  return np.frombuffer(raw, np.uint8).astype(np.int32) + 1


def decode(ids: np.ndarray) -> str:
  """Ids as text, without those that are no token.

  Args:
    ids: Integers ``[n]``.

  Returns:
    The characters; bytes that are none are replaced.

  Example:
    >>> decode(np.array([101, 0, 102, 103]))
    'def'

  Reference: None.
  """
  ids = np.asarray(ids)
  return (ids[ids > 0] - 1).astype(np.uint8).tobytes().decode(errors="replace")


def batches(
  source: np.ndarray, batch: int, length: int, seed: int
) -> Callable[[int], jnp.ndarray]:
  """Windows at random places, from the index of the batch alone.

  Args:
    source: Bytes.
    batch: B, how many windows.
    length: n, how many ids of each are predicted.
    seed: Of the places.

  Returns:
    The index of a batch to ids, int32 ``[B, n + 1]``.
  """

  def batch_at(index: int) -> jnp.ndarray:
    random = np.random.default_rng((seed, index))
    starts = random.integers(len(source) - length, size=batch)
    places = starts[:, None] + np.arange(length + 1)
    return jnp.asarray(source[places].astype(np.int32) + 1)

  return batch_at


def windows(source: np.ndarray, count: int, length: int) -> np.ndarray:
  """Windows at even distances, the same for all: ``[count, length + 1]``."""
  starts = np.linspace(0, len(source) - length - 1, count).astype(int)
  places = starts[:, None] + np.arange(length + 1)
  return source[places].astype(np.int32) + 1


def _joined(texts: list[bytes]) -> np.ndarray:
  return np.frombuffer(b"\n".join(texts), np.uint8)
