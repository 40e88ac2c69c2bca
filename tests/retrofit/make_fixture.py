"""Writes the fixtures beside it; needs the package `tabpfn`, 9.2.0.

`tabpfn_v3.safetensors` is a network of random weights in the layout of real
files, `tabpfn_v3.npz` what the package computes with it. Run as
`python -m tests.retrofit.make_fixture`.
"""

import dataclasses
import json
import pathlib

import numpy as np
from safetensors.torch import save_file
import torch

from tests.retrofit import oracle

HERE = pathlib.Path(__file__).parent
CONFIG = {
  **oracle.SMALL,
  "num_buckets": 12,
  "dist_embed_num_blocks": 1,
  "nlayers": 1,
  "embed_dim": 12,
  "feat_agg_num_cls_tokens": 2,
  "icl_num_kv_heads": 2,
  "icl_num_kv_heads_test": 1,
}
LEVELS = np.array([0.1, 0.25, 0.5, 0.9])


def main() -> None:
  net = oracle.network(CONFIG)
  entries = {
    "architecture_name": "tabpfn_v3",
    "config": dataclasses.asdict(oracle.parsed(CONFIG)),
    "inference_config": {"SOFTMAX_TEMPERATURE": 0.8},
  }
  metadata = {name: json.dumps(entry) for name, entry in entries.items()}
  save_file(net.state_dict(), HERE / "tabpfn_v3.safetensors", metadata)
  results = {}
  for name, (x, y) in oracle.tables().items():
    logits = oracle.predict(net, x, y)
    results |= {f"{name}/x": x, f"{name}/y": y, f"{name}/logits": logits}
  logits, y = results["ordinary/logits"], np.linspace(-150, 150, 10)
  results |= oracle.bars(net, logits, y.astype(np.float32), LEVELS)
  np.savez_compressed(HERE / "tabpfn_v3.npz", **results)


if __name__ == "__main__":
  with torch.inference_mode():
    main()
