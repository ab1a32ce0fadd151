"""Every block of code in the documentation runs, here or with ``make docs``.

Blocks of Python run page by page, each page in an interpreter of its own, with stand-ins for what a
reader has and a test has not: an agent, a server, a cluster, XuanCe. Commands are looked up: the
module, the options, the extras and the targets they name have to exist.
"""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from itertools import takewhile
from pathlib import Path

import pytest
from starts import FORKING
from warm_python import run_python

from xuance_envs.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks/README.md"])

FENCE = re.compile(r"^(`{3,})(\{[\w-]+\} ?)?(\w*)[^\n]*\n(.*?)^\1$", re.MULTILINE | re.DOTALL)

RUN_BY_MAKE_DOCS = {"testcode", "testoutput", "doctest", "testsetup", "testcleanup"}
NO_CODE = {"text", "toctree", "include", "image", "figure", "raw", "index", "glossary", "yaml"}
NO_CODE |= {"dropdown"}
LITERAL = {"literalinclude"}  # of a file that has tests of its own

COMMANDS_NOT_TRIED = {
    "curl": "it needs a server with that very session; tests/remote tests the interface",
    "head": "it shows the file of a command before it",
    "umask": "it is a builtin of the shell",
    "ray": "it starts the machines of a cluster; tests/ray starts one in its own way",
}

STAND_INS = {
    "ray.md": """
from unittest.mock import MagicMock

real_collector = xuance_envs.RayRolloutCollector
agent, learn = object(), lambda *given: None

def RayRolloutCollector(*given, **named):
    inspect.signature(real_collector).bind(*given, **named)
    collector = MagicMock(spec=real_collector)  # has its methods, and no others
    collector.__enter__.return_value = collector
    return collector

xuance_envs.RayRolloutCollector = RayRolloutCollector
""",
    "migrating.md": """
import sys, types
import stable_baselines3

class Short(stable_baselines3.PPO):
    def __init__(self, *given):
        super().__init__(*given, n_steps=8, batch_size=64, n_epochs=1, device="cpu")

    def learn(self, steps):
        return super().learn(64)

stable_baselines3.PPO = Short
xuance = types.ModuleType("xuance")
xuance.__version__, xuance.__file__ = "v1.4.4", "xuance.py"
xuance.environment = types.ModuleType("xuance.environment")
xuance.environment.REGISTRY_VEC_ENV = {}
sys.modules |= {"xuance": xuance, "xuance.environment": xuance.environment}
""",
    "multi_objective.md": """
import sys, warnings
import torch

sys.warnoptions[:] = []  # mo-gymnasium warns about its bounds, in workers too
warnings.simplefilter("ignore")

class agent:
    device = "cpu"

    def get_actions_and_values(states, actions=None):
        nothing = torch.zeros(len(states))
        return nothing.int(), nothing, nothing, nothing
""",
}

NEEDS = {
    "migrating.md": ("stable_baselines3",),
    "index.md": ("stable_baselines3",),
    "ray.md": ("torch",),
    "multi_agent.md": ("mpe2",),
    "multi_agent_how_to.md": ("mpe2",),
    "multi_objective.md": ("mo_gymnasium", "torch"),
    "README.md": ("mpe2",),
    "remote.md": ("httpx",),
}
"""What a page's Python imports, its stand-ins included, and only extras bring."""

# Where these libraries are, tests/compat/test_xuance.py and test_tianshou.py run the page's lines.
ELSEWHERE = re.compile(r"xuance_envs\.compat\.(tianshou|xuance)\b")

TORCHRL = "from torchrl."
"""What the block begins its imports with that tests/compat/test_torchrl.py runs."""

