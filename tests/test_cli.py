"""The command: its options, what it refuses, and Ctrl-C."""

import re
import subprocess
import sys

import pytest
from typer import testing

from oflax import cli
from oflax.studies import ablation_report
from oflax.studies import bench_report
from oflax.studies import digits
from oflax.studies import digits_compare
from oflax.studies import digits_report
from oflax.studies import pictures
from oflax.studies import pretrain
from oflax.studies import pretrain_report
from oflax.studies import reproduce
from oflax.studies import retrofit_report
from oflax.studies import tables_report


def call(*arguments):
  return testing.CliRunner().invoke(
    cli.app, [str(argument) for argument in arguments], terminal_width=200
  )


@pytest.fixture
def calls(monkeypatch):
  seen = []
  monkeypatch.setattr(
    digits_report, "run", lambda *args, **kwargs: seen.append((args, kwargs))
  )
  return seen


def test_train_passes_its_options_on(calls, tmp_path):
  folder = tmp_path / "run"
  result = call(
    "train", "--variant", "host", "--seed", 3, "--steps", 9, "--directory",
    folder,
  )  # fmt: skip
  assert result.exit_code == 0, result.output
  settings = {"variant": "host", "seed": 3, "steps": 9, "resume": False}
  assert calls == [((folder,), settings)]


def test_the_default_folder_names_variant_and_seed(
  calls, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  assert call("train", "--seed", 2).exit_code == 0
  (((folder,), settings),) = calls
  assert str(folder) == "runs/digits-full-2"
  assert settings["steps"] == digits.STEPS


def test_a_used_folder_needs_resume(calls, tmp_path):
  arguments = ("train", "--directory", tmp_path / "run")
  assert call(*arguments).exit_code == 0
  refused = call(*arguments)
  assert refused.exit_code == 2
  assert "--resume" in refused.output
  assert call(*arguments, "--resume").exit_code == 0
  refused = call(*arguments, "--resume", "--steps", 5)
  assert refused.exit_code == 2
  assert "'steps': 5" in refused.output
  assert len(calls) == 2


@pytest.mark.parametrize(
  ("option", "value"),
  [("--variant", "ordinary"), ("--seed", "-1"), ("--steps", "0")],
)
def test_a_wrong_option_is_refused_by_name_and_value(calls, option, value):
  result = call("train", option, value)
  assert result.exit_code == 2
  assert option in result.output
  assert value in result.output
  assert not calls


def test_a_file_for_a_folder_is_refused(calls, tmp_path):
  (tmp_path / "file").touch()
  assert call("train", "--directory", tmp_path / "file").exit_code == 2


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch):
  def interrupted(*args, **kwargs):
    raise KeyboardInterrupt

  monkeypatch.setattr(digits_report, "run", interrupted)
  result = call("train", "--directory", tmp_path / "run")
  assert result.exit_code == 130
  assert "--resume" in result.output


def test_compare_digits_prints_the_comparison(tmp_path, monkeypatch):
  monkeypatch.setattr(
    digits_compare,
    "compare",
    lambda folder, **kwargs: (folder.name, kwargs),
  )
  result = call("compare-digits", "--steps", 4, "--directory", tmp_path / "run")
  assert result.output == "('run', {'seed': 0, 'steps': 4})\n"


def test_pretrain_passes_its_options_on(tmp_path, monkeypatch):
  seen = []
  monkeypatch.setattr(
    pretrain_report, "run", lambda *args, **kwargs: seen.append((args, kwargs))
  )
  monkeypatch.chdir(tmp_path)
  assert call("pretrain", "--seed", 2).exit_code == 0
  assert call("pretrain", "--seed", 2).exit_code == 2
  assert call("pretrain", "--seed", 2, "--resume").exit_code == 0
  assert [str(folder) for (folder,), _ in seen] == ["runs/v3-mini-2"] * 2
  settings = {"seed": 2, "steps": pretrain.STEPS}
  assert [kwargs for _, kwargs in seen] == [
    {**settings, "resume": False},
    {**settings, "resume": True},
  ]


def test_bench_writes_what_it_prints(tmp_path, monkeypatch):
  seen = []

  def run(folder, *, gpu, seconds, only, resume, on_group, on_subject):
    on_group("group")
    on_subject("subject")
    seen.append((folder, gpu, seconds, only, resume))
    return "# Benchmarks"

  monkeypatch.setattr(bench_report, "run", run)
  result = call("bench", "N = 512", "--directory", tmp_path)
  assert result.exit_code == 0, result.output
  assert "# Benchmarks" in result.output
  assert seen == [(tmp_path, False, 20, "N = 512", False)]


def test_bench_needs_the_device_it_is_given():
  result = call("bench", "--device", "abacus")
  assert result.exit_code == 2
  assert "--device abacus" in result.output


@pytest.mark.parametrize(
  ("command", "module", "name"),
  [
    ("ablate", ablation_report, "run"),
    ("retrofit", retrofit_report, "run"),
    ("compare-tables", tables_report, "compare"),
    ("reproduce", reproduce, "run"),
    ("pictures", pictures, "run"),
  ],
)
def test_a_study_writes_to_its_folder(
  command, module, name, tmp_path, monkeypatch
):
  seen = []
  monkeypatch.setattr(
    module, name, lambda folder, *args, **kwargs: seen.append(folder)
  )
  result = call(command, "--directory", tmp_path / "new")
  assert result.exit_code == 0, result.output
  assert seen == [tmp_path / "new"]


@pytest.mark.parametrize("command", ["retrofit", "compare-tables", "reproduce"])
def test_a_checkpoint_that_is_none_is_refused(command, tmp_path):
  file = tmp_path / "weights.safetensors"
  assert call(command, "--checkpoint", file).exit_code == 2
  file.write_bytes(b"nothing")
  folder = tmp_path / "new"
  refused = call(command, "--checkpoint", file, "--directory", folder)
  assert refused.exit_code == 2
  # Wherever a line of it ends.
  assert "headertoosmall" in re.sub("[^a-z]", "", refused.output)
  assert not folder.exists()


def test_help_waits_for_neither_plots_nor_data():
  code = (
    "import sys, oflax.cli\n"
    "print({'matplotlib', 'sklearn', 'orbax.checkpoint'} & {*sys.modules})"
  )
  result = subprocess.run(
    [sys.executable, "-c", code], check=True, capture_output=True, text=True
  )
  assert result.stdout == "set()\n"
  assert "train" in call("--help").output


def test_one_of_several_processes_needs_to_know_all_three(calls, tmp_path):
  refused = call("train", "--num-processes", 2, "--directory", tmp_path)
  assert refused.exit_code == 2
  assert "--coordinator" in refused.output
  assert "--process-id" in refused.output
  refused = call(
    "train", "--coordinator", "here:1", "--num-processes", 2, "--process-id", 2
  )
  assert refused.exit_code == 2
  assert "process_id must be one of 0, 1, got 2" in " ".join(
    refused.output.replace("│", "").split()
  )
  assert not calls
