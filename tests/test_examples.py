"""The example scripts, each run briefly."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from warm_python import run_python

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def need_libraries_of(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for library in re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE):
        is_beside = (EXAMPLES / f"{library}.py").exists()
        if not is_beside and importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(EXAMPLES / name, *arguments)


def test_many_agents_learn_for_a_moment(tmp_path: Path) -> None:
    need_libraries_of("train_mappo.py")
    pytest.importorskip("mpe2")
    arguments = ("--steps", "400", "--num-envs", "4", "--backend", "dummy")
    result = run("train_mappo.py", *arguments, "--plot", str(tmp_path / "curve.png"))
    assert result.returncode == 0, result.stderr
    assert re.search(r"^400 steps in \d+ s: mean return -\d+\.\d$", result.stdout, re.MULTILINE)
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_many_agents_may_end_before_an_episode_does() -> None:
    need_libraries_of("train_mappo.py")
    pytest.importorskip("mpe2")
    result = run("train_mappo.py", "--steps", "0", "--num-envs", "1", "--backend", "dummy")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "0 steps in 0 s: mean return nan\n"


@pytest.mark.parametrize("name", ["cleanrl_style_ppo.py", "sb3_ppo.py"])
def test_it_learns_for_a_moment(name: str) -> None:
    need_libraries_of(name)
    result = run(name, "--timesteps", "1024", "--num-envs", "4")
    assert result.returncode == 0, result.stderr
    assert re.search(r"mean return.*: \d+ \D+ \d+ \D*$", result.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cleanrl_style_ppo.py", "sb3_ppo.py"])
def test_it_learns_cartpole(name: str) -> None:
    need_libraries_of(name)
    result = run(name)
    assert result.returncode == 0, result.stderr
    first, last = map(int, re.findall(r"(\d+) (?:at the|before|after)", result.stdout))
    assert first < 60
    assert last > 300


def test_that_of_xuance_says_what_it_needs() -> None:
    if importlib.util.find_spec("xuance") is not None:
        pytest.skip("XuanCe is here, and its training takes minutes")
    result = run("xuance_dqn.py")
    assert result.returncode == 1
    assert "pip install xuance" in result.stderr


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_each_says_how_it_is_run(
    example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need_libraries_of(example.name)
    text = example.read_text(encoding="utf-8").split('"""')[1]
    assert f"python examples/{example.name}" in text
    monkeypatch.setattr(sys, "argv", [example.name, "--help"])
    monkeypatch.syspath_prepend(EXAMPLES)  # as Python does for a script
    # In this process, which has loaded the libraries of the others.
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(example), run_name="__main__")
    assert not caught.value.code
    printed = capsys.readouterr().out
    for option in re.findall(r"--[a-z]+(?:-[a-z]+)*", text):
        assert option in printed
