"""Two processes train as one does; one left alone stops, and both go on."""

import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from oflax import training
from oflax.training import processes
from oflax.training.metrics import read_metrics
from tests.training import toy_processes

# An import may take long on a busy machine.
PATIENCE = 300


def free_port():
  with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    return one.getsockname()[1]


def run_two(directory, kill_at=-1):
  """Both processes to their ends: exit statuses, and what process 0 said."""
  coordinator = f"127.0.0.1:{free_port()}"
  both = [
    subprocess.Popen(
      [
        sys.executable,
        "-m",
        "tests.training.toy_processes",
        *map(str, (directory, coordinator, process, kill_at)),
      ],
      cwd=pathlib.Path(__file__).parents[2],
      env=one_device(),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for process in (0, 1)
  ]
  try:
    both[1].wait(PATIENCE)
    died = time.monotonic()
    said, _ = both[0].communicate(timeout=PATIENCE)
    return [p.returncode for p in both], said, time.monotonic() - died
  finally:
    for process in both:
      process.kill()
      process.communicate()


def one_device():
  """The environment, with one device a process."""
  import os

  flags = "--xla_force_host_platform_device_count=1"
  return {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS"] + " " + flags}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
  directory = tmp_path_factory.mktemp("alone")
  toy_processes.alone(directory)
  return read_metrics(directory / "metrics.csv")


def assert_same(directory, alone):
  rows = read_metrics(directory / "metrics.csv")
  assert [row["step"] for row in rows] == [row["step"] for row in alone]
  for row, want in zip(rows, alone, strict=True):
    np.testing.assert_allclose(row["loss"], want["loss"], atol=1e-5)


def test_two_processes_have_the_losses_of_one(tmp_path, alone):
  codes, said, _ = run_two(tmp_path)
  assert codes == [0, 0], said
  assert_same(tmp_path, alone)


def test_one_killed_the_other_stops_and_both_go_on(tmp_path, alone):
  codes, said, seconds = run_two(tmp_path, kill_at=8)
  assert codes == [processes.ABANDONED, -signal.SIGKILL], said
  assert "another process has ended" in said
  assert "start all processes again to go on" in said
  assert seconds < processes.HEARTBEAT + 10
  assert training.Checkpoints(tmp_path / "checkpoints").steps == [5]
  codes, said, _ = run_two(tmp_path)
  assert codes == [0, 0], said
  assert_same(tmp_path, alone)


def test_an_error_of_the_program_is_told_from_the_loss_of_another_process():
  lost = ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer")
  assert processes._left_alone(lost)
  assert not processes._left_alone(ValueError("steps must be positive."))


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("localhost", 2, 0), "coordinator must be HOST:PORT, got 'localhost'"),
    (("localhost:1", 0, 0), "num_processes must be .*, got 0"),
    (("localhost:1", 2, 2), "process_id must be one of 0, 1, got 2"),
  ],
)
def test_what_does_not_fit_is_refused(arguments, message):
  with (
    pytest.raises(ValueError, match=message),
    training.joined(*arguments),
  ):
    pass
