"""The tables of sharding: which axis has which name, and who cuts it."""

from collections.abc import Sequence
import re

from oflax.linen.placement import Rules

RULES: Rules = (
  # logical axis, mesh axes that cut it; those a mesh lacks are passed over.
  ("batch", ("data", "fsdp")),  # Samples.
  ("length", "sequence"),  # Tokens of a sample.
  ("embed", "fsdp"),  # Features of carriers, in parameters.
  ("heads", "tensor"),
  ("kv_heads", "tensor"),
  ("mlp", "tensor"),  # Hidden features of a feed-forward network.
  ("vocabulary", "tensor"),
  ("features", None),  # Features of carriers, in activations.
  ("head_features", None),
  ("layers", None),  # Of scanned blocks.
)

NAMES: Sequence[tuple[str, tuple[str, ...]]] = (
  # end of the path of a parameter, names of its axes
  ("query/kernel", ("embed", "heads", "head_features")),
  ("query/bias", ("heads", "head_features")),
  ("(key|value)/kernel", ("embed", "kv_heads", "head_features")),
  ("(key|value)/bias", ("kv_heads", "head_features")),
  ("out/kernel", ("heads", "head_features", "embed")),
  ("out/bias", ("embed",)),
  ("(query_ln|key_ln)/scale", ("head_features",)),
  ("(up|gate)/kernel", ("embed", "mlp")),
  ("(up|gate)/bias", ("mlp",)),
  ("down/kernel", ("mlp", "embed")),
  ("down/bias", ("embed",)),
  ("embedding", ("vocabulary", "embed")),
  ("scale", ("embed",)),  # Of norms.
  ("bias", ("embed",)),
  ("log_tau", ()),
)


def names_of(
  path: str,
  rank: int,
  table: Sequence[tuple[str, tuple[str, ...]]] = NAMES,
) -> tuple[str | None, ...]:
  """The names of the axes of a parameter.

  Args:
    path: Names from the module down, with slashes between.
    rank: Of the parameter. Scanned blocks have an axis of layers in front.
    table: Ends of paths, and names; the first that fits in path and rank.

  Returns:
    One name an axis; None for parameters that are in no table: these stay
    whole.

  Example:
    >>> names_of("block_0/ffn/up/kernel", 2)
    ('embed', 'mlp')
    >>> names_of("blocks/ffn/up/kernel", 3)
    ('layers', 'embed', 'mlp')
    >>> names_of("my_own/weights", 2)
    (None, None)
  """
  scanned = "blocks" in path.split("/")
  for end, names in table:
    if re.search(f"(^|/){end}$", path):
      named = ("layers", *names) if scanned else names
      if len(named) == rank:
        return named
  return (None,) * rank
