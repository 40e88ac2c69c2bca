"""Tokens are dealt to shards evenly, and come back in order."""

import jax.numpy as jnp
import numpy as np
import pytest

from oflax.linen.arrangements import Arrangement


@pytest.mark.parametrize("length", [0, 5, 8])
@pytest.mark.parametrize("dealt", [False, True])
def test_what_is_arranged_can_be_restored(length, dealt):
  h = jnp.arange(2.0 * length * 3).reshape(2, length, 3)
  arrangement = Arrangement(2, dealt)
  arranged, _, positions, _ = arrangement.arrange(
    h, None, jnp.arange(length), None
  )
  assert arranged.shape[-2] % (4 if dealt else 2) == 0
  # Positions go along; what was filled up is null.
  present = jnp.any(arranged != 0, axis=-1)
  np.testing.assert_array_equal(
    jnp.where(present, arranged[..., 0], 0),
    jnp.where(present, jnp.take(h[..., 0], positions[0], axis=1), 0)
    if length
    else arranged[..., 0],
  )
  np.testing.assert_array_equal(arrangement.restore(arranged, length), h)


def test_every_shard_has_as_much_to_look_at_in_every_turn():
  shards, n = 4, 64
  positions = np.arange(n)
  _, _, dealt, _ = Arrangement(shards, True).arrange(
    jnp.ones((n, 1)), None, positions, None
  )
  dealt = np.asarray(dealt).reshape(shards, -1)
  seen = dealt[:, None, :, None] >= dealt[None, :, None, :]
  work = seen.sum((-2, -1))
  others = work[~np.eye(shards, dtype=bool)]
  assert np.all(others == others[0])
  assert len(set(np.diag(work))) == 1
