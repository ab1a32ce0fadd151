"""Systems other than Linux, as far as Linux can stand in for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xuance_envs import Gym_Env

ROOT = Path(__file__).resolve().parents[1]


def cartpole(env_seed: int | None = None) -> Gym_Env:
    return Gym_Env("CartPole-v1", seed=env_seed)


CHECKS = (
    *("check_imports", "check_backends", "check_transforms_and_states", "check_rollouts"),
    *("check_choice", "check_refusals", "check_client"),
)


def checks_passed_by(python: str | Path) -> list[str]:
    """Run the checks of Windows with a Python, beside a server in this process."""
    from serving import make_server

    server = make_server({"CartPole-v1": cartpole})
    try:
        return run_with(
            python, str(ROOT / "tests" / "shared" / "like_windows.py"), server.url
        ).split()
    finally:
        server.close()


def run_with(python: str | Path, *arguments: str) -> str:
    result: Any = subprocess.run(
        [python, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


@pytest.mark.slow("imports the package in a Python of its own")
def test_without_posix_all_but_worker_processes_works() -> None:
    for library in ("fastapi", "httpx", "torch", "stable_baselines3"):
        pytest.importorskip(library)
    assert checks_passed_by(sys.executable) == list(CHECKS)


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / ".wine/.installed").exists(), reason="run make test-windows first")
def test_python_for_windows_under_wine_passes_the_same_checks() -> None:
    pytest.importorskip("fastapi")
    passed = checks_passed_by(ROOT / ".ci" / "windows_python")
    without_torch = [check for check in CHECKS if check != "check_rollouts"]
    workers = ["check_workers", "check_restarts", "check_hangs"]
    assert passed == [*without_torch, *workers, "check_workers_end_with_this_process"]


def test_limits_that_a_system_does_not_enforce_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    from xuance_envs.engine.system.current import system
    from xuance_envs.remote.cli import serve
    from xuance_envs.remote.settings import Limits

    monkeypatch.setattr(system, "LIMITS_MEMORY", False)
    monkeypatch.setattr(system, "NAME", "macOS")
    with pytest.raises(ValueError, match=r"^memory: .* macOS does not limit the memory"):
        Limits(memory=1 << 30)
    assert Limits(memory=None, cpu_per_token=9.0).memory_per_session is not None
    assert serve.TOKEN_LIMITS["max-memory-per-token"]("100") == {"memory_per_token": 100 * 2**20}
