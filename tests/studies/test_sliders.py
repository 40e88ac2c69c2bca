"""A figure with sliders is a figure where none run."""

import pytest

from oflax.studies import sliders
from oflax.studies.figures import plt

display = pytest.importorskip("IPython.display")


@pytest.fixture
def shown(monkeypatch):
  bundles = []
  monkeypatch.setattr(
    display, "display", lambda data, raw=False: bundles.append(data)
  )
  return bundles


def draw(size):
  figure, axes = plt.subplots()
  axes.set_title(f"size {size}")
  axes.plot([0, size])
  return figure


def test_the_middle_choice_is_seen_without_widgets(shown, monkeypatch):
  monkeypatch.setattr(sliders.importlib.util, "find_spec", lambda name: None)
  sliders.explore(draw, size=[1, 2, 3])
  [bundle] = shown
  assert set(bundle) == {"image/svg+xml", "text/plain"}
  assert bundle["text/plain"] == "{'size': 2}"
  assert "<svg" in bundle["image/svg+xml"]
  assert not plt.get_fignums()


def test_a_slider_comes_with_the_figure(shown):
  pytest.importorskip("ipywidgets")
  sliders.explore(draw, size=[1, 2, 3])
  bundle = shown[-1]
  assert "image/svg+xml" in bundle
  assert any("widget-view" in kind for kind in bundle)


def test_a_slider_that_moves_draws_again(shown):
  pytest.importorskip("ipywidgets")
  sizes = []

  def drawn(size):
    sizes.append(size)
    return draw(size)

  widget = sliders.with_sliders(drawn, {"size": [1, 2, 3]}, {"size": 2})
  widget.children[0].value = 3
  assert sizes == [2, 3]
  assert len(shown) == 2


def test_an_argument_needs_choices():
  with pytest.raises(ValueError, match=r"size must have choices, got \[\]"):
    sliders.explore(draw, size=[])
