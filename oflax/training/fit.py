"""The training loop: stopped at any step, it resumes bit for bit."""

from collections.abc import Callable
from collections.abc import Mapping
import contextlib
import os
import pathlib
from typing import Any

import jax
from rich import progress

from oflax.training.checkpoints import Checkpoints
from oflax.training.metrics import MetricsLog
from oflax.training.state import TrainState
from oflax.training.step import Step


def fit(
  state: TrainState,
  step: Step,
  batch_at: Callable[[int], Any],
  *,
  num_steps: int,
  directory: str | os.PathLike[str] | None = None,
  resume: bool = False,
  calibrate: bool = True,
  evaluate: Callable[[TrainState], Mapping[str, Any]] | None = None,
  log_every: int = 50,
  checkpoint_every: int = 500,
  keep: int = 2,
  asynchronous: bool = False,
) -> TrainState:
  """Trains up to a number of steps.

  A state at step 0 is calibrated on the first batch: every τ is set so that its
  tokens count as present. Without that a fresh embedding, of squared norm about
  1, is half absent at τ = 1.

  A run that was stopped, by Ctrl-C, an error or a kill, goes on from its newest
  complete checkpoint if called again with `resume`, and ends with the
  parameters and the metrics of an unbroken run, bit for bit. For that a batch
  must depend on nothing but its index.

  Of several processes each calls it, with a step of `oflax.sharding.shard`; the
  first one writes the metrics.

  Args:
    state: From `create_state`.
    step: From `train_step`.
    batch_at: The batch of a step, from its index 0, 1, ….
    num_steps: Train until the state has made that many steps in all.
    directory: For ``metrics.csv`` and ``checkpoints``; None: write nothing.
    resume: Go on from the checkpoints in `directory`, if there are any.
    calibrate: Whether a state at step 0 is calibrated on batch 0, read as
      `forward` of the state says.
    evaluate: Further metrics of the state, wherever metrics are logged.
    log_every: Steps between two rows of metrics.
    checkpoint_every: Steps between two checkpoints; there is one at the end.
    keep: How many checkpoints to keep.
    asynchronous: Whether training goes on while a checkpoint is written.

  Returns:
    The state after `num_steps` steps.

  Raises:
    ValueError: An argument is out of range, `directory` holds checkpoints and
      `resume` is not set, or the module or batch 0 cannot be calibrated.
    KeyboardInterrupt: After Ctrl-C, once a checkpoint is saved; says how to go
      on.

  Example:
    >>> import jax, jax.numpy as jnp, optax, oflax
    >>> from oflax import training
    >>> from oflax.linen import OFFN
    >>> module = OFFN(hidden_features=8)
    >>> def loss_fn(variables, h, rng):
    ...   errors = jnp.sum((module.apply(variables, h) - h) ** 2, axis=-1)
    ...   return oflax.present_mean(errors, oflax.presence(h)), {}
    >>> h = jnp.array([[1.0, -1.0], [0.0, 0.0]])
    >>> tx = optax.adam(0.03)
    >>> state = training.create_state(module, tx, jax.random.key(0), h)
    >>> step = training.train_step(loss_fn)
    >>> state = training.fit(state, step, lambda i: h, num_steps=100)
    ... # doctest: +ELLIPSIS
    training ...
    >>> bool(loss_fn(state.variables, h, None)[0] < 0.01)
    True

  Reference: oflax.linen.calibrate.
  """
  _check_counts(
    num_steps=num_steps,
    log_every=log_every,
    checkpoint_every=checkpoint_every,
    keep=keep,
  )
  if resume and directory is None:
    raise ValueError("resume needs a directory, got None.")
  with contextlib.ExitStack() as stack:
    folder = None
    if directory is not None:
      folder = stack.enter_context(_Folder(directory, keep, asynchronous))
      state = folder.open(state, resume)
    first = int(state.step)
    if first > num_steps:
      raise ValueError(
        f"num_steps must be at least the {first} made already, got {num_steps}."
      )
    if first == 0 and calibrate:
      state = _calibrated(state, batch_at(0))
    bar = stack.enter_context(_progress(disable=jax.process_index() > 0))
    task = bar.add_task("training", total=num_steps, completed=first, loss="")
    try:
      for index in range(first, num_steps):
        after, metrics = step(state, batch_at(index))
        made = index + 1
        if made % log_every == 0:
          bar.update(task, loss=f"loss {float(metrics['loss']):.4f}")
          if folder:
            more = evaluate(after) if evaluate else {}
            folder.write(made, {**metrics, **more})
        # Only now: wherever Ctrl-C falls, `state` is one whose row is written.
        state = after
        if folder and (made % checkpoint_every == 0 or made == num_steps):
          folder.checkpoints.save(made, state)
        bar.advance(task)
    except KeyboardInterrupt:
      if folder is None:
        raise
      raise KeyboardInterrupt(folder.stop(state, num_steps)) from None
    return state


class _Folder:
  """The files of a run."""

  log: MetricsLog | None = None

  def __init__(
    self, directory: str | os.PathLike[str], keep: int, asynchronous: bool
  ):
    self.path = pathlib.Path(directory)
    self.checkpoints = Checkpoints(
      self.path / "checkpoints", keep=keep, asynchronous=asynchronous
    )

  def __enter__(self) -> "_Folder":
    return self

  def __exit__(self, *_: object) -> None:
    self.checkpoints.close()

  def open(self, state: TrainState, resume: bool) -> TrainState:
    """The state to start from; sets the metrics back to it."""
    steps = self.checkpoints.steps
    if steps and not resume:
      raise ValueError(
        f"directory {self.path} holds a run of {steps[-1]} steps: pass"
        " resume=True to go on with it, or another directory."
      )
    newest = self.checkpoints.restore(state)
    start, state = newest or (0, state)
    # Of several processes one writes.
    if jax.process_index() == 0:
      self.log = MetricsLog(self.path / "metrics.csv", step=start)
    return state

  def write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Appends the row of a step."""
    if self.log is not None:
      self.log.write(step, metrics)

  def stop(self, state: TrainState, num_steps: int) -> str:
    """Saves the state of a stopped run and says how to go on."""
    made = int(state.step)
    if jax.process_count() > 1:
      # The others may be elsewhere: no save without them.
      return (
        f"stopped after step {made} of {num_steps}: start all processes again"
        f" with resume=True to go on from the last checkpoint in {self.path}."
      )
    if made not in self.checkpoints.steps:
      self.checkpoints.save(made, state)
    return (
      f"stopped after step {made} of {num_steps}, checkpoint saved in"
      f" {self.path}: call fit again with resume=True to go on."
    )


def _check_counts(**counts: int) -> None:
  for name, count in counts.items():
    if count < 1:
      raise ValueError(f"{name} must be at least 1, got {count!r}.")


def _calibrated(state: TrainState, batch: Any) -> TrainState:
  try:
    return state.calibrate(batch)
  except ValueError as error:
    raise ValueError(
      f"calibrate=True, but batch 0 cannot be calibrated on: {error} Pass"
      " calibrate=False to train with the thresholds as they are."
    ) from error


def _progress(disable: bool) -> progress.Progress:
  return progress.Progress(
    progress.TextColumn("{task.description}"),
    progress.BarColumn(),
    progress.MofNCompleteColumn(),
    progress.TextColumn("steps"),
    progress.TextColumn("{task.fields[loss]}"),
    progress.TimeElapsedColumn(),
    progress.TextColumn("elapsed,"),
    progress.TimeRemainingColumn(),
    progress.TextColumn("left"),
    disable=disable,
  )
