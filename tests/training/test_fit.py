"""A run stopped anywhere ends as an unbroken one, bit for bit."""

import pathlib
import signal
import subprocess
import sys

from flax import linen as nn
import jax
import numpy as np
import optax
import pytest

from oflax import training
from tests.training import toy


def assert_same_bits(actual, expected):
  pairs = zip(
    jax.tree.leaves_with_path((actual.variables, actual.opt_state)),
    jax.tree.leaves((expected.variables, expected.opt_state)),
    strict=True,
  )
  for (path, x), y in pairs:
    np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


def metrics(directory):
  return (pathlib.Path(directory) / "metrics.csv").read_text()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  directory = tmp_path_factory.mktemp("unbroken")
  return toy.fit(directory), metrics(directory)


def stopping_at(stop, error):
  def batches(index):
    if index == stop:
      raise error
    return toy.batch_at(index)

  return batches


@pytest.mark.parametrize("stop", [0, 1, 5, 7, 11])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path, unbroken, stop, error):
  if stop == 0 and error is RuntimeError:
    stop = 2
  with pytest.raises(error):
    toy.fit(tmp_path, batches=stopping_at(stop, error))
  state = toy.fit(tmp_path, resume=True)
  assert_same_bits(state, unbroken[0])
  assert metrics(tmp_path) == unbroken[1]


def test_a_killed_process_resumes_bit_for_bit(tmp_path, unbroken):
  killed = subprocess.run(
    [sys.executable, "-m", "tests.training.toy", str(tmp_path), "9"],
    cwd=pathlib.Path(__file__).parents[2],
    check=False,
  )
  assert killed.returncode == -signal.SIGKILL
  assert training.Checkpoints(tmp_path / "checkpoints").steps == [5]
  state = toy.fit(tmp_path, resume=True)
  assert_same_bits(state, unbroken[0])
  assert metrics(tmp_path) == unbroken[1]


def test_rows_after_the_checkpoint_and_torn_rows_are_written_anew(
  tmp_path, unbroken
):
  with pytest.raises(RuntimeError):
    toy.fit(tmp_path, batches=stopping_at(9, RuntimeError))
  with (tmp_path / "metrics.csv").open("a") as file:
    file.write("1")
  toy.fit(tmp_path, resume=True)
  assert metrics(tmp_path) == unbroken[1]


def test_ctrl_c_saves_a_checkpoint_and_says_how_to_go_on(tmp_path):
  batches = stopping_at(3, KeyboardInterrupt)
  with pytest.raises(KeyboardInterrupt, match=r"step 3 of 12.*resume=True"):
    toy.fit(tmp_path, batches=batches)
  assert training.Checkpoints(tmp_path / "checkpoints").steps == [3]


def test_ctrl_c_in_a_row_of_metrics_counts_the_step_as_not_made(
  tmp_path, unbroken
):
  def evaluate(state):
    if int(state.step) == 4:
      raise KeyboardInterrupt
    return {}

  with pytest.raises(KeyboardInterrupt, match="step 3 of 12"):
    toy.fit(tmp_path, evaluate=evaluate)
  assert_same_bits(toy.fit(tmp_path, resume=True), unbroken[0])
  assert metrics(tmp_path) == unbroken[1]


def test_a_finished_run_resumes_to_its_end(tmp_path, unbroken):
  toy.fit(tmp_path)
  batches = stopping_at(0, AssertionError)
  assert_same_bits(toy.fit(tmp_path, batches=batches, resume=True), unbroken[0])


def test_metrics_are_rows_of_csv(unbroken):
  header, *rows = unbroken[1].splitlines()
  assert header == "step,loss,weight"
  assert [row.split(",")[0] for row in rows] == ["2", "4", "6", "8", "10", "12"]


def test_evaluate_adds_columns(tmp_path):
  toy.fit(tmp_path, evaluate=lambda state: {"steps": state.step}, num_steps=2)
  header, row = metrics(tmp_path).splitlines()
  assert header == "step,loss,weight,steps"
  assert row.endswith(",2")


def test_the_first_batch_calibrates_unless_told_not_to():
  calibrated = toy.create_state().calibrate(toy.batch_at(0)).collections
  state = toy.fit(num_steps=1)
  jax.tree.map(np.testing.assert_array_equal, state.collections, calibrated)
  state = toy.fit(num_steps=1, calibrate=False)
  assert set(map(float, jax.tree.leaves(state.collections))) == {1.0}


def test_a_state_past_step_0_is_not_calibrated_anew():
  state = toy.fit(num_steps=1, calibrate=False)
  state = toy.fit(state=state, num_steps=2)
  assert set(map(float, jax.tree.leaves(state.collections))) == {1.0}


def test_what_cannot_be_calibrated_is_refused():
  dense = nn.Dense(4)
  state = training.create_state(
    dense, optax.sgd(0.1), jax.random.key(0), toy.batch_at(0)
  )
  with pytest.raises(ValueError, match=r"calibrate=True.*no OPresence"):
    toy.fit(state=state)


@pytest.mark.parametrize(
  "name", ["num_steps", "log_every", "checkpoint_every", "keep"]
)
def test_counts_below_1_are_refused(name):
  with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
    toy.fit(**{name: 0})


def test_a_used_directory_is_refused_unless_resumed(tmp_path):
  toy.fit(tmp_path, num_steps=2)
  with pytest.raises(ValueError, match=r"directory .* run of 2 steps"):
    toy.fit(tmp_path, num_steps=2)
  with pytest.raises(ValueError, match="num_steps must be at least the 2"):
    toy.fit(tmp_path, num_steps=1, resume=True)


def test_resume_without_a_directory_is_refused():
  with pytest.raises(ValueError, match="resume needs a directory, got None"):
    toy.fit(resume=True)


def test_a_checkpoint_of_another_module_is_refused(tmp_path):
  toy.fit(tmp_path, num_steps=2)
  other = toy.create_state(toy.MODULE.clone(mlp_dim=6))
  with pytest.raises(ValueError, match=r"does not fit: .*ffn.*\[8.*\[6"):
    toy.fit(tmp_path, state=other, resume=True)


def test_metrics_that_change_their_names_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"metrics must be 'step,loss,weight'"):
    toy.fit(
      tmp_path,
      evaluate=lambda state: {"late": 0.0} if int(state.step) > 2 else {},
    )
