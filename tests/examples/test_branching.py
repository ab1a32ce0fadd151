"""The example that explores by branching."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from warm_python import run_python

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow("explores for seconds, and at random as long")
def test_it_gets_where_random_actions_do_not(tmp_path: Path) -> None:
    answer = run_python(ROOT / "examples" / "branching.py", "--seconds", "6", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    found = re.findall(r"(\w+): +([\d,]+) steps.*goal reached (\d+) times", answer.stdout)
    branching, random = [int(goals) / int(steps.replace(",", "")) for _, steps, goals in found]
    assert branching > 5 * random
