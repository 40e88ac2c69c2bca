"""scikit-learn's digits: real images of 8 x 8 pixels, half of them blank."""

from collections.abc import Callable
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from oflax.studies.digits_model import SIDE

Array = jax.Array | np.ndarray
Data = tuple[np.ndarray, np.ndarray]

# Largest shift and largest share of ink dropped, of the augmentation.
SHIFT = 1
DROP = 0.2
TEST_SHARE = 0.2


def load() -> Data:
  """The data set.

  Returns:
    Intensities in [0, 1], float32 ``[1797, 64]``, and labels, int32 ``[1797]``.

  Example:
    >>> pixels, labels = load()
    >>> pixels.shape, round(float((pixels == 0).mean()), 2)
    ((1797, 64), 0.49)

  Reference: scikit-learn, load_digits.
  """
  from sklearn import datasets

  pixels, labels = datasets.load_digits(return_X_y=True)
  return (pixels / 16).astype(np.float32), labels.astype(np.int32)


def split(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Indices of training and of test images, one fifth, equal in classes."""
  from sklearn import model_selection

  return model_selection.train_test_split(
    np.arange(len(labels)),
    test_size=TEST_SHARE,
    stratify=labels,
    random_state=seed,
  )


def folds(
  labels: np.ndarray, seed: int, number: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Indices of training and of test images, fold by fold."""
  from sklearn import model_selection

  splitter = model_selection.StratifiedKFold(
    number, shuffle=True, random_state=seed
  )
  return splitter.split(labels, labels)


def batches(
  pixels: np.ndarray,
  labels: np.ndarray,
  size: int,
  seed: int,
  part: tuple[int, int] = (0, 1),
) -> Callable[[int], Data]:
  """The batch of a step, from its index alone: an epoch is one permutation.

  Args:
    pixels: ``[n, 64]``.
    labels: ``[n]``.
    size: Of a batch; what is left over of an epoch is not read.
    seed: Of the permutations.
    part: (k, n): only the k-th of n equal parts of every batch.

  Returns:
    Index of the step to pixels ``[size, 64]`` and labels ``[size]``.

  Raises:
    ValueError: `size` exceeds the number of images, or n does not divide it.

  Example:
    >>> batch_at = batches(np.zeros((4, 64)), np.arange(4), size=2, seed=0)
    >>> sorted([*batch_at(0)[1].tolist(), *batch_at(1)[1].tolist()])
    [0, 1, 2, 3]
  """
  if size > len(labels):
    raise ValueError(f"size must be at most {len(labels)} images, got {size}.")
  number, parts = part
  if size % parts:
    raise ValueError(f"size must be a multiple of {parts} parts, got {size}.")
  per_epoch, own = len(labels) // size, size // parts

  def batch_at(index: int) -> Data:
    epoch, place = divmod(index, per_epoch)
    order = np.random.default_rng((seed, epoch)).permutation(len(labels))
    first = place * size + number * own
    chosen = order[first : first + own]
    return pixels[chosen], labels[chosen]

  return batch_at


def augment(pixels: Array, key: jax.Array) -> jax.Array:
  """Shifts every image by up to a pixel and drops up to a fifth of its ink.

  Args:
    pixels: ``[b, 64]``.
    key: Random key.

  Returns:
    ``[b, 64]``.
  """
  shift_key, share_key, drop_key = jax.random.split(key, 3)
  images = pixels.reshape(-1, SIDE, SIDE)
  images = jnp.pad(images, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
  corners = jax.random.randint(shift_key, (len(images), 2), 0, 2 * SHIFT + 1)
  shifted = jax.vmap(
    lambda image, corner: jax.lax.dynamic_slice(image, corner, (SIDE, SIDE))
  )(images, corners).reshape(pixels.shape)
  share = jax.random.uniform(share_key, (len(images), 1), maxval=DROP)
  return drop_ink(shifted, share, drop_key)


def drop_ink(
  pixels: Array, share: float | jax.Array, key: jax.Array
) -> jax.Array:
  """Sets a share of the inked pixels to blank, at random.

  Args:
    pixels: ``[b, 64]``.
    share: In [0, 1], a scalar or ``[b, 1]``.
    key: Random key.

  Returns:
    ``[b, 64]``.

  Example:
    >>> ink = jnp.array([[0.0, 0.3, 0.7, 0.0, 1.0, 0.2]])
    >>> int((drop_ink(ink, 0.5, jax.random.key(0)) != 0).sum())
    2
  """
  inked = jnp.sum(pixels != 0, axis=-1, keepdims=True)
  rank = jnp.argsort(_random_order(pixels, key), axis=-1)
  return jnp.where(rank < jnp.round(share * inked), 0, pixels)


def pack(
  pixels: Array, size: int, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The inked pixels in front, in random order; those beyond `size` are lost.

  To leave out null tokens changes nothing, by closure, and is faster.

  Args:
    pixels: ``[b, 64]``.
    size: Pixels to keep.
    key: Random key, of the order: a surplus is lost at random.

  Returns:
    Pixels and their places, ``[b, size]`` each.

  Example:
    >>> ink = jnp.array([[0.0, 0.0, 1.0]])
    >>> pixels, places = pack(ink, 1, jax.random.key(0))
    >>> pixels.tolist(), places.tolist()
    ([[1.0]], [[2]])
  """
  places = _random_order(pixels, key)[:, :size]
  return jnp.take_along_axis(pixels, places, axis=-1), places


def _random_order(pixels: Array, key: jax.Array) -> jax.Array:
  """Indices, the inked pixels first, else at random."""
  noise = jax.random.uniform(key, pixels.shape)
  return jnp.argsort(jnp.where(pixels != 0, noise, 1 + noise), axis=-1)
