"""The examples pass strict type checkers, and misspelt options do not.

Each block of the README is checked alone, and the blocks of another page together, as they run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

for library in ("basedpyright", "mypy", "ray", "stable_baselines3", "torch"):
    if importlib.util.find_spec(library) is None:  # type checkers read them, nothing runs them
        pytest.skip(f"{library} is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(900)  # without a cache, mypy also checks torch

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\S*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = {"python", "{code-block}python", "{testsetup}", "{testcode}", "{doctest}"}

AGENT = "from typing import Any\nagent: Any = None\n"
GIVEN = {"multi_objective": AGENT, "ray": AGENT + "learn: Any = None\n"}
"""Names that a page's blocks use and do not define."""

PYRIGHT = {
    "typeCheckingMode": "standard",
    "reportPossiblyUnboundVariable": "none",  # after loops that always run
    "reportMissingImports": "none",  # TorchRL and XuanCe have virtual environments of their own
    "extraPaths": [str(ROOT)],
}

OPTIONS = """
from typing import Any

import gymnasium

from xuance_envs import (
    BackendOptions, DummyVecEnv, Gym_Env, MultiAgentVecEnv, RayVecEnv, RolloutCollector,
    SubprocVecEnv, SubprocVecEnv_Atari, SubprocVecEnv_Gym, SubprocVecMultiAgentEnv, SyncVecEnv,
    autotune, make_multi_agent_vec, make_vec,
)
from xuance_envs.compat import gymnasium as drop_in, sb3
from xuance_envs.compat.xuance import install
from xuance_envs.transforms import EpisodeStatistics, Transform

fns = [lambda: Gym_Env("CartPole-v1")] * 4
agent: Any = None

SubprocVecEnv_Gym(fns, "fork", 2, env_seed=1, copy=False, step_timeout=3, num_workers=None)
SubprocVecEnv(fns, 1, "auto", context="forkserver", on_worker_failure="resume", num_workers=2)
RayVecEnv(fns, 2, actors="core", on_worker_failure="restart", num_cpus_per_worker=0.5)
MultiAgentVecEnv(fns, backend="ray", address="auto", caller_steps=True, state="auto")
drop_in.AsyncVectorEnv(fns, context="spawn", in_series=2, worker_threads=None)
sb3.SubprocVecEnv(fns, "spawn", envs_per_worker=2)
make_vec("CartPole-v1", 2, vector_kwargs={"on_worker_failure": "restart"}, length=3)
make_vec("CartPole-v1", 2, backend="native", vector_kwargs={"anything": 1})
make_vec("CartPole-v1", 2, vectorization_mode="sync").single_action_space
options: BackendOptions = {"in_series": 2, "record_failures": None}
make_vec("CartPole-v1", 2, vector_kwargs=options)
autotune(fns[0], 2, options={"num_workers": 2})
SyncVecEnv(fns[0], 2, 10, agent, backend="subproc", num_workers=2, halves="auto")
SyncVecEnv(fns[0], 2, 10, 0, 30.0, agent, backend=DummyVecEnv, anything=1)
with SubprocVecEnv(fns) as envs:
    envs.pids
transforms: list[Transform] = EpisodeStatistics(DummyVecEnv(fns)).transforms

SubprocVecEnv_Gym(fns, step_timout=3)  # refused
SubprocVecEnv_Gym(fns, 4)  # refused
SubprocVecEnv_Gym(fns, on_worker_failure="reboot")  # refused
SubprocVecEnv(fns, in_series="all")  # refused
SubprocVecEnv(fns, num_workers="2")  # refused
SubprocVecEnv_Atari(fns, caller_step=True)  # refused
DummyVecEnv(fns, in_series=2)  # refused
RayVecEnv(fns, on_worker_failure="resume")  # refused
RayVecEnv(fns, actors="cores")  # refused
MultiAgentVecEnv(fns, backend="threads")  # refused
MultiAgentVecEnv(fns, step_timout=3)  # refused
SubprocVecMultiAgentEnv(fns, on_worker_failure="reboot")  # refused
SubprocVecMultiAgentEnv(fns, state="always")  # refused
drop_in.AsyncVectorEnv(fns, step_timout=3)  # refused
sb3.SubprocVecEnv(fns, on_worker_failure="reboot")  # refused
make_vec("CartPole-v1", 2, backend="threads")  # refused
make_vec("CartPole-v1", 2, vector_kwargs={"step_timout": 3})  # refused
make_vec("CartPole-v1", 2, vectorization_mode="threads")  # refused
make_multi_agent_vec("mpe2:simple_tag_v3", 2, vector_kwargs={"context": "threads"})  # refused
autotune(fns[0], 2, options={"step_timout": 3})  # refused
RolloutCollector(DummyVecEnv(fns), agent, 10, halves=3)  # refused
SyncVecEnv(fns[0], 2, 10, agent, backend="threads")  # refused
SyncVecEnv(fns[0], 2, 10, agent, backend="subproc", step_timout=3)  # refused
install(step_timout=3)  # refused
"""

