"""Training: a state, a step from a loss, a loop that may stop anywhere."""

from oflax.training.checkpoints import Checkpoints
from oflax.training.evaluation import evaluation
from oflax.training.fit import fit
from oflax.training.processes import joined
from oflax.training.state import TrainState
from oflax.training.state import create_state
from oflax.training.step import train_step

__all__ = (
  "Checkpoints",
  "TrainState",
  "create_state",
  "evaluation",
  "fit",
  "joined",
  "train_step",
)
