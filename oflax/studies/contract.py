"""The contract: every law on every subject, dtype and transform."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
import contextlib
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np

from oflax import sharding
from oflax.laws import rounding
from oflax.laws import trials as laws_trials
from oflax.laws.report import Report
from oflax.laws.report import Row
from oflax.studies import contract_sharded
from oflax.studies import contract_subjects as subjects
from oflax.studies.contract_subjects import Subject

EAGER_TRIALS = 2
FEW_ULP = 4
EAGER = (
  "o_attention, reference, float32, jit",
  "o_standardize, float32, jit",
  "cross, reference, float32, jit",
  "OTransformer, float32, jit",
)
# What docs/laws.md does not promise: told, never passed.
NOT_PROMISED = (
  "null tokens change no bit of another: reference, blocked, folded",
  "second derivatives, forward mode: folded",
  "second derivatives at nulls, residuals at nulls: compacted",
  "forward mode: among shards",
)
Trial = Callable[[laws_trials.Draws], laws_trials.Outcome]


@dataclasses.dataclass(frozen=True)
class Program:
  """One compiled program of the contract: a subject, a dtype, a transform."""

  subject: Subject
  dtype: str = "float32"
  transform: str = "jit"

  @property
  def name(self) -> str:
    return f"{self.subject.name}, {self.dtype}, {self.transform}"


@dataclasses.dataclass(frozen=True)
class Contract:
  """What came of it: a report by law, and where laws were violated."""

  report: Report
  failures: tuple[str, ...]
  seed: int
  programs: int

  def __str__(self) -> str:
    trials = sum(row.trials for row in self.report.rows)
    violations = sum(row.violations for row in self.report.rows)
    return "\n".join(
      (
        str(self.report),
        "",
        f"{trials:,} trials in {self.programs} programs, {violations:,}"
        f" violations (seed {self.seed})",
        *self.failures,
      )
    )


def programs(mesh: Mesh | None = None) -> list[Program]:
  """The fixed grid: each subject in float32 under jit, and some in each other
  dtype and transform. At most 60. With a mesh, those that are cut over it.
  """
  if mesh is not None:
    cut = [*contract_sharded.functions(mesh), *contract_sharded.modules()]
    return [*map(Program, cut), Program(cut[0], "bfloat16")]
  everything = [*subjects.functions(), *subjects.modules()]
  grid = [Program(subject) for subject in everything]
  by_name = {subject.name: subject for subject in everything}
  others = (
    ("o_norm", "bfloat16", "vmap"),
    ("o_standardize", "float16", "scan"),
    ("o_attention, reference", "float16", "remat"),
    ("o_attention, blocked", "bfloat16", "scan"),
    ("o_attention, blocked", "float64", "vmap"),
    ("o_attention, folded", "bfloat16", "jit"),
    # Not in float16: under vmap, jax.nn asks for what a CPU lacks.
    ("causal, folded", "bfloat16", "vmap"),
    ("cross, mask, reference", "float16", "jit"),
    ("large scores, reference", "float32", "remat"),
    ("OAttention", "bfloat16", "remat"),
    ("OAttention ordered", "float16", "jit"),
    ("OBlock", "float16", "scan"),
    ("OTransformer compacted", "bfloat16", "jit"),
    ("OTransformer", "bfloat16", "jit"),
    ("OTransformer", "float64", "jit"),
    ("OTransformer ordered", "float32", "scan"),
    ("OTransformer post", "float32", "remat"),
  )
  grid += [Program(by_name[name], *rest) for name, *rest in others]
  return grid


def run(
  trials: int = 20_000,
  seed: int = 0,
  *,
  only: str | Collection[str] = "",
  on_program: Callable[[str], None] = lambda name: None,
  devices: int = 1,
) -> Contract:
  """Tries every law; a trial is one subject, one law, one input.

  Args:
    trials: At least how many in all.
    seed: Of parameters, tokens and null patterns; the same seed replays.
    only: Restricts to the programs whose name holds this text, or one of these.
    on_program: Called with the name of each program as it starts.
    devices: If more than one, what is cut over so many is tried instead.

  Returns:
    The report and its failures.

  Raises:
    ValueError: `trials` is not positive, no program has `only` in its name, or
      there are not so many devices.

  Example:
    >>> run(trials=16, only="o_gate, float32").report.passed
    True

  Reference: docs/laws.md.
  """
  if trials < 1:
    raise ValueError(f"trials must be positive, got {trials!r}.")
  texts = (only,) if isinstance(only, str) else tuple(only)
  mesh = contract_sharded.mesh_of(devices) if devices != 1 else None
  chosen = [
    program
    for program in programs(mesh)
    if any(text in program.name for text in texts)
  ]
  if not chosen:
    raise ValueError(f"only must be part of a program's name, got {only!r}.")
  rows: dict[str, list[Row]] = {}
  failures = []
  # Programs try four laws or more on every input.
  inputs = -(-trials // (4 * len(chosen)))
  context = sharding.on_mesh(mesh) if mesh else contextlib.nullcontext()
  with context:
    outcomes = list(_outcomes(chosen, inputs, seed, on_program))
  for program, name, outcome in outcomes:
    for row in laws_trials.rows_of(outcome):
      exact = row.allowed == 0
      label = row.law if exact else f"{row.law}, {program.dtype}"
      rows.setdefault(label, []).append(row)
      if row.violations:
        failures.append(
          f"violated by {name}: {row.law}, {row.violations} of {row.trials},"
          f" largest deviation {row.deviation:.2g}, allowed {row.allowed:.2g}"
        )
  tried = [_sum(label, rows[label]) for label in sorted(rows)]
  untried = [Row(law, 0, 0, 0.0, 0.0) for law in NOT_PROMISED]
  report = Report((*tried, *untried))
  return Contract(report, tuple(failures), seed, len(chosen))


def _outcomes(
  chosen: list[Program],
  inputs: int,
  seed: int,
  on_program: Callable[[str], None],
) -> Iterator[tuple[Program, str, laws_trials.Outcome]]:
  """Runs the programs; some of them a few times eagerly, too."""
  for program in chosen:
    on_program(program.name)
    rng = np.random.default_rng((seed, *program.name.encode()))
    with jax.enable_x64(program.dtype == "float64"):
      trial, draws = _trial(program), _draw(program, rng, inputs)
      yield program, program.name, laws_trials.many(trial, draws)
      if program.name in EAGER:
        drawn = [
          trial(jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), draws))
          for i in range(min(inputs, EAGER_TRIALS))
        ]
        outcome = jax.tree.map(lambda *x: np.stack(x), *drawn)
        yield program, program.name.replace("jit", "eager"), outcome


def _sum(label: str, rows: list[Row]) -> Row:
  return Row(
    label,
    sum(row.trials for row in rows),
    sum(row.violations for row in rows),
    max(row.deviation for row in rows),
    max(row.allowed for row in rows),
  )


def _draw(
  program: Program, rng: np.random.Generator, trials: int
) -> laws_trials.Draws:
  """What chance decides in the trials of a program."""
  n, shape = subjects.NUM_TOKENS, (subjects.NUM_TOKENS, subjects.FEATURES)
  draws = laws_trials.draw_closure(rng, trials, n, shape)
  draws["params"] = program.subject.draw(rng, trials)
  draws["tokens"] = rng.normal(size=(trials, *shape)).astype(np.float32)
  draws["receivers"] = rng.normal(size=(trials, *shape)).astype(np.float32)
  draws["null receivers"] = rng.random((trials, n)) < 0.4
  return draws


def _trial(program: Program) -> Trial:
  """One trial of a program."""
  subject, dtype = program.subject, jnp.dtype(program.dtype)

  def rule(allowed: jax.Array) -> tuple[jax.Array, jax.Array]:
    # What is computed in float32 differs by the last rounding to 16 bits.
    few_ulp = FEW_ULP / 2 * float(jnp.finfo(dtype).eps)
    allowed = jnp.asarray(few_ulp) if dtype.itemsize == 2 else allowed
    return allowed, allowed

  def trial(draws: laws_trials.Draws) -> laws_trials.Outcome:
    h = draws["tokens"].astype(dtype)
    fn = functools.partial(subject.apply, draws["params"])
    if subject.cross:
      nulls = draws["null receivers"][:, None]
      receivers = jnp.where(nulls, 0, draws["receivers"].astype(dtype))
      return _cross_trial(fn, receivers, h, draws, rule)
    mapped = _TRANSFORMS[program.transform](fn)
    outcome = laws_trials.closure_trial(
      mapped, h, draws, rule, unordered=subject.unordered
    )
    if dtype.itemsize == 2:
      outcome["16 bits agree with float32"] = _against_float32(mapped, h)
    if dtype.itemsize == 4 and subject.all_present:
      outcome["all present is standard attention"] = _against_standard(
        functools.partial(subject.all_present, draws["params"]), h
      )
    if subject.exact:
      outcome["null tokens change no bit of another"] = _same_bits(
        mapped, h, draws["places"]
      )
    if dtype.itemsize == 8:
      outcome["curvature at nulls is that of differences"] = (
        laws_trials.curvature(mapped, h, draws)
      )
    return outcome

  return trial


def _cross_trial(
  attend: subjects.Attend,
  receivers: jax.Array,
  sources: jax.Array,
  draws: laws_trials.Draws,
  rule: laws_trials.Tolerances,
) -> laws_trials.Outcome:
  """Laws 1, 2 and 4 of attention between two sets of tokens."""
  largest = rounding.largest
  inputs = rounding.perturbed(sources)
  plain = jax.vmap(lambda s: attend(receivers, s))(inputs)
  outputs = attend(receivers, laws_trials.inserted(sources, draws["places"]))
  scale = jnp.maximum(1, largest(plain[0]))
  rtol, atol = rule(rounding.amplified(plain, sources))
  allowed = (atol + rtol * largest(plain[0])) / scale
  empty, pullback = jax.vjp(attend, receivers, jnp.zeros_like(sources))
  derivatives = pullback(draws["weights"].astype(empty.dtype))
  nulls = jnp.broadcast_to(draws["null receivers"][:, None], outputs.shape)
  exact = jnp.zeros(())
  return {
    "null receivers get exactly 0": (
      largest(jnp.where(nulls, outputs, 0)),
      exact,
    ),
    "null sources change no output": (
      largest(outputs - plain[0]) / scale,
      allowed,
    ),
    "empty support gives exactly 0": (largest(empty), exact),
    "empty support has no derivative": (largest(derivatives), exact),
  }


def _same_bits(
  fn: subjects.Map, h: jax.Array, places: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The deviation of the tokens among nulls from the tokens alone: none."""
  among = fn(laws_trials.inserted(h, places))[..., places, :]
  return rounding.largest(among - fn(h)), jnp.zeros(())


