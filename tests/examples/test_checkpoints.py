"""A training that is killed and resumed ends where one does that never was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


def training(script: str, env_id: str, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "examples" / script), "--env", env_id]
    sizes = ["--num-envs", "4", "--seed", "3", "--every", "1"]
    return subprocess.Popen(
        [*command, *sizes, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return said


def checkpoint(folder: Path) -> Any:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


@pytest.mark.slow("three training runs in processes of their own")
@pytest.mark.parametrize(
    ("script", "env_id", "steps", "after"),
    [
        ("train_ppo.py", "CartPole-v1", "2304", "dummy"),
        ("train_mappo.py", "mpe2:simple_spread_v3", "1000", "dummy"),
        pytest.param("train_ppo.py", "Pendulum-v1", "3072", "subproc", marks=pytest.mark.long),
    ],
)
def test_a_killed_training_ends_with_the_same_weights(
    tmp_path: Path, script: str, env_id: str, steps: str, after: str
) -> None:
    pytest.importorskip(env_id.partition(":")[0] if ":" in env_id else "gymnasium")
    train = partial(training, script, env_id)
    before = "subproc" if after == "dummy" else "dummy"
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    uninterrupted = train("--backend", before, "--steps", steps, "--checkpoint", whole)
    endless = ["--backend", before, "--steps", "10000000", "--checkpoint", parts, "--resume", parts]
    killed = train(*endless)
    while not (parts / "checkpoint.pt").exists():
        assert killed.poll() is None
        time.sleep(0.002)
    time.sleep(random.random() * 0.05)
    killed.send_signal(signal.SIGKILL)
    assert f"starting from scratch: no checkpoint in {parts}" in killed.communicate()[0]
    ended(uninterrupted)
    reached = checkpoint(parts)["collector"]["global_steps"]
    assert reached < int(steps)
    where = ["--checkpoint", parts, "--resume", parts]
    said = ended(train("--backend", after, "--steps", steps, *where))
    assert f"{reached:,} steps  resumed from {parts}" in said
    one, other = checkpoint(whole), checkpoint(parts)
    assert one["collector"]["global_steps"] == other["collector"]["global_steps"]
    for name, weights in one["agent"].items():
        assert torch.equal(weights, other["agent"][name]), name
    for number, moments in one["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, other["optimizer"]["state"][number][name])
    assert one["collector"]["torch_generator"] == other["collector"]["torch_generator"]
