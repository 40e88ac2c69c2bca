"""The site: ``sphinx-build -W -n docs build/site``.

Notebooks are executed while it is built, so that what they show is what the
code does. OFLAX_NOTEBOOK_STEPS=… makes their trainings short.
"""

import importlib
import pathlib
import re
import shutil
from typing import Any

from sphinx import application
from sphinx.util import logging

import oflax

HERE = pathlib.Path(__file__).parent
# Sphinx reads what is below this folder only.
shutil.rmtree(HERE / "notebooks", ignore_errors=True)
shutil.copytree(
  HERE.parent / "notebooks",
  HERE / "notebooks",
  ignore=shutil.ignore_patterns(".ipynb_checkpoints"),
)
shutil.copy2(HERE.parent / "CHANGELOG.md", HERE / "changelog.md")

project = "oflax"
author = "the oflax authors"
version = release = oflax.__version__
extensions = [
  "myst_nb",
  "sphinx.ext.autodoc",
  "sphinx.ext.mathjax",
  "sphinx.ext.napoleon",
  "sphinx.ext.viewcode",
  "sphinx_copybutton",
  "sphinx_design",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]

html_theme = "sphinx_book_theme"
html_title = "oflax"
html_static_path = ["_static"]
html_css_files = ["oflax.css"]
html_theme_options = {
  "show_toc_level": 2,
  "use_download_button": True,
  "use_fullscreen_button": False,
  "navbar_persistent": [],  # The search is in the sidebar.
  "pygments_light_style": "a11y-high-contrast-light",
  "pygments_dark_style": "a11y-high-contrast-dark",
}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
# A page has no kernel: the static figure is shown, not a slider that is dead.
nb_mime_priority_overrides = [("html", "image/svg+xml", 0)]
nb_ipywidgets_js: dict[str, dict[str, str]] = {}

default_role = "py:obj"
maximum_signature_line_length = 72
autodoc_default_options = {
  "members": True,
  "member-order": "bysource",
  "special-members": "__call__",
  "exclude-members": "setup, own_presence, check, make_norm, shared,"
  " set_fit_request, set_predict_request, set_score_request",
}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_custom_sections = ["Reference"]
napoleon_use_ivar = True
napoleon_use_rtype = False

# Names of arguments stand in backticks, too. Types of other libraries are not
# looked up: the site is built without the network.
nitpick_ignore_regex = [
  ("py:obj", r"[a-z_0-9]+(=.*)?"),
  ("py:.*", r"(jax|jnp|np|numpy|flax|nn|optax|sklearn|struct|chex)\..*"),
  ("py:.*", r"(collections|typing|os|pathlib)\..*"),
  ("py:class", r"(Any|ArrayTree|Callable|Mapping|Sequence|PathLike|Path)"),
  ("py:class", r"oflax\..*\.(Operands|Report)"),
]

PUBLIC = (
  "oflax",
  "oflax.linen",
  "oflax.laws",
  "oflax.sequences",
  "oflax.training",
  "oflax.sharding",
  "oflax.retrofit.minilm",
  "oflax.retrofit.tabpfn_v3",
)
logger = logging.getLogger(__name__)


def link_pages(
  app: application.Sphinx,
  what: str,
  name: str,
  thing: Any,
  options: Any,
  lines: list[str],
) -> None:
  """Turns "docs/laws.md" in a docstring into a link to that page."""
  lines[:] = [re.sub(r"docs/(\w+)\.md", r":doc:`/\1`", line) for line in lines]


def shorten(
  app: application.Sphinx,
  what: str,
  name: str,
  thing: Any,
  options: Any,
  signature: str | None,
  returns: str | None,
) -> tuple[str | None, str | None]:
  """Leaves out of a module's signature what only Flax passes."""
  if what == "class" and signature:
    signature = re.sub(r", parent: .*?, name: [^,)]*", "", signature)
  return signature, returns


def check_public(app: application.Sphinx, env: Any) -> None:
  """Warns, hence fails, if a public name is not in the reference."""
  things = {
    f"{place}.{name}": getattr(importlib.import_module(place), name)
    for place in PUBLIC
    for name in importlib.import_module(place).__all__
  }
  documented = env.domaindata["py"]["objects"]
  # What two modules export is documented once.
  found = {id(thing) for name, thing in things.items() if name in documented}
  for name, thing in things.items():
    if id(thing) not in found:
      logger.warning("%s is public, but not documented", name)


def setup(app: application.Sphinx) -> None:
  app.connect("autodoc-process-docstring", link_pages, priority=900)
  app.connect("autodoc-process-signature", shorten)
  app.connect("env-check-consistency", check_public)
