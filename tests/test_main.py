"""The command line, as a user runs it: in a process of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from starts import FORKING
from warm_python import run_python

from xuance_envs.measuring_commands import _cases, _demo_of

PNG = b"\x89PNG\r\n\x1a\n"


PROGRAM = f"""
import importlib.util
{FORKING}
hidden, *sys.argv[1:] = sys.argv[1:]
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *_: None if name == hidden else find(name)
from xuance_envs.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run(*args: str, hide: str = "") -> subprocess.CompletedProcess[str]:
    """``python -m xuance_envs`` with these words; ``hide`` names a package to be missing."""
    if args[:1] == ("demo",):
        return run_python("-c", PROGRAM, hide, *args)
    return run_python("-m", "xuance_envs", *args)


def plots_of(answer: subprocess.CompletedProcess[str]) -> list[Path]:
    return [Path(line) for line in answer.stdout.splitlines() if line.endswith(".png")]


def test_the_demo_shows_a_table_saves_a_plot_and_ends_with_the_next_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = run(
        *("demo", "--no-training", "--num-envs", "2", "3", "--seconds", "0.2"),
        *("--out", str(tmp_path / "new")),
    )
    assert answer.returncode == 0, answer.stderr
    rows = [line.split("|") for line in answer.stdout.splitlines() if line.startswith("| ")]
    backends = [(row[1].strip(), row[2].strip()) for row in rows[2:]]
    assert backends == [
        (name, f"{size} × CartPole-v1")
        for size in (2, 3)
        for name in ("DummyVecEnv_Gym", "SubprocVecEnv_Gym", "SubprocVecEnv_Gym, caller_steps")
    ]
    (picture,) = plots_of(answer)
    assert picture.parent == tmp_path / "new"
    assert picture.read_bytes().startswith(PNG)
    assert re.findall(r"^(\d × CartPole-v1): \w+.* is fastest", answer.stdout, re.MULTILINE) == [
        "2 × CartPole-v1",
        "3 × CartPole-v1",
    ]
    last = answer.stdout.splitlines()[-1]
    python, _, arguments = last.rpartition(": ")[2].partition(" ")
    assert arguments == "-m xuance_envs bench CartPole-v1"
    found = python if "/" in python else shutil.which(python)
    assert Path(found).absolute() == Path(sys.executable), "the command runs this interpreter"
    assert answer.stderr == "", "progress is shown on terminals only"


def test_the_demo_compares_cheap_environments_with_costly_ones() -> None:
    env_fn, _ = _demo_of("CartPole-v1")
    cases = _cases("CartPole-v1", env_fn, False, None)
    assert [(case.title, case.num_envs) for case in cases] == [
        ("8 × CartPole-v1", 8),
        ("64 × CartPole-v1", 64),
        ("8 × CartPole-v1 + 1 ms", 8),
    ]
    env = cases[-1].env_fn()
    env.reset(seed=0)
    start = time.thread_time()
    for _ in range(5):
        env.step(0)
    assert time.thread_time() - start >= 5e-3
    only_three = _cases("CartPole-v1", env_fn, False, [3])
    assert [case.title for case in only_three] == ["3 × CartPole-v1"]


def test_the_demo_plays_atari_games(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("--num-envs", "2", "--seconds", "0.2", "--out", str(tmp_path))
    answer = run("demo", "ALE/Breakout-v5", *words)
    assert answer.returncode == 0, answer.stderr
    assert "(84, 84, 4), uint8" in answer.stdout
    assert "| SubprocVecEnv_Atari, caller_steps |" in answer.stdout
    assert plots_of(answer)[0].read_bytes().startswith(PNG)


def test_the_demo_says_how_the_episodes_ended(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer = run(
        *("demo", "--no-training", "--num-envs", "8", "--seconds", "0.5", "--out", str(tmp_path))
    )
    row = next(line for line in answer.stdout.splitlines() if line.startswith("| DummyVecEnv_Gym"))
    score, length = (cell.strip() for cell in row.split("|")[-3:-1])
    assert score == length, "every step of CartPole scores 1"
    assert 8 < float(score) < 200


@pytest.mark.long  # tests/test_demo.py trains, draws and records
def test_the_demo_trains_an_agent_before_the_table(tmp_path: Path, monkeypatch) -> None:
    for package in ("matplotlib", "torch", "pygame"):
        pytest.importorskip(package)
    for variable in ("XDG_RUNTIME_DIR", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        monkeypatch.delenv(variable, raising=False)
    answer = run(
        *("demo", "--goal", "25", "--seed", "3", "--num-envs", "2", "--seconds", "0.1"),
        *("--out", str(tmp_path)),
    )
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    pictures = [line for line in lines if line.startswith(str(tmp_path))]
    assert [Path(line).name for line in pictures] == [
        "CartPole-v1-learning.png",
        "CartPole-v1-agent.gif",
        "CartPole-v1.png",
    ]
    assert all(Path(line).is_file() for line in pictures)
    table = next(number for number, line in enumerate(lines) if line.startswith("| backend"))
    assert lines.index(pictures[1]) < table < lines.index(pictures[2])
    assert answer.stderr == ""  # nothing of SDL either, where there is no screen


@pytest.mark.parametrize(
    ("package", "extra"),
    [("tqdm", "plot"), ("matplotlib", "plot"), ("torch", "demo"), ("PIL", "demo")],
)
def test_a_missing_package_is_named_with_what_to_install(package: str, extra: str) -> None:
    answer = run("demo", hide=package)
    assert answer.returncode == 2
    assert package in answer.stderr
    assert f'pip install "xuance_envs[{extra}]"' in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["demo", "--env", "NoSuchEnv-v0"], "NoSuchEnv"),
        (["demo", "Brekout"], "'Breakout'"),
        (["demo", "--num-envs", "0"], "above 0"),
        (["demo", "--seconds", "nan"], "above 0"),
        (["demo", "--seed", "-1"], "--seed: expected a non-negative int, got -1"),
        (["no-such-command"], "demo"),
        (["state", "."], "Is a directory: '.'"),
    ],
)
def test_what_the_user_got_wrong_is_said_in_a_line(args: list[str], said: str) -> None:
    answer = run(*args)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_without_a_command_there_is_one_screen_that_shows_all() -> None:
    answer = run()
    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) <= 40
    for command in ("demo", "bench", "doctor", "serve"):
        assert f"    {command} " in answer.stdout
    assert "make_vec" in answer.stdout


def test_the_command_line_loads_plotting_only_to_plot() -> None:
    code = (
        "import sys, xuance_envs.__main__\n"
        "print([name for name in ('matplotlib', 'tqdm', 'torch') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "[]"


def test_bench_shows_a_table_and_what_to_take() -> None:
    lines = run("bench", "CartPole-v1", "--num-envs", "1", "2").stdout.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert sum("recommended" in line for line in table) == 2
    assert {line.split("|")[2].strip() for line in table[2:]} == {"1", "2"}
    assert any(line.startswith("A step of one environment takes") for line in lines)


def test_bench_of_what_there_is_not_is_an_error() -> None:
    result = run("bench", "NoSuchEnv-v0")
    assert result.returncode == 2
    assert "NoSuchEnv" in result.stderr
    assert "Traceback" not in result.stderr
