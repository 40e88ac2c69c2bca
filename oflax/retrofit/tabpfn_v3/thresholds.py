"""The thresholds of the presences: computed, and kept with the weights."""

from collections.abc import Mapping
import hashlib
import json
import os
import pathlib
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax.linen import calibrate
from oflax.retrofit import synthetic
from oflax.retrofit.tabpfn_v3 import files
from oflax.retrofit.tabpfn_v3.module import TabPFNV3

# Chosen before any real table was looked at.
ALPHA = 1e-3
# The entry of a file's header, and of the file beside it.
ENTRY = "oflax_calibration"


def calibrated(
  module: TabPFNV3, variables: Mapping[str, Any], alpha: float = ALPHA
) -> dict[str, Any]:
  r"""Sets every threshold from synthetic tables.

  .. math:: \tau = \alpha \cdot \mathrm{median} \|h\|^2

  over the tokens that its site sees, so that the median token has the presence
  1 / (1 + α).

  Args:
    module: The module, in any variant: nothing is absent to the tokens.
    variables: Its variables; "calibration" may be missing.
    alpha: Positive.

  Returns:
    The variables with new thresholds.

  Raises:
    ValueError: `alpha` is not positive.

  Example:
    >>> import jax, jax.numpy as jnp
    >>> from oflax.retrofit.tabpfn_v3 import TabPFNV3, V3Config
    >>> config = V3Config(
    ...   num_buckets=10,
    ...   embed_dim=8,
    ...   nlayers=1,
    ...   dist_embed_num_blocks=1,
    ...   feat_agg_num_blocks=1,
    ...   feat_agg_num_heads=2,
    ... )
    >>> module = TabPFNV3(config)
    >>> init = jax.jit(module.init)
    >>> variables = init(jax.random.key(0), jnp.ones((5, 3)), jnp.ones(4))
    >>> variables = calibrated(module, variables)
    >>> bool(variables["calibration"]["output_presence"]["tau"] < 1)
    True

  Reference: oflax.linen.calibrate.
  """
  _checks.check_positive("alpha", alpha)
  tables = synthetic.tables()
  # The full variant, lest the columns that a table lacks be looked at.
  return calibrate(
    module.clone(variant="full", implementation="reference"),
    variables,
    tables.x,
    tables.y,
    column_present=tables.column_present,
    presence=1 / (1 + alpha),
    quantile=0.5,
  )


def find(
  path: str | os.PathLike[str],
  contents: files.Contents,
  sites: set[str],
  module: TabPFNV3,
  variables: Mapping[str, Any],
) -> dict[str, Any]:
  """The collection "calibration" for a file; see `load`."""
  if ENTRY in contents.entries:
    return _tree(path, contents.entries[ENTRY], sites)
  if module.variant == "host":
    return _tree(path, dict.fromkeys(sites, module.tau), sites)
  beside = pathlib.Path(f"{os.fspath(path)}.tau.json")
  digest = _digest(contents)
  known = _read(beside)
  if known.get("digest") == digest:
    return _tree(beside, known.get(ENTRY), sites)
  found = calibrated(module, variables)
  taus = entry(traverse_util.flatten_dict(found, sep="/"), sites)
  try:
    text = json.dumps({"digest": digest, **taus}, indent=1)
    files.write_whole(beside, text.encode())
  except OSError:
    pass  # A folder that may only be read: computed again the next time.
  return {"calibration": found["calibration"]}


def entry(flat: Mapping[str, Any], sites: Any) -> dict[str, Any]:
  """The thresholds as an entry of a header; none if none are there."""
  sites = sorted(name for name in sites if name.startswith("calibration/"))
  taus = {name: float(flat[name]) for name in sites if name in flat}
  if taus:
    _tree("variables", taus, set(sites))
  return {ENTRY: taus} if taus else {}


def _tree(path: Any, taus: Any, sites: set[str]) -> dict[str, Any]:
  if not isinstance(taus, Mapping) or set(taus) != sites:
    have = sorted(taus) if isinstance(taus, Mapping) else taus
    raise ValueError(
      f"{path} must have {len(sites)} thresholds in {ENTRY}, those of its"
      f" config, got {have!r:.80}."
    )
  for name, tau in taus.items():
    if not isinstance(tau, int | float):
      raise ValueError(f"{path}: {name} must be a number, got {tau!r}.")
    _checks.check_positive(f"{path}: {name}", tau)
  flat = {name: jnp.float32(tau) for name, tau in taus.items()}
  tree: dict[str, Any] = traverse_util.unflatten_dict(flat, sep="/")
  return tree


def _read(path: pathlib.Path) -> dict[str, Any]:
  """What is known of a file; nothing if that is damaged."""
  try:
    known = json.loads(path.read_text())
  except (OSError, ValueError):
    return {}
  return known if isinstance(known, dict) else {}


def _digest(contents: files.Contents) -> str:
  """Of what the thresholds depend on."""
  known: list[Any] = [ALPHA, jax.tree.map(str, contents.entries["config"])]
  digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
  for array in (*synthetic.tables()[:2], *contents.tensors.values()):
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()
