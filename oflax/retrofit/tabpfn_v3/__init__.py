"""TabPFN v3 in Flax, a regressor that learns in context, and its O variants.

A port from a description of the architecture of Prior Labs' TabPFN-3 (arXiv
2605.13986). It ships no weights; those of others carry a licence of their own.
"""

try:
  import safetensors as _safetensors  # noqa: F401
  import sklearn as _sklearn  # noqa: F401
except ImportError as error:
  raise ImportError(
    f"oflax.retrofit.tabpfn_v3 needs {error.name}, which is not installed: pip"
    " install 'oflax[retrofit]'."
  ) from error

from oflax.retrofit.tabpfn_v3.bar_distribution import BarDistribution
from oflax.retrofit.tabpfn_v3.bar_distribution import default_borders
from oflax.retrofit.tabpfn_v3.config import V3Config
from oflax.retrofit.tabpfn_v3.loading import load
from oflax.retrofit.tabpfn_v3.loading import save
from oflax.retrofit.tabpfn_v3.module import TabPFNV3
from oflax.retrofit.tabpfn_v3.regressor import InContextRegressor
from oflax.retrofit.tabpfn_v3.thresholds import calibrated

__all__ = (
  "BarDistribution",
  "InContextRegressor",
  "TabPFNV3",
  "V3Config",
  "calibrated",
  "default_borders",
  "load",
  "save",
)
