"""The package `tabpfn` with random weights: what the port must agree with."""

import numpy as np

# Every option that changes a regressor, in the smallest sizes.
CONFIGS = {
  "plain": {},
  "grouped heads": {"icl_num_kv_heads": 2, "icl_num_kv_heads_test": 1},
  "one test head": {"icl_num_kv_heads_test": 1},
  "no scales, no positions": {
    "layernorm_elementwise_affine": False,
    "use_rope": False,
  },
  "wide, no indicators": {
    "ff_factor": 3,
    "feature_group_size": 2,
    "use_nan_indicators": False,
    "feat_agg_num_cls_tokens": 2,
  },
}
SMALL = {
  "max_num_classes": 0,
  "num_buckets": 20,
  "embed_dim": 16,
  "dist_embed_num_blocks": 2,
  "dist_embed_num_heads": 2,
  "dist_embed_num_inducing_points": 4,
  "feat_agg_num_blocks": 2,
  "feat_agg_num_heads": 2,
  "nlayers": 2,
  "icl_num_heads": 4,
  "softmax_scaling_mlp_hidden_dim": 8,
}


def architecture():
  from tabpfn import architectures

  return architectures.ARCHITECTURES["tabpfn_v3"]


def parsed(config):
  """The package's own configuration."""
  return architecture().parse_config(dict(config))[0]


def network(config, seed=0):
  """A network of `tabpfn`, its weights random: some start as zeros."""
  import torch

  torch.manual_seed(seed)
  net = architecture().get_architecture(parsed(config)).eval()
  with torch.no_grad():
    for parameter in net.parameters():
      if parameter.requires_grad:
        parameter.add_(0.05 * torch.randn_like(parameter))
  return net


def predict(net, x, y):
  """Its logits for a table [R, C] and targets [N]."""
  import torch

  with torch.inference_mode():
    logits = net(torch.tensor(x[:, None]), torch.tensor(y[:, None]))
  return logits[:, 0].numpy()


def state(net):
  """Its tensors, by name."""
  return {k: v.numpy().copy() for k, v in net.state_dict().items()}


def bars(net, logits, y, levels):
  """What its bar distribution says of logits, of targets and of levels."""
  from tabpfn.architectures.shared import bar_distribution
  import torch

  borders = net.state_dict()["regression_borders"]
  distribution = bar_distribution.FullSupportBarDistribution(borders)
  logits, target = torch.tensor(logits), torch.tensor(y)
  return {
    "bars/y": y,
    "bars/levels": levels,
    "bars/mean": distribution.mean(logits).numpy(),
    "bars/log_density": -distribution(logits, target).numpy(),
    "bars/quantiles": np.stack(
      [distribution.icdf(logits, float(q)).numpy() for q in levels], -1
    ),
  }


def table(rows, columns, train, seed=0):
  random = np.random.default_rng(seed)
  x = random.normal(size=(rows, columns)).astype(np.float32)
  return x, random.normal(size=train).astype(np.float32)


def tables():
  """Tables that a port may get wrong, by what is odd about them."""
  odd, y = table(14, 6, 9)
  odd[2, 0] = odd[11, 1] = np.nan
  odd[3, 1] = odd[12, 0] = np.inf
  odd[4, 2] = odd[10, 5] = -np.inf
  odd[:, 3] = 0.5
  odd[:, 4] = np.nan
  odd[:9, 5] = -1234.0
  missing = y.copy()
  missing[[1, 5]] = np.nan
  far, _ = table(14, 3, 9)
  far[:, 0] = 300 + far[:, 0]
  far[12, 1] = 1e9
  return {
    "ordinary": table(30, 5, 20),
    "odd cells": (odd, y),
    "missing targets": (odd, missing),
    "far from 0": (far, y),
    "one train row": table(4, 3, 1),
    "one column": table(9, 1, 6),
    "two columns": table(9, 2, 6),
  }
