"""The digits study: blank pixels are null tokens, and training shows it."""

import csv
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oflax.studies import bootstrap
from oflax.studies import digits
from oflax.studies import digits_compare
from oflax.studies import digits_data
from oflax.studies import digits_model
from oflax.studies import digits_report

SMALL = {"features": 8, "num_layers": 2, "num_heads": 2, "mlp_dim": 8}


@pytest.fixture(scope="module")
def data():
  return digits_data.load()


@pytest.fixture(scope="module")
def pixels(data):
  return data[0][:6]


def initialised(variant, pixels):
  model = digits_model.DigitClassifier(variant=variant, **SMALL)
  variables = jax.jit(model.init)(jax.random.key(0), pixels)
  noise = jax.random.normal(jax.random.key(1), (64,))
  # No parameter is zero, biases included.
  return model, jax.tree.map(
    lambda x: x + 0.1 * jnp.resize(noise, x.shape), variables
  )


def test_the_images_are_real_and_half_blank(data):
  pixels, labels = data
  assert pixels.shape == (1797, 64)
  assert pixels.dtype == np.float32
  assert (pixels.min(), pixels.max()) == (0, 1)
  assert 0.4 < np.mean(pixels == 0) < 0.6
  assert set(labels) == set(range(10))


def test_a_blank_pixel_is_a_null_token(pixels):
  model, variables = initialised("full", pixels)
  carriers = model.apply(variables, pixels, method="carriers")
  null = np.all(np.asarray(carriers) == 0, axis=-1)
  np.testing.assert_array_equal(null, pixels == 0)


@pytest.mark.parametrize("variant", ["full", "host"])
def test_blank_pixels_may_be_left_out(pixels, variant):
  """Closure for the full model; by its mask for the host."""
  model, variables = initialised(variant, pixels)
  packed = digits_data.pack(pixels, 48, jax.random.key(2))
  apply = jax.jit(model.apply)
  np.testing.assert_allclose(
    apply(variables, *packed),
    apply(variables, pixels),
    rtol=1e-4,
    atol=1e-5,
  )


def test_an_empty_image_gives_finite_logits_and_gradients():
  blank = jnp.zeros((2, 64))
  for variant in ("host", "attention", "full"):
    model, variables = initialised(variant, blank)
    results = jax.jit(
      jax.value_and_grad(
        lambda v, model=model: jnp.sum(model.apply(v, blank) ** 2)
      )
    )(variables)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(results))


def test_the_variants_have_one_tree(pixels):
  shapes = [
    jax.tree.map(jnp.shape, initialised(variant, pixels)[1])
    for variant in ("host", "attention", "full")
  ]
  assert shapes[0] == shapes[1] == shapes[2]


