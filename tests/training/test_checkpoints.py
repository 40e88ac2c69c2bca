"""Checkpoints come back whole or not at all."""

import gc

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from oflax.training import Checkpoints

# Where a read fails, Orbax leaves its other reads to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
  "ignore::pytest.PytestUnraisableExceptionWarning",
  "ignore:coroutine:RuntimeWarning",
)


@pytest.fixture(autouse=True)
def collect_what_orbax_leaves():
  yield
  gc.collect()


def tree(value):
  return {
    "key": jax.random.key(3),
    "bfloat": jnp.full(3, value, jnp.bfloat16),
    # Too random to compress: a flipped bit of it is read back as a number.
    "weight": value + jax.random.normal(jax.random.key(0), (64, 64)),
  }


@pytest.fixture
def checkpoints(tmp_path):
  checkpoints = Checkpoints(tmp_path, keep=2)
  for step in (1, 2, 3):
    checkpoints.save(step, tree(step))
  return checkpoints


def values(folder):
  """The file that holds the weights."""
  files = (path for path in folder.rglob("*") if path.is_file())
  return max(files, key=lambda path: path.stat().st_size)


def delete(path):
  path.unlink()


def truncate(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0x10
  path.write_bytes(content)


def test_the_newest_are_kept(checkpoints):
  assert checkpoints.steps == [2, 3]


def test_the_newest_comes_back_bit_for_bit(checkpoints):
  step, restored = checkpoints.restore(tree(0))
  assert step == 3
  assert restored["key"] == tree(3)["key"]
  for name in ("bfloat", "weight"):
    assert restored[name].dtype == tree(3)[name].dtype
    np.testing.assert_array_equal(restored[name], tree(3)[name])


@pytest.mark.parametrize("damage", [delete, truncate, flip])
def test_a_damaged_one_is_passed_over(tmp_path, checkpoints, damage):
  damage(values(tmp_path / "3"))
  with pytest.warns(UserWarning, match="checkpoint 3 .* is damaged"):
    step, restored = Checkpoints(tmp_path).restore(tree(0))
  assert step == 2
  np.testing.assert_array_equal(restored["weight"], tree(2)["weight"])


def test_a_damaged_one_gives_way_to_a_new_one(tmp_path, checkpoints):
  flip(values(tmp_path / "3"))
  checkpoints = Checkpoints(tmp_path)
  with pytest.warns(UserWarning, match="damaged"):
    checkpoints.restore(tree(0))
  checkpoints.save(3, tree(3))
  assert checkpoints.restore(tree(0))[0] == 3


def test_nothing_but_damage_is_an_error_and_deletes_nothing(
  tmp_path, checkpoints
):
  for step in ("2", "3"):
    flip(values(tmp_path / step))
  with (
    pytest.warns(UserWarning, match="damaged"),
    pytest.raises(ValueError, match=r"damaged ones at steps \[2, 3\]"),
  ):
    checkpoints.restore(tree(0))
  assert checkpoints.steps == [2, 3]


def test_a_save_cut_short_is_not_there(tmp_path, checkpoints):
  (tmp_path / "3").rename(tmp_path / "4.orbax-checkpoint-tmp")
  assert Checkpoints(tmp_path).restore(tree(0))[0] == 2


def test_no_checkpoint_is_none(tmp_path):
  assert Checkpoints(tmp_path).restore(tree(0)) is None


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"weight": jnp.zeros((64, 2))}, r"weight is float32\[64, 64\] in it, but"),
    ({"bfloat": jnp.zeros(3)}, r"bfloat is bfloat16\[3\] in it, but float32"),
    ({"extra": jnp.zeros(1)}, "extra is missing in it"),
  ],
)
def test_another_tree_is_refused(checkpoints, change, message):
  with pytest.raises(ValueError, match=message):
    checkpoints.restore({**tree(0), **change})


def test_keep_below_1_is_refused(tmp_path):
  with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
    Checkpoints(tmp_path, keep=0)


def test_an_asynchronous_save_is_there_at_the_next_call(tmp_path):
  checkpoints = Checkpoints(tmp_path, asynchronous=True)
  checkpoints.save(1, tree(1))
  assert checkpoints.steps == [1]
  checkpoints.save(2, tree(2))
  step, restored = checkpoints.restore(tree(0))
  assert step == 2
  np.testing.assert_array_equal(restored["weight"], tree(2)["weight"])
  checkpoints.close()


def on_mesh(tree, *shape):
  """The weight cut over a mesh, the rest on all of its devices."""
  names = ("a", "b", "c")[: len(shape)]
  count = int(np.prod(shape))
  mesh = Mesh(np.array(jax.devices()[:count]).reshape(shape), names)
  specs = {name: P() for name in tree} | {"weight": P("a", names[-1])}
  return jax.device_put(
    tree, {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
  )


def test_what_one_mesh_saved_another_or_one_device_restores(tmp_path):
  checkpoints = Checkpoints(tmp_path)
  checkpoints.save(1, on_mesh(tree(1), 4, 2))
  for like in (on_mesh(tree(0), 2, 2, 2), tree(0), on_mesh(tree(0), 4, 2)):
    _, restored = checkpoints.restore(like)
    for name, value in like.items():
      assert restored[name].sharding == value.sharding
    np.testing.assert_array_equal(restored["weight"], tree(1)["weight"])
    assert restored["key"] == tree(1)["key"]
