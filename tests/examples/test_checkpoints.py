"""A training that is killed and resumed ends where one does that never was."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from warm_python import run_python

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


def training(script: str, env_id: str, *arguments: str | Path, **options: Any) -> str:
    """What a training run prints, unless it is killed."""
    sizes = ("--num-envs", "4", "--seed", "3", "--every", "1")
    done = run_python(ROOT / "examples" / script, "--env", env_id, *sizes, *arguments, **options)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.stdout


def checkpoint(folder: Path) -> Any:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


@pytest.mark.slow("three training runs")
@pytest.mark.parametrize(
    ("script", "env_id", "steps", "after"),
    [
        ("train_ppo.py", "CartPole-v1", "2304", "dummy"),
        pytest.param(
            "train_mappo.py", "mpe2:simple_spread_v3", "1000", "dummy", marks=pytest.mark.long
        ),
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
    endless = ["--backend", before, "--steps", "10000000", "--checkpoint", parts, "--resume", parts]
    started: Queue[int] = Queue()
    with ThreadPoolExecutor() as threads:
        killed = threads.submit(train, *endless, on_start=started.put)
        process = started.get(timeout=60)
        while not (parts / "checkpoint.pt").exists():
            assert not killed.done()
            time.sleep(0.002)
        time.sleep(random.random() * 0.05)
        os.kill(process, signal.SIGKILL)
        assert f"starting from scratch: no checkpoint in {parts}" in killed.result()
    train("--backend", before, "--steps", steps, "--checkpoint", whole)
    reached = checkpoint(parts)["collector"]["global_steps"]
    assert reached < int(steps)
    where = ["--checkpoint", parts, "--resume", parts]
    said = train("--backend", after, "--steps", steps, *where)
    assert f"{reached:,} steps  resumed from {parts}" in said
    one, other = checkpoint(whole), checkpoint(parts)
    assert one["collector"]["global_steps"] == other["collector"]["global_steps"]
    for name, weights in one["agent"].items():
        assert torch.equal(weights, other["agent"][name]), name
    for number, moments in one["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, other["optimizer"]["state"][number][name])
    assert one["collector"]["torch_generator"] == other["collector"]["torch_generator"]
