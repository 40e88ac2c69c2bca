"""The thresholds of a BertEncoder: measured, shipped, put in place."""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax.linen import calibration
from oflax.retrofit.minilm_encoder import BertEncoder
from oflax.retrofit.minilm_encoder import check_ids

FILE = pathlib.Path(__file__).with_name("minilm_tau.json")
ALPHA = 1e-3


def measure_tau(
  encoder: BertEncoder,
  variables: Mapping[str, Any],
  ids: jax.Array | np.ndarray,
  *,
  alpha: float = ALPHA,
) -> dict[str, float]:
  r"""Thresholds in proportion to the tokens that each site sees.

  .. math:: \tau = \alpha \cdot \mathrm{median} \, \|h\|^2

  over the present tokens of the ids.

  Args:
    encoder: Of any variant.
    variables: Its variables; only the parameters matter.
    ids: Sentences, ``[B, n]``.
    alpha: Positive: the presence of the median token is 1 / (1 + α).

  Returns:
    Site to threshold, for `load`.

  Raises:
    ValueError: `alpha` is not positive, no token is present, or the ids are not
      those of sentences.

  Example:
    >>> encoder = BertEncoder(50, 8, num_layers=1, num_heads=2, mlp_dim=16)
    >>> ids = np.array([[3, 4], [7, 0]])
    >>> variables = encoder.init(jax.random.key(0), ids)
    >>> tau = measure_tau(encoder, variables, ids)
    >>> tau["body/block_0/ffn_presence"]  # 8 features of variance 1
    0.008

  Reference: oflax.linen.calibrate.
  """
  _checks.check_positive("alpha", alpha)
  full = encoder.clone(variant="full")
  measured = calibration.calibrate(
    full,
    {"params": variables["params"]},
    jnp.asarray(check_ids(full, ids)),
    presence=1 / (1 + alpha),
    quantile=0.5,
  )
  return {
    site: float(f"{float(tau):.6g}")
    for site, tau in _flat(measured["calibration"]).items()
  }


def as_variables(
  encoder: BertEncoder, tau: Mapping[str, float]
) -> dict[str, Any]:
  """The collection "calibration" with these thresholds in it.

  Raises:
    ValueError: The sites are not those of the encoder, or a threshold is not
      positive.
  """
  shapes = jax.eval_shape(
    encoder.clone(variant="full").init,
    jax.random.key(0),
    jax.ShapeDtypeStruct((1, 1), jnp.int32),
  )
  sites = _flat(shapes["calibration"])
  if set(sites) != set(tau):
    odd = sorted(set(sites) ^ set(tau))
    raise ValueError(
      f"tau must name the {len(sites)} sites of the encoder, got {len(tau)}:"
      f" {odd[0]} is in one of the two only."
    )
  for site, value in tau.items():
    _checks.check_positive(f"tau of {site}", value)
  return traverse_util.unflatten_dict(
    {
      (*site.split("/"), "tau"): jnp.asarray(value, jnp.float32)
      for site, value in tau.items()
    }
  )


def shipped(encoder: BertEncoder) -> dict[str, float]:
  """The thresholds measured on MiniLM, for an encoder of its sizes.

  Raises:
    ValueError: The encoder has other sizes.
  """
  content = json.loads(FILE.read_text())
  if content["sizes"] != sizes(encoder):
    raise ValueError(
      f"tau=None needs an encoder of the sizes {content['sizes']}, got"
      f" {sizes(encoder)}: load it as variant='host', and pass what measure_tau"
      " finds on sentences of yours."
    )
  return dict(content["tau"])


def ship(encoder: BertEncoder, tau: Mapping[str, float]) -> None:
  """Writes thresholds to where `shipped` finds them."""
  content = {"alpha": ALPHA, "sizes": sizes(encoder), "tau": dict(tau)}
  FILE.write_text(json.dumps(content, indent=2) + "\n")


def sizes(encoder: BertEncoder) -> dict[str, int]:
  """The sizes of an encoder by name."""
  fields = (field.name for field in dataclasses.fields(encoder))
  found = {name: getattr(encoder, name) for name in fields}
  return {name: x for name, x in found.items() if type(x) is int}


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Site, as "body/block_0/ffn_presence", to what is at its "tau"."""
  flat = traverse_util.flatten_dict(dict(tree))
  return {"/".join(path[:-1]): value for path, value in flat.items()}
