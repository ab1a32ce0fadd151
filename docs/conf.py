"""Sphinx configuration. "make docs" treats warnings as errors and needs no network."""

import inspect
import multiprocessing
import pydoc
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any, get_origin

from docutils import nodes
from sphinx.util.typing import stringify_annotation

from xuance_envs import RolloutCollector, __version__
from xuance_envs.rollout import halves
from xuance_envs.vector_envs import options

project = "xuance_envs"
author = "xuance_envs contributors"
copyright = "xuance_envs contributors"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_reredirects",
]
exclude_patterns = ["_build", "_templates"]
html_theme = "furo"
html_title = f"xuance_envs {version}"
html_theme_options = {
    "light_css_variables": {"timeline-second": "#b35900"},
    "dark_css_variables": {"timeline-second": "#ffa657"},
}
html_static_path = ["_static"]
html_css_files = ["custom.css"]
templates_path = ["_templates"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = False

# Old page names, up to 0.2.0.
redirects = {
    old: f"{new}.html"
    for old, new in {
        "behind_a_proxy": "reverse_proxy",
        "coming_from": "migrating",
        "episode_ends": "autoreset",
        "first_ready": "asynchronous_stepping",
        "many_agents": "multi_agent",
        "many_agents_how_to": "multi_agent_how_to",
        "many_cores": "scaling",
        "splitting_work": "workers",
        "when_things_go_wrong": "failures",
        "your_own_environment": "custom_environments",
    }.items()
}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# autosummary generates a page per name that api.rst lists. Without this list, it uses the pages of
# the last build and ignores new ones.
LISTING = ["api"]
autosummary_generate = ["api.rst"]

# Names are documented as they are imported, and can be referred to by their defining module, too.
DEFINITIONS = runpy.run_path(str(Path(__file__).with_name("public_names.py")))["definitions"]()
PUBLIC = {definition: name for name, definition in DEFINITIONS.items()}
# Old pages, one for each module.
redirects |= {
    f"api/{module}": "../api.html"
    for module in {name.rpartition(".")[0] for names in DEFINITIONS.items() for name in names}
    | {"xuance_envs.remote.client", "xuance_envs.remote.remote_vec_env"}
    if module not in DEFINITIONS
}

autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_mock_imports = ["tianshou"]  # not installed where the documentation is built
# Sphinx shows the signature of `__new__` if it is a function, even if `__init__` differs.
RolloutCollector.__new__ = RolloutCollector.__new__.__call__
viewcode_follow_imported_members = False  # else it looks for constants in their types' modules
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
napoleon_use_ivar = True

# Examples in docstrings omit these imports.
doctest_global_setup = """
import numpy as np
from xuance_envs import *
from xuance_envs import MultiAgentRolloutCollector, RemoteVecEnv, RolloutCollector, SyncVecEnv
from xuance_envs import create_student_gym_env_vectorized
from xuance_envs.remote.server import Server
from xuance_envs.remote.settings import Catalogue, Limits, Settings, Tokens
"""

# Link names of other libraries to their documentation, with local inventories.
SITES = runpy.run_path(str(Path(__file__).with_name("make_inventories.py")))["SITES"]
intersphinx_mapping = {name: (url, f"_inventories/{name}.inv") for name, url in SITES.items()}

# Every reference must resolve, with these exceptions.
nitpicky = True
suppress_warnings = [
    "config.cache",  # autosummary_context has a function
    "ref.python",  # a name that exists in two of our modules
]
nitpick_ignore_regex = [
    (r"py:.*", r".*\._\w+|_\w+"),  # private
    # Names of internal modules, which annotations or "Raises" name without the module.
    (r"py:(class|exc)", r"FaultError|Groups|ObservationMode|ParseLimit|UnknownGameError"),
    # Names of choices: the text of each argument lists them.
    (r"py:class", r"(ActorLayout|AtariPreset|AutoBool|BackendName|Halves|InSeries|StartMethod)"),
    (r"py:(class|exc)", r"(tianshou)\..*"),  # their documentation has no inventory
    (r"py:class", r"np\.random\.Generator"),  # as Gymnasium writes it
    # Gymnasium does not document its errors.
    (
        r"py:(class|exc)",
        r"(gymnasium\.error\.)?(\w*CallError|ClosedEnvironmentError|Error|NameNotFound|ResetNeeded)",
    ),
]


def read_listings(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> Any:
    """Read listings again, because a cached one may lack the pages of new modules."""
    return LISTING


def inline_drawings(app: Any, place: Any, *sources: Any) -> None:
    """Inline drawings in pages and included files, in the colours of the page."""

    def inlined(match: re.Match[str]) -> str:
        path = Path(app.srcdir, match[1])
        app.env.note_dependency(str(path))
        drawing = path.read_text(encoding="utf-8")
        return f'```{{raw}} html\n<div style="overflow-x: auto">\n{drawing}</div>\n```'

    content = sources[-1]
    picture = r"!\[[^]]*\]\((?:docs/)?(_static/(?:timelines/\w+|overview)\.svg)\)"
    content[0] = re.sub(picture, inlined, content[0])


def keep_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Restore text before a colon that napoleon mistook for a type; types are in annotations."""
    if what in ("attribute", "data", "property"):
        for line in [line for line in lines if line.startswith(":type: ")]:
            lines.remove(line)
            lines[0] = f"{line.removeprefix(':type: ')}: {lines[0]}"


def skip_constants(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> Any:
    """Leave constants out of the pages of modules, which would begin with them."""
    return True if what == "module" and name.isupper() else None


def inherited(name: str) -> dict[str, list[str]]:
    """Return the documented methods and attributes that a class inherits, by public base class."""
    cls, seen = pydoc.locate(name), set()
    found: dict[str, list[str]] = {}
    for base in inspect.getmro(cls)[1:] if inspect.isclass(cls) else ():
        public = PUBLIC.get(f"{base.__module__}.{base.__qualname__}")
        if public is not None:
            own = vars(cls).keys() | seen
            found[public] = [each for each in vars(base).keys() - own if is_documented(base, each)]
            found[public].sort(key=list(vars(base)).index)
            seen.update(vars(base))
    return {base: names for base, names in found.items() if names}


def is_documented(cls: type, name: str) -> bool:
    member = inspect.getattr_static(cls, name)
    member = getattr(member, "__func__", member)
    is_shown = name[0] != "_" and isinstance(member, types.FunctionType | property)
    return is_shown and bool(member.__doc__)


autosummary_context = {"inherited": inherited}


def find_public_name(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Resolve references by defining module; leave the names of internal objects as text."""
    target, page = node.get("reftarget", ""), node.get("refdoc", "")
    module = DEFINITIONS.get(page.removeprefix("api/"), "").rpartition(".")[0]
    candidates = [target, *(d for d in PUBLIC if d.endswith(f".{target}") and "." not in target)]
    for candidate in candidates:
        parts = candidate.split(".")
        for count in range(len(parts), 0, -1):
            public = PUBLIC.get(".".join(parts[:count]))
            if public is not None:
                name = ".".join([public, *parts[count:]])
                place = page, app.builder, node["reftype"]
                return env.get_domain("py").resolve_xref(env, *place, name, node, contnode)
    is_internal = target.startswith("xuance_envs.") and pydoc.locate(target) is not None
    return contnode if is_internal or pydoc.locate(f"{module}.{target}") is not None else None


def expand_alias(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Write out the types behind the names that annotations of options use."""
    name = node.get("reftarget", "")
    alias = getattr(halves if name == "Halves" else options, name, None)
    if get_origin(alias) is None:
        return None
    return nodes.literal(text=stringify_annotation(alias, "smart").replace("~typing.", ""))


def start_workers_quickly(app: Any) -> None:
    """Fork the workers of examples from a process that has imported their modules."""
    if app.builder.name == "doctest":
        sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))
        from starts import start_by

        multiprocessing.set_forkserver_preload(["tests.shared.preloaded", "sphinx.cmd.build"])
        start_by("forkserver")


def setup(app: Any) -> None:
    app.connect("builder-inited", start_workers_quickly)
    app.connect("missing-reference", expand_alias)
    app.connect("missing-reference", find_public_name)
    app.connect("autodoc-skip-member", skip_constants)
    app.connect("autodoc-process-docstring", keep_colons, priority=600)  # napoleon: 500
    app.connect("source-read", inline_drawings)
    app.connect("include-read", inline_drawings)
    app.connect("env-get-outdated", read_listings)