def _against_float32(
  fn: subjects.Map, h: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The deviation of a 16-bit result from float32, and a few ulp."""
  wide = fn(h.astype(jnp.float32))
  scale = jnp.maximum(1, rounding.largest(wide))
  deviation = rounding.largest(fn(h).astype(jnp.float32) - wide) / scale
  return deviation, jnp.asarray(FEW_ULP * float(jnp.finfo(h.dtype).eps))


def _against_standard(
  all_present: Callable[[jax.Array], tuple[jax.Array, jax.Array]], h: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The deviation from the ordinary operator where everything is present."""
  outputs, standard = jax.vmap(all_present)(rounding.perturbed(h))
  scale = jnp.maximum(1, rounding.largest(standard[0]))
  deviation = rounding.largest(outputs[0] - standard[0]) / scale
  return deviation, 2 * rounding.amplified(outputs, h)


def _scanned(fn: subjects.Map) -> subjects.Map:
  def scanned(h: jax.Array) -> jax.Array:
    _, outputs = jax.lax.scan(
      lambda carry, x: (carry, fn(x)), None, jnp.stack([h, -h])
    )
    return outputs[0]

  return scanned


_TRANSFORMS: dict[str, Callable[[Any], Any]] = {
  "jit": lambda fn: fn,
  "vmap": lambda fn: lambda h: jax.vmap(fn)(jnp.stack([h, -h]))[0],
  "scan": _scanned,
  "remat": jax.checkpoint,
}
