"""The example of thinking about one half while the other steps."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from comparing import assert_same

from xuance_envs import Gym_Env, SubprocVecEnv

torch = pytest.importorskip("torch")
pytest.importorskip("tqdm")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipelined.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipelined", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_prints_its_figures() -> None:
    answer = subprocess.run(
        [
            *(sys.executable, str(EXAMPLE), "--num-envs", "4", "--think", "1"),
            *("--workers", "3", "--rounds", "2", "--steps", "3"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "4 × CartPole-v1, 2 workers for each half" in answer.stdout
    assert answer.stdout.count(" µs a half") == 5
    assert "of the larger of the first two" in answer.stdout


def test_an_odd_number_is_refused(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        example.main(["--num-envs", "5"])
    assert caught.value.code == 2
    assert "expected an even number, got 5" in capsys.readouterr().err


@pytest.mark.parametrize("loop", ["pipelined", "one_after_the_other", "synchronous"])
def test_the_policy_sees_what_each_environment_goes_through(example: ModuleType, loop: str) -> None:
    def policy(obs: Any) -> Any:
        seen.extend(np.asarray(obs).copy())
        return (obs[:, 2] > 0).astype(int)

    seen: list[Any] = []
    with SubprocVecEnv([partial(Gym_Env, "CartPole-v1")] * 4, in_series=2) as envs:
        getattr(example, loop)(envs, policy, 60)
        assert not envs.waiting
        steps = {i: worker.steps for worker in envs.statistics() for i in worker.env_ids}
    assert 4 * 60 <= sum(steps.values()) <= (4 * 60 if loop != "pipelined" else 4 * 60 + 2)
    expected = []
    for i in range(4):
        env = Gym_Env("CartPole-v1")
        obs, _ = env.reset(seed=i)
        for _ in range(steps[i]):
            expected.append(obs)
            obs, _, terminated, truncated, _ = env.step(np.int64(obs[2] > 0))
            if terminated or truncated:
                obs, _ = env.reset()
    order = np.lexsort(np.array(seen).T), np.lexsort(np.array(expected).T)
    assert_same(np.array(seen)[order[0]], np.array(expected)[order[1]], "seen")


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_policy_gives_actions_of_the_space(example: ModuleType, env_id: str) -> None:
    env = Gym_Env(env_id)
    policy = example.Policy(env, 3, 0.0, "cpu")
    obs, _ = env.reset(seed=0)
    for action in policy(np.stack([obs] * 3)):
        assert env.action_space.contains(action)
