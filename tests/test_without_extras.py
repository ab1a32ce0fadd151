"""The tests themselves, where libraries that only extras bring are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LIBRARIES = [
    "PIL",
    "ale_py",
    "array_api_compat",
    "cv2",
    "fastapi",
    "gym",
    "httptools",
    "httpx",
    "matplotlib",
    "moviepy",
    "msgpack",
    "mujoco",
    "psutil",
    "ray",
    "stable_baselines3",
    "torch",
    "tqdm",
    "uvicorn",
    "websockets",
]

COLLECT = """
import sys, pytest
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split()))
quickly = ["--assert=plain", "-p", "no:cacheprovider"]
raise SystemExit(pytest.main(["--collect-only", "-q", *quickly, *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param(LIBRARIES, id="all"),
        *(pytest.param([name], id=name, marks=pytest.mark.long) for name in LIBRARIES),
    ],
)
def test_the_rest_is_collected(missing: list[str]) -> None:
    # Each by name: pytest then reads the conftest of all of them before it can skip anything.
    folders = [str(path) for path in (TESTS, *TESTS.iterdir()) if any(path.glob("test_*.py"))]
    result = subprocess.run(
        [sys.executable, "-c", COLLECT, " ".join(missing), *folders],
        cwd=TESTS.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    assert "tests/vector_envs/test_contract_step.py::" in result.stdout
