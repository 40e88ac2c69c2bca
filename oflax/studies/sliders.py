"""Figures to play with in a notebook, which are figures elsewhere, too."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import importlib.util
import io
from typing import Any

from matplotlib import figure
from matplotlib import pyplot as plt


def explore(
  draw: Callable[..., figure.Figure], **choices: Sequence[Any]
) -> None:
  """Shows a figure with a slider for each of its arguments.

  The figure of the middle choices comes along: it is seen where no sliders run,
  as on a page, or without ipywidgets.

  Args:
    draw: Makes a figure, with `pyplot`.
    **choices: What each argument may be, in order.

  Raises:
    ValueError: An argument has no choices.

  Example:
    >>> def draw(size):
    ...   figure, axes = plt.subplots()
    ...   axes.plot([0, size])
    ...   return figure
    >>> explore(draw, size=[1, 2, 3])  # doctest: +SKIP

  Reference: ipywidgets.interactive.
  """
  for name, values in choices.items():
    if not values:
      raise ValueError(f"{name} must have choices, got {values!r}.")
  from IPython import display

  middle = {name: values[len(values) // 2] for name, values in choices.items()}
  shown = {"image/svg+xml": _svg(draw(**middle)), "text/plain": repr(middle)}
  if importlib.util.find_spec("ipywidgets"):
    widget = with_sliders(draw, choices, middle)
    shown = {**shown, **widget._repr_mimebundle_()}
  display.display(shown, raw=True)


def _svg(drawn: figure.Figure) -> str:
  file = io.StringIO()
  drawn.savefig(file, format="svg", bbox_inches="tight")
  plt.close(drawn)
  return file.getvalue()


def with_sliders(
  draw: Callable[..., figure.Figure],
  choices: Mapping[str, Sequence[Any]],
  start: Mapping[str, Any],
) -> Any:
  """The widget: a slider for each argument, and the figure of their values."""
  from IPython import display
  import ipywidgets

  def show(**chosen: Any) -> None:
    display.display(display.SVG(_svg(draw(**chosen))))

  sliders = {
    name: ipywidgets.SelectionSlider(
      options=[(f"{x:.3g}" if isinstance(x, float) else x, x) for x in values],
      value=start[name],
      description=name,
    )
    for name, values in choices.items()
  }
  return ipywidgets.interactive(show, **sliders)
