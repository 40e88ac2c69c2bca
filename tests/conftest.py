"""A strict climate: silent broadcasting raises, and warnings are errors."""

import os

import jaxlib.version
import pytest

# Programs this small run once or twice: optimising them costs more than it
# saves, and so does emitting their fusions the newer way, where one may choose.
QUICK = "--xla_backend_optimization_level=0"
if jaxlib.version.__version_info__ < (0, 11):
  QUICK += " --xla_cpu_use_fusion_emitters=false"

# Read by jax when it starts. Several host devices, as users have them.
FLAGS = f"--xla_force_host_platform_device_count=8 {QUICK}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
  return jax.random.key(0)
