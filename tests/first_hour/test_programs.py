"""The five programs of a newcomer's first hour, as written from the documentation alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::DeprecationWarning", PROGRAMS / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("name", "libraries", "printed"),
    [
        ("own_environment.py", [], ["SubprocVecEnv(num_envs=8)", "episodes: True"]),
        pytest.param(
            *("stable_baselines.py", ["stable_baselines3"], ["episodes: True"]),
            marks=pytest.mark.slow("loads PyTorch, and starts four workers"),
        ),
        (
            "multi_agent.py",
            ["mpe2"],
            [
                "(4, 3, 18) ('agent_0', 'agent_1', 'agent_2')",
                "(4, 3) [True, True, True, True] (4, 3, 18)",
            ],
        ),
        ("atari.py", ["ale_py", "torch", "cv2"], ["(84, 84, 4)", "(16, 2, 4, 84, 84) (16, 2)"]),
    ],
)
def test_a_program_runs_as_written(name: str, libraries: list[str], printed: list[str]) -> None:
    for library in libraries:
        pytest.importorskip(library)
    done = run(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == printed


def test_a_killed_program_goes_on_from_its_file(tmp_path: Path) -> None:
    path = str(tmp_path / "envs.state")
    killed, resumed = run("resume.py", path), run("resume.py", path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert resumed.returncode == 0, resumed.stderr
    start, following = resumed.stdout.splitlines()
    assert start == "resumed at [5, 5, 5, 5]"
    assert following + "\n" == killed.stdout
