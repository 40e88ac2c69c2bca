"""Checkpoints: Orbax's, each with a digest that shows damage."""

import os
import pathlib
from typing import Any
import warnings
import zlib

import jax
from orbax import checkpoint as ocp

from oflax import _hosts


class Checkpoints:
  """The checkpoints of one run: saved whole, and restored whole or not at all.

  A thin layer over orbax.checkpoint.CheckpointManager. A save is complete when
  it returns, or with `asynchronous` once the next call to a checkpoint returns;
  one cut short leaves nothing that is restored. Arrays may be cut over a mesh,
  and are restored to wherever those of another tree lie: on another mesh, or on
  one device. Several processes, which call every method together, need a folder
  that all of them see.

  Beside the tree lies a checksum of its values, for Orbax itself returns wrong
  numbers where a bit of a file is flipped.

  Args:
    directory: Where they lie; made if missing.
    keep: How many, the newest.
    asynchronous: Whether a save returns once the values are copied.

  Raises:
    ValueError: `keep` is below 1.

  Example:
    >>> import tempfile, jax.numpy as jnp
    >>> with tempfile.TemporaryDirectory() as directory:
    ...   checkpoints = Checkpoints(directory)
    ...   checkpoints.save(3, {"weight": jnp.ones(2)})
    ...   step, tree = checkpoints.restore({"weight": jnp.zeros(2)})
    >>> step, tree["weight"].tolist()
    (3, [1.0, 1.0])

  Reference: orbax.readthedocs.io, CheckpointManager.
  """

  def __init__(
    self,
    directory: str | os.PathLike[str],
    *,
    keep: int = 2,
    asynchronous: bool = False,
  ):
    if keep < 1:
      raise ValueError(f"keep must be at least 1, got {keep!r}.")
    self._directory = pathlib.Path(directory).absolute()
    self._manager = ocp.CheckpointManager(
      self._directory,
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        enable_async_checkpointing=asynchronous,
        # What a save cut short has left behind.
        cleanup_tmp_directories=True,
      ),
    )

  @property
  def steps(self) -> list[int]:
    """The steps that have a checkpoint, in order."""
    self._manager.wait_until_finished()
    return sorted(self._manager.all_steps())

  def save(self, step: int, tree: Any) -> None:
    """Saves a tree of arrays, and drops the checkpoints beyond `keep`.

    Args:
      step: After which the tree is; above those saved before.
      tree: Any pytree of arrays, such as a train state.

    Raises:
      ValueError: `step` is not above those saved before.
    """
    if self.steps and step <= self.steps[-1]:
      raise ValueError(
        f"step must be above {self.steps[-1]}, saved before, got {step}."
      )
    self._manager.save(
      step,
      args=ocp.args.Composite(
        tree=ocp.args.StandardSave(tree),
        digest=ocp.args.JsonSave(
          {"arrays": _describe(tree), "checksum": _checksum(tree)}
        ),
      ),
    )

  def restore(self, like: Any) -> tuple[int, Any] | None:
    """The newest complete checkpoint.

    Damaged ones are passed over with a warning, and deleted once an older one
    has been read.

    Args:
      like: A tree of the structure, shapes and dtypes that were saved.

    Returns:
      Its step and its tree; None if there is no checkpoint.

    Raises:
      ValueError: The checkpoint is not of the tree `like`, or every one is
        damaged.
    """
    damaged: list[int] = []
    for step in reversed(self.steps):
      try:
        tree = self._read(step, like)
      except _DamagedError as error:
        damaged.append(step)
        warnings.warn(
          f"checkpoint {step} in {self._directory} is damaged: {error}",
          stacklevel=2,
        )
        continue
      for broken in damaged:
        self._manager.delete(broken)
      return step, tree
    if damaged:
      raise ValueError(
        f"directory holds no complete checkpoint, got {self._directory} with"
        f" damaged ones at steps {sorted(damaged)}."
      )
    return None

  def close(self) -> None:
    """Releases what Orbax holds."""
    self._manager.close()

  def _read(self, step: int, like: Any) -> Any:
    digest = self._item(step, "digest", ocp.args.JsonRestore())
    _check_fits(step, digest.get("arrays"), _describe(like))
    tree = self._item(step, "tree", ocp.args.StandardRestore(like))
    if _checksum(tree) != digest.get("checksum"):
      raise _DamagedError("its values do not have the checksum saved with them")
    return tree

  def _item(self, step: int, name: str, args: ocp.args.CheckpointArgs) -> Any:
    damage = None
    try:
      restored = self._manager.restore(
        step, args=ocp.args.Composite(**{name: args})
      )
    except Exception as error:  # Damage raises whatever the reader hits.
      damage = error
    # Processes pass over the same checkpoints.
    if not _hosts.everywhere(damage is None):
      message = str(damage or "another process could not read it")
      raise _DamagedError(message.partition("\n")[0]) from damage
    return restored[name]


class _DamagedError(Exception):
  """A checkpoint cannot be read as it was saved."""


def _describe(tree: Any) -> dict[str, str]:
  """Path to dtype and shape, of every array of a tree."""
  described = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    described[name] = f"{leaf.dtype}{list(leaf.shape)}"
  return described


def _check_fits(
  step: int, saved: dict[str, str], wanted: dict[str, str]
) -> None:
  for name in sorted(saved.keys() | wanted.keys()):
    if saved.get(name) != wanted.get(name):
      raise ValueError(
        f"checkpoint {step} does not fit: {name} is"
        f" {saved.get(name, 'missing')} in it, but"
        f" {wanted.get(name, 'missing')} in the tree to restore."
      )


def _checksum(tree: Any) -> int:
  """CRC-32 of the values, leaf after leaf."""
  total = 0
  for leaf in jax.tree.leaves(tree):
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    total = zlib.crc32(_hosts.whole(leaf).tobytes(), total)
  return total