# A cluster of Ray takes long to start, and tests/ray does it: here the arguments have to fit.
NO_CLUSTER = """
import inspect, xuance_envs

real_ray = xuance_envs.RayVecEnv_Gym

def RayVecEnv_Gym(*given, **named):
    inspect.signature(real_ray).bind(*given, **named)
    return xuance_envs.DummyVecEnv_Gym(given[0])

xuance_envs.RayVecEnv_Gym = RayVecEnv_Gym
"""


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Kind and content of each block of a page."""
    for _, directive, word, content in FENCE.findall(page.read_text(encoding="utf-8")):
        kind = directive.strip("{} ")
        yield (word if kind in ("", "code-block") else kind), content


def of_kind(*kinds: str) -> list[tuple[Path, list[str]]]:
    """The pages that have blocks of these kinds, with these blocks."""
    found = [(page, [text for kind, text in blocks(page) if kind in kinds]) for page in PAGES]
    return [(page, contents) for page, contents in found if contents]


def by_page(*kinds: str) -> pytest.MarkDecorator:
    pages = of_kind(*kinds)
    names = [str(page.relative_to(ROOT)) for page, _ in pages]
    return pytest.mark.parametrize(("page", "contents"), pages, ids=names)


def test_there_is_no_block_that_nobody_runs() -> None:
    known = RUN_BY_MAKE_DOCS | NO_CODE | LITERAL | {"python", "console", "diff"}
    unknown = {(page.name, kind) for page in PAGES for kind, _ in blocks(page) if kind not in known}
    assert unknown == set(), "a fence without a language, or one that no test knows"
    assert len(of_kind("python")) >= 3, "the blocks are found at all"


# --- Python -------------------------------------------------------------------------------------


def run(script: str, folder: Path) -> None:
    path = folder / "page.py"
    path.write_text(script, encoding="utf-8")
    result = run_python("-W", "error", path.name, cwd=folder)
    assert result.returncode == 0, result.stderr


def need_libraries_of(page: Path) -> None:
    for library in NEEDS.get(page.name, ()):
        pytest.importorskip(library)


@pytest.mark.slow("some pages train or start many workers")
@by_page("python")
def test_a_pages_python_runs(page: Path, contents: list[str], tmp_path: Path) -> None:
    need_libraries_of(page)
    here = [content for content in contents if TORCHRL not in content]
    run("\n".join([FORKING, NO_CLUSTER, STAND_INS.get(page.name, ""), *here]), tmp_path)


@by_page("diff")
def test_what_a_diff_adds_can_be_imported(page: Path, contents: list[str]) -> None:
    need_libraries_of(page)
    added = re.findall(r"^\+(.*)$", "\n".join(contents), re.MULTILINE)
    assert added
    exec("\n".join(line for line in added if not ELSEWHERE.search(line)), {})


# --- commands -----------------------------------------------------------------------------------


def commands(content: str) -> list[list[str]]:
    """The commands of a block: its lines, or those behind a prompt where there is one."""
    lines = content.replace("\\\n", " ").splitlines()
    prompted = [line[2:] for line in lines if line.startswith("$ ")]
    split = [shlex.split(line, comments=True) for line in prompted or lines]
    return [words for words in split if words]


def options_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}


@cache
def help_of(*command: str) -> str:
    with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
        main([*command, "--help"])
    return printed.getvalue()


def source_of(folder: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))


def check_python(words: list[str]) -> None:
    """``python -m module ...`` and ``python folder/script.py ...``."""
    if words[:2] == ["-m", "xuance_envs"]:
        command = takewhile(lambda word: word[0].isalpha(), words[2:4])  # with its action, if any
        assert options_of(words) <= set(re.findall(r"--[a-z-]+", help_of(*command)))
    elif words[0] == "-m" and words[1].startswith("benchmarks."):
        assert (ROOT / f"{words[1].replace('.', '/')}.py").is_file()
        said = source_of("benchmarks")  # options are shared by the scripts
        assert [option for option in options_of(words) if f'"{option}"' not in said] == []
    elif words[0].endswith(".py"):
        said = (ROOT / words[0]).read_text(encoding="utf-8")
        assert [option for option in options_of(words) if f'"{option}"' not in said] == []
    else:
        pytest.fail(f"no test knows python {shlex.join(words)}")


def check_extras(words: list[str]) -> None:
    extras = re.findall(r"\[([\w,-]+)\]", " ".join(words))
    have = re.findall(r'^ {4}"([\w-]+)": \[|^EXTRAS\["(\w+)"\]', SETUP, re.MULTILINE)
    assert {name for group in extras for name in group.split(",")} <= {a or b for a, b in have}


def check_targets(words: list[str]) -> None:
    targets = {word for word in words if "=" not in word}
    assert targets <= set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))


SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CHECKS = {"python": check_python, "pip": check_extras, "make": check_targets}


@by_page("console")
def test_a_pages_commands_exist(page: Path, contents: list[str]) -> None:
    for program, *words in (command for content in contents for command in commands(content)):
        if program not in COMMANDS_NOT_TRIED:
            assert program in CHECKS, f"{page.name}: no test knows {program} {shlex.join(words)}"
            CHECKS[program](words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_benchmarks_and_targets_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"`python (-m (?:xuance_envs|benchmarks\.)[^`]*|docs/[^`]*)`", text):
        check_python(command.split())
    for target in re.findall(r"`make ([a-z -]+)`", text):
        check_targets(target.split())


# --- figures ------------------------------------------------------------------------------------


def test_the_overview_is_what_its_script_draws() -> None:
    drawing = runpy.run_path(str(ROOT / "docs/draw_overview.py"))
    kept = drawing["FILE"].read_text(encoding="utf-8")
    assert kept == drawing["picture"](), "run python docs/draw_overview.py"


def test_the_timelines_are_what_the_calls_return() -> None:
    pytest.importorskip("stable_baselines3")
    drawing = runpy.run_path(str(ROOT / "docs/draw_timelines.py"))
    drawn = dict(drawing["pictures"]())
    kept = {path.name: path.read_text(encoding="utf-8") for path in drawing["FOLDER"].iterdir()}
    assert kept == drawn, "run python docs/draw_timelines.py"


MADE_BY = {
    "_static/timelines/": "python docs/draw_timelines.py",
    "_static/gallery/": "python docs/record_gallery.py",
    "_static/learning.png": "make demo",
    "_static/overview.svg": "python docs/draw_overview.py",
    "_static/status_page.png": "python -m pytest tests/remote/test_status_page.py",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_picture_names_the_command_that_made_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]*\]\((?!https?:)([^)]+)\)", text)
    for picture in pictures:
        assert (page.parent / picture).is_file()
        commands = [command for part, command in MADE_BY.items() if part in picture]
        expected = re.escape(commands[0]) if commands else r"python -m benchmarks\.\w+|make bench"
        assert re.search(expected, text), f"{picture}: say what made it, {expected}"
