"""Sphinx configuration. "make docs" treats warnings as errors and needs no network."""

import re
import runpy
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

# Pages that list modules. autosummary generates a page per module. Without this list, it uses the
# pages of the last build and ignores new ones.
LISTING = [page.stem for page in Path(__file__).parent.glob("*.rst")]
PRIVATE = [
    name
    for page in Path(__file__).parent.glob("modules.rst")
    for name in re.findall(r"^   (xuance_envs\S+)$", page.read_text(), re.MULTILINE)
]
autosummary_generate = [f"{name}.rst" for name in LISTING]

# Document each name in its defining module only.
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
"""

# Link names of other libraries to their documentation, with local inventories.
SITES = runpy.run_path(str(Path(__file__).with_name("make_inventories.py")))["SITES"]
intersphinx_mapping = {name: (url, f"_inventories/{name}.inv") for name, url in SITES.items()}

# Every reference must resolve, with these exceptions.
nitpicky = True
suppress_warnings = ["ref.python"]  # a name that exists in httpx and in two of our modules
nitpick_ignore_regex = [
    # Classes of private modules, which have no docstring.
    (r"py:class", r"StepArrays|xuance_envs\.compat\.stepping\.\w+"),
    (r"py:.*", r".*\._\w+|_\w+"),  # private
    # Names of choices: the text of each argument lists them.
    (r"py:class", r"(ActorLayout|AtariPreset|AutoBool|BackendName|Halves|InSeries|StartMethod)"),
    # Constraints in annotations, such as those of pydantic messages, are not names.
    (r"py:class", r".*[ =\"'].*|types\.Annotated|(FieldInfo|Ge|Le|Lt|MaxLen|MinLen)"),
    (r"py:(class|exc)", r"(httpx|tianshou)\..*"),  # their documentation has no inventory
    (r"py:class", r"np\.random\.Generator"),  # as Gymnasium writes it
    (r"py:class", r"pydantic\..*|ASGIApp|ObservationMode"),
    (r"py:class", r"ThreadPoolExecutor|multiprocessing\.context\.BaseContext"),
    (r"py:class", r"Network|ParseLimit|xuance_envs\.remote\.(connection\.T|messages\.M)"),
    (r"py:class", r"xuance_envs\.remote\.serving\.process\.T"),
    (r"py:class", r"functools\.partial|concurrent\.futures\._base\.Future|weakref\.finalize"),
    # asyncio and uvicorn document these under other names.
    (r"py:class", r"asyncio\.transports\.Transport|uvicorn\..*"),
    # Base classes in the engine, and a name that Gymnasium documents elsewhere.
    (r"py:class", r"(cloudpickle\.cloudpickle|pickle)\.(Unp|P)ickler"),
    (r"py:class", r"gymnasium\.envs\.registration\.VectorizeMode"),
    # Gymnasium does not document its errors.
    (
        r"py:(class|exc)",
        r"(gymnasium\.error\.)?(\w*CallError|ClosedEnvironmentError|Error|NameNotFound|ResetNeeded)",
    ),
]


def read_listings(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> Any:
    """Read listings again, because a cached one may lack the pages of new modules."""
    return LISTING


def inline_timelines(app: Any, docname: str, source: list[str]) -> None:
    """Inline the drawings of draw_timelines.py, so that they use the colours of the page."""

    def inlined(match: re.Match[str]) -> str:
        path = Path(app.srcdir, match[1])
        app.env.note_dependency(str(path))
        drawing = path.read_text(encoding="utf-8")
        return f'```{{raw}} html\n<div style="overflow-x: auto">\n{drawing}</div>\n```'

    picture = r"!\[[^]]*\]\((_static/timelines/\w+\.svg)\)"
    source[0] = re.sub(picture, inlined, source[0])


def keep_colons(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Restore text before a colon that napoleon took for a type; types are in annotations."""
    if what in ("attribute", "data", "property"):
        for line in [line for line in lines if line.startswith(":type: ")]:
            lines.remove(line)
            lines[0] = f"{line.removeprefix(':type: ')}: {lines[0]}"


def skip_constants(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> Any:
    """Leave constants out of the reference, which would begin with them."""
    page = app.env.current_document.docname.removeprefix("api/")
    return True if what == "module" and name.isupper() and page not in PRIVATE else None


def keep_private_as_text(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Leave references of private modules as text if their target has no documentation."""
    page = node.get("refdoc", "")
    if page == "modules" or page.removeprefix("api/") in PRIVATE:
        return contnode
    return None


def expand_alias(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Write out the types behind the names that annotations of options use."""
    name = node.get("reftarget", "")
    alias = getattr(halves if name == "Halves" else options, name, None)
    if get_origin(alias) is None:
        return None
    return nodes.literal(text=stringify_annotation(alias, "smart").replace("~typing.", ""))


def setup(app: Any) -> None:
    app.connect("missing-reference", expand_alias)
    app.connect("missing-reference", keep_private_as_text, priority=900)  # intersphinx: 500
    app.connect("autodoc-skip-member", skip_constants)
    app.connect("autodoc-process-docstring", keep_colons, priority=600)  # napoleon: 500
    app.connect("source-read", inline_timelines)
    app.connect("env-get-outdated", read_listings)
