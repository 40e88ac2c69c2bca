"""Texts to ids, by the tokenizer.json beside the weights."""

from collections.abc import Sequence
import pathlib
from typing import Any

import numpy as np

from oflax import _checks
from oflax import _compaction
from oflax.retrofit.minilm_encoder import PAD

# What the model was trained with; see its sentence_bert_config.json.
MAX_TOKENS = 256
TOKENIZER = "tokenizer.json"


def read_tokenizer(folder: pathlib.Path | None) -> Any:
  """The tokenizer of a folder.

  Raises:
    ImportError: The package tokenizers is not installed.
    ValueError: There is no folder, or no tokenizer in it.
  """
  try:
    import tokenizers
  except ImportError as error:
    raise ImportError(
      "texts need tokenizers: pip install 'oflax[retrofit]'"
    ) from error
  if folder is None:
    raise ValueError("texts need a model that was loaded, got folder=None.")
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
  except Exception as error:  # The package has no narrower type.
    raise ValueError(f"{folder / TOKENIZER} cannot be read: {error}") from error
  # The file of MiniLM pads to 128 by itself.
  tokenizer.no_padding()
  return tokenizer


def tokenize(
  tokenizer: Any,
  texts: Sequence[str],
  *,
  length: int | None,
  max_tokens: int,
) -> np.ndarray:
  """The ids of texts, ``[B, length]``; see `MiniLM.tokenize`."""
  if isinstance(texts, str) or not all(isinstance(t, str) for t in texts):
    raise ValueError(f"texts must be a list of strings, got {texts!r}.")
  # Room for a word between the two tokens at the ends.
  _checks.check_at_least("max_tokens", max_tokens, 3)
  tokenizer.enable_truncation(max_tokens)
  found = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
  longest = max(map(len, found), default=0)
  if length is None:
    length = _compaction.FIRST_BUCKET
    while length < longest:
      length *= 2
  _checks.check_at_least("length", length, longest)
  result = np.full((len(found), length), PAD, np.int32)
  for row, ids in zip(result, found, strict=True):
    row[: len(ids)] = ids
  return result
