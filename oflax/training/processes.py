"""Several processes that train one model."""

from collections.abc import Iterator
import contextlib
import os
import sys
import traceback
from typing import NoReturn

import jax
from jax.experimental import multihost_utils

from oflax import _checks

# After so many seconds without a sign of life a process counts as dead.
HEARTBEAT = 20
# So long the processes wait for each other at the start and at the end.
JOINING, LEAVING = 120, 600
# The exit status of a process that another one has left alone.
ABANDONED = 75


def check(coordinator: str, num_processes: int, process_id: int) -> None:
  """Raises a ValueError if `joined` would."""
  _checks.check_at_least("num_processes", num_processes, 1)
  _checks.check_choice("process_id", process_id, range(num_processes))
  if not coordinator.rpartition(":")[2].isdigit():
    raise ValueError(f"coordinator must be HOST:PORT, got {coordinator!r}.")


@contextlib.contextmanager
def joined(
  coordinator: str,
  num_processes: int,
  process_id: int,
  *,
  how_to_go_on: str = "start all processes again to go on",
) -> Iterator[None]:
  """Makes this process one of several, whose devices are then one set.

  If another process dies, a computation that needs it fails, here and in all
  others, at once or after ``HEARTBEAT`` seconds at most. This one then says so
  and exits with the status ``ABANDONED``: it could only wait for the dead. If
  it was process 0 that died, JAX aborts the others, with a message of its own.

  Args:
    coordinator: HOST:PORT where process 0 listens.
    num_processes: How many there are.
    process_id: Which one this is, from 0.
    how_to_go_on: Advice for the message of a process left alone.

  Raises:
    ValueError: An argument is out of range.
    RuntimeError: The others did not come within ``JOINING`` seconds, or JAX has
      computed something already.

  Example:
    >>> with joined("localhost:0", num_processes=0, process_id=0):
    ...   pass
    Traceback (most recent call last):
    ...
    ValueError: num_processes must be a whole number of at least 1, got 0.

  Reference: jax.distributed.
  """
  check(coordinator, num_processes, process_id)
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(
    coordinator,
    num_processes,
    process_id,
    initialization_timeout=JOINING,
    heartbeat_timeout_seconds=HEARTBEAT,
    shutdown_timeout_seconds=LEAVING,
  )
  try:
    # They meet once while none is busy: at the first meeting JAX's patience is
    # short.
    multihost_utils.sync_global_devices("joined")
    yield
  except BaseException as error:
    if num_processes == 1:
      raise
    if not _left_alone(error):
      _leave(traceback.format_exc(), 130 * isinstance(error, KeyboardInterrupt))
    first = str(error).partition("\n")[0]
    message = (
      f"Process {process_id} of {num_processes} stopped, most likely because"
      f" another process has ended or cannot be reached ({first});"
      f" {how_to_go_on}."
    )
    _leave(message, ABANDONED)
  jax.distributed.shutdown()


def _left_alone(error: BaseException) -> bool:
  """Whether it is what JAX raises if the others cannot be reached."""
  return isinstance(error, jax.errors.JaxRuntimeError) or (
    # Between two jitted functions it is no error of its own kind.
    isinstance(error, ValueError) and "Gloo" in str(error)
  )


def _leave(message: str, status: int) -> NoReturn:
  """Exits at once: on its way out JAX would wait for the other processes."""
  print(message, file=sys.stderr)
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status or 1)
