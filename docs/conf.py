"""Sphinx's settings. Warnings are errors and nothing is fetched: "make docs" works off line."""

import re
from pathlib import Path
from typing import Any

from xuance_envs import __version__

project = "xuance_envs"
author = "xuance_envs contributors"
copyright = "xuance_envs contributors"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "_templates"]
html_theme = "furo"
html_title = f"xuance_envs {version}"
html_theme_options = {
    "light_css_variables": {"timeline-second": "#b35900"},
    "dark_css_variables": {"timeline-second": "#ffa657"},
}
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# A name is documented where it is defined, and not again where it can be imported from as well.
autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_use_ivar = True

# Docstrings show how a thing is used, not how it is imported.
doctest_global_setup = "import numpy as np\nfrom xuance_envs import *"

# Public names of our own must lead somewhere; those of other libraries would need a network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!xuance_envs\b).*"), (r"py:.*", r".*\._\w+")]


def inline_timelines(app: Any, docname: str, source: list[str]) -> None:
    """Puts the drawings of draw_timelines.py into the page itself, whose colours they then have."""

    def inlined(match: re.Match[str]) -> str:
        path = Path(app.srcdir, match[1])
        app.env.note_dependency(str(path))
        drawing = path.read_text(encoding="utf-8")
        return f'```{{raw}} html\n<div style="overflow-x: auto">\n{drawing}</div>\n```'

    picture = r"!\[[^]]*\]\((_static/timelines/\w+\.svg)\)"
    source[0] = re.sub(picture, inlined, source[0])


def setup(app: Any) -> None:
    app.connect("source-read", inline_timelines)
