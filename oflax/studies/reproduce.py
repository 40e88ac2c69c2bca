"""All studies of the source paper in one go, and one report of them."""

import importlib.metadata
import os
import pathlib
import platform

import jax
from rich import progress
from rich import table as tables

from oflax.retrofit import tabpfn_v3
from oflax.studies import ablation
from oflax.studies import ablation_report
from oflax.studies import claims
from oflax.studies import contract
from oflax.studies import minilm
from oflax.studies import retrofit_curve
from oflax.studies import retrofit_missing
from oflax.studies import retrofit_report
from oflax.studies.document import Document

# A report tries every law on what the paper defines; ``oflax laws`` goes on
# with all else: implementations, dtypes, transforms.
SUBJECTS = (
  "o_attention, reference",
  "causal, reference",
  "cross, reference",
  "o_ffn",
  "o_norm",
  "o_inject",
  "o_standardize",
  "residual, compose",
  "OTransformer",
  "OTransformer post",
)
PROGRAMS = tuple(f"{subject}, float32, jit" for subject in SUBJECTS)
TRIALS = 2000
VERSIONS = ("jax", "jaxlib", "flax", "numpy")


def run(
  folder: pathlib.Path,
  *,
  checkpoint: pathlib.Path | None = None,
  with_minilm: bool = False,
  trials: int = TRIALS,
) -> list[claims.Claim]:
  """Runs the contract, the ablation and the retrofit, and writes the report.

  Args:
    folder: For report.html, report.md and the files of the studies.
    checkpoint: Weights of a TabPFN v3; None: the shipped v3-mini.
    with_minilm: Whether to study MiniLM too, which takes minutes more.
    trials: Of the contract, at least.

  Returns:
    The claims of the paper beside what was measured.
  """
  tabpfn_v3.load(checkpoint)  # A wrong file is refused before minutes go by.
  folder.mkdir(parents=True, exist_ok=True)
  laws = _laws(trials)
  hosts = [name for name in ablation_report.HOSTS if name != "MiniLM"]
  if with_minilm:
    hosts.append("MiniLM")
  rows = ablation_report.run(folder, hosts)
  retrofit = retrofit_report.run(folder, checkpoint)
  found = claims.claims(laws, rows, retrofit, checkpoint is not None)

  document = Document("oflax: the paper's studies")
  document.paragraph(_machine())
  document.table(claims.table(found))
  document.heading("What is not claimed")
  document.bullets(claims.LIMITS)
  document.heading("The contract")
  document.table(_law_table(laws))
  document.heading("Two-block ablation")
  document.table(ablation.verdicts(rows))
  document.figure(folder / "ablation.png", "Null rows through two blocks")
  document.table(ablation.details(rows))
  document.heading("Retrofit")
  document.table(retrofit_curve.table(retrofit.points))
  document.figure(folder / "retrofit.png", "What closing the host costs")
  document.table(retrofit_curve.case_table(retrofit.cases))
  document.heading("Missing data")
  document.table(retrofit_missing.table(retrofit.missing))
  document.figure(folder / "missing.png", "What deletions cost")
  document.heading("MiniLM")
  if with_minilm:
    sentences = minilm.run()
    document.paragraph(claims.minilm_claims(sentences))
    document.table(minilm.table(sentences))
  else:
    document.paragraph("Not measured: oflax reproduce --minilm.")
  (folder / "report.md").write_text(document.markdown())
  (folder / "report.html").write_text(document.html())
  print(f"The report is {folder / 'report.html'}, and report.md beside it.")
  return found


def _laws(trials: int) -> contract.Contract:
  with progress.Progress() as bar:
    task = bar.add_task("laws", total=None)
    return contract.run(
      trials,
      only=PROGRAMS,
      on_program=lambda name: bar.update(task, description=f"laws: {name}"),
    )


def _law_table(laws: contract.Contract) -> tables.Table:
  result = tables.Table(*laws.report.HEADER, title="Laws of the zero element")
  for row in laws.report.rows:
    result.add_row(*row.cells())
  return result


def _machine() -> str:
  """What the numbers were measured with."""
  versions = ", ".join(
    f"{name} {importlib.metadata.version(name)}" for name in VERSIONS
  )
  device = jax.devices()[0].device_kind
  return (
    f"Python {platform.python_version()}, {versions}; {device},"
    f" {os.cpu_count()} cores of {platform.machine()}."
  )
