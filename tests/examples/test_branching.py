"""The example that explores by branching."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_it_gets_where_random_actions_do_not(tmp_path: Path) -> None:
    printed = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "branching.py"), "--seconds", "6"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=90,
    ).stdout
    found = re.findall(r"(\w+): +([\d,]+) steps.*goal reached (\d+) times", printed)
    branching, random = [int(goals) / int(steps.replace(",", "")) for _, steps, goals in found]
    assert branching > 5 * random