Found = dict[str, list[tuple[int, str]]]


def blocks(page: Path) -> list[str]:
    found = []
    for kind, word, content in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind + word in CODE:
            code = re.sub(r"^:\w+:.*\n", "", content, flags=re.MULTILINE)
            if kind == "{doctest}":
                lines = re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", code, re.MULTILINE)
                code = "\n".join(lines) + "\n"
            found.append(code)
    return found


MYPY = "\n# mypy: allow-redefinition, allow-untyped-calls\n"
"""Settings of each module. With those of pyproject.toml, mypy's cache is that of ``make types``."""


def examples() -> dict[str, str]:
    """The code of each page, by the name of a module."""
    found = {f"readme_{i}": code for i, code in enumerate(blocks(ROOT / "README.md"))}
    for page in sorted((ROOT / "docs").glob("*.md")):
        if code := blocks(page):
            found[f"page_{page.stem}"] = GIVEN.get(page.stem, "") + "\n".join(code)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for name, code in {**examples(), "options": OPTIONS}.items():
        (folder / f"{name}.py").write_text(code + MYPY, encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    return folder


def run(folder: Path, *command: str) -> str:
    path = os.pathsep.join([str(ROOT), str(folder)])
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "MYPYPATH": path, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def found_by_mypy(folder: Path) -> Found:
    printed = run(
        folder,
        *("mypy", "--config-file", str(ROOT / "pyproject.toml"), "--show-absolute-path"),
        *("--cache-dir", str(ROOT / ".mypy_cache" / sys.platform), "--no-error-summary"),
        *map(str, sorted(folder.glob("*.py"))),
    )
    found: Found = {}
    for path, line, text in re.findall(r"^(\S+\.py):(\d+): error: (.*)$", printed, re.MULTILINE):
        found.setdefault(Path(path).stem, []).append((int(line), text))
    return found


def found_by_basedpyright(folder: Path) -> Found:
    arguments = ("--outputjson", "--level", "error", "--pythonpath", sys.executable)
    report: dict[str, Any] = json.loads(run(folder, "basedpyright", *arguments))
    assert report["summary"]["filesAnalyzed"] > len(examples())
    found: Found = {}
    for each in report["generalDiagnostics"]:
        line = each["range"]["start"]["line"] + 1
        found.setdefault(Path(each["file"]).stem, []).append((line, each["message"]))
    return found


@pytest.fixture(
    scope="module",
    # Without a cache, mypy takes as long as some thousand other tests.
    params=[pytest.param(found_by_mypy, marks=pytest.mark.long), found_by_basedpyright],
)
def found(request: pytest.FixtureRequest, folder: Path) -> Found:
    return dict(request.param(folder))


@pytest.mark.slow("the first one waits for the type checker")
@pytest.mark.parametrize("name", examples())
def test_an_example_passes(name: str, found: Found) -> None:
    assert found.get(name, []) == []


def test_wrong_names_and_values_of_options_are_refused_and_no_others(found: Found) -> None:
    refused = {
        number for number, line in enumerate(OPTIONS.splitlines(), 1) if line.endswith("# refused")
    }
    assert {line for line, _ in found["options"]} == refused