def test_batches_depend_on_their_index_alone(data):
  first = digits_data.batches(*data, 64, seed=0)
  again = digits_data.batches(*data, 64, seed=0)
  first(0)
  np.testing.assert_array_equal(first(40)[0], again(40)[0])
  assert not np.array_equal(first(0)[1], first(1797 // 64)[1])


def test_an_epoch_reads_no_image_twice():
  batch_at = digits_data.batches(np.arange(10), np.arange(10), 5, seed=0)
  seen = [image for index in (0, 1) for image in batch_at(index)[0]]
  assert sorted(seen) == list(range(10))


def test_splits_have_no_image_in_common(data):
  train, test = digits_data.split(data[1], seed=1)
  assert sorted([*train, *test]) == list(range(1797))
  held = [i for _, fold in digits_data.folds(data[1], 0, 5) for i in fold]
  assert sorted(held) == list(range(1797))


def test_the_share_of_ink_dropped_is_exact(pixels):
  for share in digits.SHARES:
    dropped = digits_data.drop_ink(pixels, share, jax.random.key(0))
    kept = np.asarray(dropped) != 0
    ink = np.sum(pixels != 0, axis=-1, dtype=np.float32)
    np.testing.assert_array_equal(
      kept.sum(-1), ink - np.round(np.float32(share) * ink)
    )
    np.testing.assert_array_equal(np.asarray(dropped)[kept], pixels[kept])


def test_augmentation_shifts_by_at_most_a_pixel():
  image = np.zeros((500, 8, 8), np.float32)
  image[:, 4, 4] = 1
  moved = digits_data.augment(image.reshape(-1, 64), jax.random.key(0))
  seen = np.asarray(moved).reshape(-1, 8, 8).sum(0)
  assert np.all(seen[3:6, 3:6] > 20)
  assert seen.sum() == 500


def test_packing_keeps_the_ink(pixels):
  packed, places = digits_data.pack(pixels, 48, jax.random.key(0))
  for image, row, place in zip(pixels, packed, places, strict=True):
    np.testing.assert_array_equal(image[np.asarray(place)], row)
    assert np.sum(row != 0) == np.sum(image != 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp("digits")
  return folder, digits_report.run(folder, steps=2)


def rows(path):
  return list(csv.reader(path.read_text().splitlines()))


def test_a_run_leaves_its_files(run):
  folder, _ = run
  for name in digits_report.FILES:
    assert (folder / name).exists()
  header, row = rows(folder / "metrics.csv")
  assert header == ["step", "loss", "train_accuracy", "test_accuracy"]
  assert row[0] == "2"
  shares = [float(share) for share, _ in rows(folder / "ink.csv")[1:]]
  assert shares == list(digits.SHARES)


def test_the_laws_hold_on_the_trained_model(run):
  assert run[1]["laws"].passed


def test_no_ink_dropped_is_the_test_accuracy(run):
  assert math.isclose(run[1]["ink"][0.0], run[1]["test_accuracy"])


def test_a_folder_in_use_is_refused_unless_resumed(tmp_path):
  settings = {"seed": 0}
  folder = digits_report.open_folder(tmp_path / "a", settings, resume=False)
  with pytest.raises(ValueError, match=r"directory .* not empty.*--resume"):
    digits_report.open_folder(folder, settings, resume=False)
  digits_report.open_folder(folder, settings, resume=True)
  with pytest.raises(ValueError, match=r"holds {'seed': 0}, not .*{'seed': 1}"):
    digits_report.open_folder(folder, {"seed": 1}, resume=True)


def test_a_folder_of_something_else_is_refused(tmp_path):
  (tmp_path / "thesis.txt").touch()
  with pytest.raises(ValueError, match="holds no run"):
    digits_report.open_folder(tmp_path, {}, resume=True)


def test_the_interval_of_a_known_difference():
  difference = (np.arange(1000) >= 100) - 1.0 * (np.arange(1000) >= 200)
  low, high = bootstrap.interval(
    lambda drawn: difference[drawn].mean(axis=1), 1000
  )
  # Normal: 0.1 ± 1.96 sqrt(0.1 · 0.9 / 1000).
  assert low == pytest.approx(0.0814, abs=2e-3)
  assert high == pytest.approx(0.1186, abs=2e-3)


def test_the_comparison_predicts_every_image_out_of_fold(
  tmp_path, data, monkeypatch
):
  """A full model that is right, a host that always says 0."""
  labels = data[1]
  known = {image.tobytes(): label for image, label in zip(*data, strict=True)}
  trained = []

  def train(train_data, test_data, *, variant, directory, **kwargs):
    trained.append(directory.name)
    assert kwargs == {"seed": 0, "steps": 7, "resume": True}
    return variant

  def predict(variant, images):
    right = [known[image.tobytes()] for image in images]
    return np.array(right) if variant == "full" else np.zeros(len(right))

  monkeypatch.setattr(digits, "train", train)
  monkeypatch.setattr(digits, "predict", predict)
  result = digits_compare.compare(tmp_path, seed=0, steps=7)
  assert len(set(trained)) == 10
  assert result.images == 1797
  assert result.full == 1
  assert result.host == pytest.approx(np.mean(labels == 0))
  assert result.low < result.difference == result.full - result.host
  assert "out of fold" in str(result)
