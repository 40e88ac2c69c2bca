"""The benchmark runs whole, compares like with like and says what it lacks."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax import linen
from oflax.studies import bench
from oflax.studies import bench_decode
from oflax.studies import bench_report
from oflax.studies import bench_subjects as subjects


@pytest.fixture
def small(monkeypatch):
  monkeypatch.setattr(subjects, "SIZES", (((2, 8, 2, 4), True),))
  monkeypatch.setattr(subjects, "MODEL_SIZE", (2, 16, 8))
  monkeypatch.setattr(
    subjects, "MODEL", {"num_layers": 1, "num_heads": 2, "mlp_dim": 8}
  )
  monkeypatch.setattr(subjects, "NULL_SHARES", (0.5,))
  monkeypatch.setattr(subjects, "PEAK", 8)
  for name, value in (("BATCH", 2), ("CONTEXT", 8), ("STEPS", 3)):
    monkeypatch.setattr(bench_decode, name, value)
  monkeypatch.setattr(bench_decode, "FEATURES", 16)


def test_it_writes_a_table_a_plot_and_json(small, tmp_path):
  page = bench_report.run(tmp_path, gpu=False, seconds=0)
  content = json.loads((tmp_path / "benchmarks.json").read_text())
  assert len({row["group"] for row in content["rows"]}) == 6
  assert (tmp_path / "benchmarks.md").read_text() == page
  assert (tmp_path / "benchmarks.png").stat().st_size > 5000
  assert "attention, N = 8, forward: jax.nn, bias" in page
  assert page.endswith("## GPU\n\nNot measured.\n")
  # What was measured is kept; a run on another machine is not mixed in.
  again = bench_report.run(tmp_path, gpu=False, seconds=0, resume=True)
  assert again == page
  content["machine"]["jax"] = "0.0"
  (tmp_path / "benchmarks.json").write_text(json.dumps(content))
  with pytest.raises(ValueError, match=r"directory .* holds a run made with"):
    bench_report.run(tmp_path, gpu=False, seconds=0, resume=True)
  with pytest.raises(ValueError, match=r"only must be part .*'nothing'"):
    bench_report.run(tmp_path, gpu=False, seconds=0, only="nothing")


def test_all_attentions_with_presences_compute_the_same(small):
  made = subjects.attention((2, 8, 2, 4), backward=False)
  by_name = {subject.name: subject for subject in made}
  want = np.asarray(by_name[subjects.BIAS].fn(*by_name[subjects.BIAS].inputs))
  p = np.asarray(by_name[subjects.OURS].inputs[-1])[..., None, None]
  names = (subjects.OURS, subjects.BLOCKED, "oflax, folded")
  for name in names:
    got = by_name[name].fn(*by_name[name].inputs)
    np.testing.assert_allclose(got, p * want, atol=1e-6)


def test_flax_decodes_the_same(small):
  made = [*bench_decode.steps(), *bench_decode.prefill()]
  out = [jax.jit(s.fn)(*s.inputs) for s in made if s.jitted]
  full, ragged, flax, masked, prefill, one_by_one, flax_one_by_one = out
  pairs = [(full, flax), (prefill, one_by_one), (prefill, flax_one_by_one)]
  for ours, theirs in pairs:
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
  # The last row is as long as the context, and its padded form nothing else.
  np.testing.assert_allclose(ragged[-1], masked[-1], atol=1e-5)
  assert ragged.shape == masked.shape


def test_the_masked_flax_model_is_the_host_of_our_parameters(small):
  made = {s.name: s for s in subjects.models(0.5, training=False)}
  compacted, dense, _ = (s.fn(*s.inputs) for s in made.values())
  np.testing.assert_allclose(compacted, dense, atol=1e-5)
  peer = made[subjects.FLAX]
  params, h = peer.inputs
  present = np.any(np.asarray(h) != 0, axis=-1)
  host = linen.OTransformer(variant="host", **subjects.MODEL)
  want = host.apply({"params": params}, h, mask=present[:, None, None])
  got = np.asarray(peer.fn(params, h))
  np.testing.assert_allclose(got[present], want[present], atol=1e-5)


def test_peers_agree_with_pytorch():
  pytest.importorskip("torch", reason="PyTorch is not installed")
  made = {s.name: s for s in subjects.attention((2, 8, 2, 4), backward=False)}
  bias = made[subjects.BIAS]
  want = np.moveaxis(np.asarray(bias.fn(*bias.inputs)), 1, 2)
  got = made[subjects.TORCH_MASK].fn()
  np.testing.assert_allclose(got.numpy(), want, atol=1e-6)


def test_what_does_not_run_says_why():
  def broken(x):
    raise TypeError("no such thing")

  x = jnp.ones((64, 64))
  rows = bench.measure(
    "group",
    [
      bench.Subject("broken", broken, (x,), jitted=False),
      bench.Subject("large", lambda x: jnp.sort(x @ x) @ x, (x,)),
    ],
    memory=1.0,
    rounds=(1, 1),
  )
  assert rows[0].note == "TypeError: no such thing"
  assert rows[1].note.startswith("not run: ")
  assert [row.runs for row in rows] == [0, 0]
