"""Makes tiny_bert/: a random BERT, a tokenizer, and what PyTorch makes of ids.

Needs `pip install transformers torch`; run as a file.
"""

import pathlib
import string

import numpy as np
import tokenizers
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
import torch
import transformers

FOLDER = pathlib.Path(__file__).with_name("tiny_bert")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LENGTHS = (12, 7, 1, 3)


def make_model(vocabulary):
  config = transformers.BertConfig(
    vocab_size=vocabulary,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=40,
    max_position_embeddings=48,
    layer_norm_eps=1e-12,
  )
  torch.manual_seed(0)
  model = transformers.BertModel(config).eval()
  generator = torch.Generator().manual_seed(0)
  with torch.no_grad():  # No parameter is 0 or 1, biases and scales included.
    for p in model.parameters():
      p.add_(0.3 * torch.randn(p.shape, generator=generator))
  return model


def make_tokenizer():
  letters = string.ascii_lowercase
  words = [*SPECIAL, *letters, *(f"##{x}" for x in letters)]
  tokenizer = tokenizers.Tokenizer(
    models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
  )
  tokenizer.normalizer = normalizers.BertNormalizer()
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  tokenizer.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
  )
  # As the file of MiniLM has it.
  tokenizer.enable_padding(length=16)
  return tokenizer


def embed(model, ids):
  """As sentence-transformers does: the masked mean, then its direction."""
  mask = ids != 0
  with torch.no_grad():
    tokens = model(ids, attention_mask=mask.long()).last_hidden_state
  mean = (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
  return torch.nn.functional.normalize(mean, dim=-1)


def main():
  tokenizer = make_tokenizer()
  model = make_model(tokenizer.get_vocab_size())
  ids = np.random.default_rng(0).integers(
    len(SPECIAL), tokenizer.get_vocab_size(), (len(LENGTHS), max(LENGTHS))
  )
  ids *= np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
  model.save_pretrained(FOLDER, safe_serialization=True)
  tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)
  vectors = embed(model, torch.tensor(ids)).numpy()
  np.savez(FOLDER / "expected.npz", ids=ids, vectors=vectors)


if __name__ == "__main__":
  main()
