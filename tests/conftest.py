"""A strict climate: silent broadcasting raises, and warnings are errors."""

import os

# Set before jax starts. Several host devices, as users have them; and programs
# this small run once or twice: optimising them costs more than it saves.
os.environ["XLA_FLAGS"] = " ".join(
  (
    os.environ.get("XLA_FLAGS", ""),
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
  )
)

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
  return jax.random.key(0)
