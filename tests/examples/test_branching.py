"""The example that explores by branching."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from warm_python import run_python

from xuance_envs import DummyVecEnv

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_it_gets_where_random_actions_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    branching = importlib.import_module("branching")

    def explored(branches: bool, steps: int) -> int:
        with DummyVecEnv([branching.make_env] * 64) as envs:
            for found in branching.explore(envs, branches, seed=1):
                if found.goals or found.steps >= steps:
                    return int(found.goals)
        raise AssertionError("it ended")

    assert explored(True, steps=20_000) > 0
    assert explored(False, steps=20_000) == 0


@pytest.mark.long
def test_it_prints_both_results(tmp_path: Path) -> None:
    answer = run_python(EXAMPLES / "branching.py", "--seconds", "10", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = re.findall(r"(\w+): +([\d,]+) steps.*goal reached (\d+) times", answer.stdout)
    branching, random = [int(goals) / int(steps.replace(",", "")) for _, steps, goals in found]
    assert branching > 5 * random
