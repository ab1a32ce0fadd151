"""XuanCe's own algorithms learn the same on our classes as on XuanCe's, bit for bit.

They run where XuanCe is: in an environment of its own, with ``make test-long``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("xuance_agents.py")
ROOT = SCRIPT.parents[2]


def trained(algorithm: str) -> dict[str, str]:
    """Return a line about the scores and weights with each choice of classes."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT), algorithm],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = re.findall(r"^trained with (\w+) (64 scores .*)$", result.stdout, re.MULTILINE)
    assert len(found) == 3, result.stderr[-2000:]
    return dict(found)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("algorithm", ["IPPO", "MAPPO", "MADDPG", "QMIX"])
def test_scores_and_weights_are_equal(algorithm: str) -> None:
    for library in ("xuance", "mpe2", "torch"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    lines = trained(algorithm)
    assert lines["ours"] == lines["xuance"]
    assert lines["world"] == lines["xuance"]
