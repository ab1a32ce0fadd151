"""XuanCe's own algorithms learn the same on our classes as on XuanCe's, bit for bit.

They run where XuanCe is: in an environment of its own, with ``make test-libraries``.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("xuance_agents.py")
ROOT = SCRIPT.parents[2]


def trained(algorithm: str, classes: str) -> str:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), algorithm, classes],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    told = [line for line in result.stdout.splitlines() if line.startswith("trained 64 ")]
    assert len(told) == 1, result.stderr[-2000:]
    return told[0]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("algorithm", ["IPPO", "MAPPO", "MADDPG", "QMIX"])
def test_scores_and_weights_are_equal(algorithm: str) -> None:
    for library in ("xuance", "mpe2", "torch"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    expected = trained(algorithm, "xuance")
    assert trained(algorithm, "ours") == expected
    assert trained(algorithm, "world") == expected
