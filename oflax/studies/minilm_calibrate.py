"""Measures the thresholds of MiniLM that are shipped with oflax.

``python -m oflax.studies.minilm_calibrate`` writes them where `minilm.load`
finds them: τ = 1e-3 · median ‖h‖² of the present tokens of each site, on
docstrings of modules that the study does not evaluate on.
"""

from rich import progress

from oflax.retrofit import minilm
from oflax.retrofit import minilm_tau
from oflax.studies import minilm_pairs

PAIRS = 100
TOKENS = 64


def measure(
  model: minilm.MiniLM, held_out: list[minilm_pairs.Pair]
) -> dict[str, float]:
  """The thresholds on some of the pairs, first lines and bodies.

  Args:
    model: Of any variant.
    held_out: To choose from, as `minilm_pairs.collect` finds them.

  Returns:
    Site to threshold.

  Reference: oflax.linen.calibrate.
  """
  chosen = minilm_pairs.choose(held_out, PAIRS, seed=0)
  texts = [pair.first for pair in chosen] + [pair.body for pair in chosen]
  ids = model.tokenize(texts, length=TOKENS, max_tokens=TOKENS)
  return minilm.measure_tau(model.encoder, model.variables, ids)


def main() -> None:
  """Measures and writes them, with a progress bar."""
  with progress.Progress() as bar:
    task = bar.add_task("reading docstrings")
    _, held_out = minilm_pairs.collect(
      lambda done, total: bar.update(task, completed=done, total=total)
    )
    bar.add_task("measuring", total=None)
    model = minilm.load(variant="host")
    tau = measure(model, held_out)
  minilm_tau.ship(model.encoder, tau)
  print(f"{len(tau)} thresholds written to {minilm_tau.FILE}")


if __name__ == "__main__":
  main()
