"""The pictures of the documentation, each from what was computed.

They are as wide as a small page, so that their letters can be read on one.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np

from oflax import laws
from oflax.linen import OTransformer
from oflax.linen import calibrate
from oflax.studies import ablation
from oflax.studies import ablation_plots
from oflax.studies import figures
from oflax.studies import retrofit_plots
from oflax.studies.retrofit_curve import Case
from oflax.studies.retrofit_curve import Point

WIDTH = 24
NULLS = (0, 3, 4, 9)
NAMES = {
  "host": "ordinary transformer",
  "attention": "closed attention only",
  "full": "OTransformer",
}
# What is exactly zero is drawn at the edge of a logarithmic axis.
EDGE = 1e-8


def host(num_tokens: int) -> tuple[OTransformer, dict[str, Any], jax.Array]:
  """A small transformer with random weights, biases among them, and tokens."""
  model = OTransformer(
    num_layers=2,
    num_heads=3,
    mlp_dim=2 * WIDTH,
    bias_init=nn.initializers.normal(0.3),
  )
  model_key, token_key = jax.random.split(jax.random.key(0))
  tokens = jax.random.normal(token_key, (num_tokens, WIDTH))
  variables = jax.jit(model.init)(model_key, tokens)
  return model, calibrate(model, variables, tokens), tokens


@figures.style()
def idea(path: pathlib.Path) -> None:
  """Tokens alone and among null tokens, through both transformers."""
  model, variables, tokens = host(8)
  inserted = laws.insert_nulls(tokens, NULLS)
  kept = np.setdiff1d(np.arange(len(inserted)), NULLS)
  drawn, panels = plt.subplots(
    2,
    3,
    figsize=(5.4, 3.9),
    height_ratios=(len(tokens), len(inserted)),
    layout="constrained",
  )
  columns: dict[str, Callable[[jax.Array], Any]] = {
    "tokens": lambda h: h,
    **{NAMES[v]: _map(model, variables, v) for v in ("host", "full")},
  }
  for column, (name, fn) in enumerate(columns.items()):
    alone, among = np.asarray(fn(tokens)), np.asarray(fn(inserted))
    for axes, values in zip(panels[:, column], (alone, among), strict=True):
      image = np.ma.masked_where(values == 0, values)
      axes.imshow(image, cmap=figures.SIGNED, vmin=-3, vmax=3, aspect="auto")
      axes.set(xticks=[], yticks=[])
    panels[0, column].set_title(name, fontsize=10)
    if column:
      others = np.max(np.abs(among[kept] - alone))
      null = np.max(np.abs(among[list(NULLS)]))
      panels[1, column].set_xlabel(
        f"others change by {others:.2g},\nnull tokens emit {null:.2g}",
        fontsize=9,
      )
  panels[0, 0].set_ylabel("H")
  panels[1, 0].set_ylabel("H ⊕ 0")
  panels[1, 0].set_xlabel("features →\n(blank: exactly 0)", fontsize=9)
  figures.save(drawn, path)


@figures.style()
def insertion(path: pathlib.Path) -> None:
  """How much tokens change against how many null tokens come in."""
  model, variables, tokens = host(16)
  counts = [1, 4, 16, 64]
  drawn, axes = plt.subplots(figsize=(5.2, 3.2), layout="constrained")
  for variant, name in NAMES.items():
    fn = _map(model, variables, variant)
    alone = fn(tokens)
    changes = []
    for count in counts:
      places = np.random.default_rng(count).permutation(16 + count)[:count]
      kept = np.setdiff1d(np.arange(16 + count), places)
      among = fn(laws.insert_nulls(tokens, places.tolist()))
      changes.append(max(float(jnp.abs(among[kept] - alone).max()), EDGE))
    color = figures.COLORS[variant]
    axes.loglog(counts, changes, "o-", ms=4, color=color, label=name)
  axes.set(xlabel="null tokens inserted among 16 others", ylim=(EDGE / 2, 30))
  axes.set_ylabel("largest change of another token")
  axes.set_xticks(counts, [str(count) for count in counts])
  axes.minorticks_off()
  axes.legend(loc="center right", bbox_to_anchor=(1, 0.55))
  figures.lighten(axes)
  figures.save(drawn, path)


@figures.style()
def speed(benchmarks: pathlib.Path, path: pathlib.Path) -> None:
  """Times of a model against the share of null tokens.

  Args:
    benchmarks: The file benchmarks.json of ``oflax bench``.
    path: Of the figure.
  """
  content = json.loads(benchmarks.read_text())
  colors = {
    "Flax, masked": figures.GREY,
    "oflax, dense": figures.ORANGE,
    "oflax, compacted": figures.BLUE,
  }
  drawn, panels = plt.subplots(
    1, 2, figsize=(5.6, 3.2), sharex=True, layout="constrained"
  )
  for axes, mode in zip(panels, ("forward", "training step"), strict=True):
    for subject, color in colors.items():
      rows = [
        (_share(row["group"]), row["median"], row["low"], row["high"])
        for row in content["rows"]
        if row["subject"] == subject and row["group"].endswith(mode)
      ]
      share, median, low, high = np.array(sorted(rows)).T
      axes.plot(share, median, "o-", ms=4, color=color, label=subject)
      axes.fill_between(share, low, high, color=color, alpha=0.2, lw=0)
    axes.set(title=mode, xlabel="null tokens (%)", ylim=(0, None))
    figures.lighten(axes)
  panels[0].set_ylabel("median time (ms)")
  named = panels[0].get_legend_handles_labels()
  drawn.legend(*named, ncols=3, fontsize=8.5, loc="outside upper center")
  figures.save(drawn, path)


@figures.style()
def presence(path: pathlib.Path, steps: int) -> None:
  """Presence over digits, layer by layer, after a short training."""
  from oflax.studies import digits
  from oflax.studies import digits_data
  from oflax.studies import digits_plots

  pixels, labels = digits_data.load()
  train, test = digits_data.split(labels, seed=0)
  state = digits.train(
    (pixels[train], labels[train]), (pixels[test], labels[test]), steps=steps
  )
  shown = pixels[test][:3]
  sites = digits.presence_by_layer(state, shown)
  chosen = {name: sites[name] for name in ("positions", "FFN 1", "pool")}
  digits_plots.plot_presence(shown, chosen, path)


def drift(numbers: pathlib.Path | None, path: pathlib.Path) -> None:
  """The two-block ablation.

  Args:
    numbers: The file ablation.json of ``oflax ablate``; None: run it on its
      smallest host.
    path: Of the figure.
  """
  from oflax.studies import stacks

  if numbers is None:
    rows = ablation.ablate(stacks.layer_norm_stack())
  else:
    rows = [ablation.Row(**row) for row in json.loads(numbers.read_text())]
  ablation_plots.plot(rows, path)


def curve(numbers: pathlib.Path | None, path: pathlib.Path) -> None:
  """What closing a pretrained host costs.

  Args:
    numbers: The file retrofit.json of ``oflax retrofit``; None: run it on one
      table.
    path: Of the figure.
  """
  if numbers is None:
    cases, points = _small_curve()
  else:
    content = json.loads(numbers.read_text())
    cases = [Case(**case) for case in content["cases"]]
    points = [Point(**point) for point in content["points"]]
  retrofit_plots.plot_curve(cases, points, path)


@dataclasses.dataclass(frozen=True)
class Sources:
  """Where the numbers of the pictures come from.

  Attributes:
    benchmarks: The file of ``oflax bench``.
    ablation: The file of ``oflax ablate``; None: compute it in small.
    retrofit: The file of ``oflax retrofit``; None: compute it in small.
    steps: Of the training before presences are shown.
  """

  benchmarks: pathlib.Path
  ablation: pathlib.Path | None = None
  retrofit: pathlib.Path | None = None
  steps: int = 300


def pictures(sources: Sources) -> Mapping[str, Callable[[pathlib.Path], None]]:
  """Every picture: the name of its file, and what draws it."""
  return {
    "idea.svg": idea,
    "insertion.svg": insertion,
    "speed.svg": lambda path: speed(sources.benchmarks, path),
    "presence.svg": lambda path: presence(path, sources.steps),
    "ablation.svg": lambda path: drift(sources.ablation, path),
    "retrofit.svg": lambda path: curve(sources.retrofit, path),
  }


def run(folder: pathlib.Path, sources: Sources, only: str = "") -> None:
  """Draws the pictures whose names hold a text.

  Args:
    folder: For the files; made if it is not there.
    sources: Of their numbers.
    only: Of the names.

  Raises:
    ValueError: No name holds `only`, or the benchmarks are not there.
  """
  if not sources.benchmarks.exists():
    raise ValueError(
      f"benchmarks must be a file of oflax bench, got {sources.benchmarks}."
    )
  chosen = {
    name: draw for name, draw in pictures(sources).items() if only in name
  }
  if not chosen:
    raise ValueError(f"only must be part of a picture's name, got {only!r}.")
  folder.mkdir(parents=True, exist_ok=True)
  for name, draw in chosen.items():
    draw(folder / name)
    print(folder / name)


def _map(
  model: OTransformer, variables: Mapping[str, Any], variant: str
) -> Callable[[jax.Array], Any]:
  subject = model.clone(variant=variant)
  return jax.jit(lambda h: subject.apply(variables, h))


def _share(group: str) -> float:
  """The percentage in "model, 25% nulls, forward"."""
  return float(group.split(", ")[1].split("%")[0])


def _small_curve() -> tuple[list[Case], list[Point]]:
  from oflax.retrofit import tabpfn_v3
  from oflax.studies import retrofit_curve
  from oflax.studies import tables
  from oflax.studies.retrofit_cases import batches

  module, variables = tabpfn_v3.load(None, "full")
  cases = batches(tables.splits(["wine", "diabetes"]))
  return retrofit_curve.curve(module, variables, cases)
