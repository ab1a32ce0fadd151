"""Failures of environments with vector rewards."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from faulty_envs import kill
from vector_reward_envs import GoalsEnv

from xuance_envs import DummyVecEnv, EnvError, SubprocVecEnv, WorkerDiedError
from xuance_envs.__main__ import main
from xuance_envs.engine.data.reward_rows import first_unstepped, rewards_of

N, K = 4, 3


def subproc(**options: Any) -> SubprocVecEnv:
    fns = [partial(GoalsEnv, K, 5 + i) for i in range(N)]
    return SubprocVecEnv(fns, in_series=2, context="forkserver", **options)


def test_a_restarted_worker_has_zeros_in_that_step() -> None:
    with subproc(on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        envs.step([1] * N)
        kill(envs, 0)
        _, rewards, _, truncated, infos = envs.step([2] * N)
        assert truncated.tolist() == [True, True, False, False]
        assert infos[0]["worker_restarted"]
        assert_same(rewards[:2], np.zeros((2, K), np.float32))
        assert_same(rewards[2:, :2], np.array([[2, 2]] * 2, np.float32))
        assert_same(envs.step([3] * N)[1][:2, :2], np.array([[1, 3]] * 2, np.float32))


def test_a_resumed_worker_repeats_its_vectors() -> None:
    with subproc(on_worker_failure="resume") as envs, subproc() as others:
        envs.reset(seed=0)
        others.reset(seed=0)
        for t in range(12):
            if t in (3, 7):
                kill(envs, t % 2)
            assert_same(envs.step([t % 9] * N)[1], others.step([t % 9] * N)[1])
            assert_same(envs.exact_rewards, others.exact_rewards)


class Late(GoalsEnv):
    """Fails or returns NaN in its sixth step, in its second episode."""

    def __init__(self, how: str) -> None:
        super().__init__(K, 4)
        self.how, self.total = how, 0

    def reward(self, action: Any) -> Any:
        self.total += 1
        if self.total == 6:
            if self.how == "raises":
                raise ValueError("too late")
            return np.array([1.0, np.nan, 2.0])
        return super().reward(action)


@pytest.mark.parametrize("how", ["raises", "returns NaN"])
@pytest.mark.parametrize("kind", ["dummy", "workers"])
def test_a_recorded_failure_happens_again(
    how: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fns = [partial(GoalsEnv, K, 4), partial(Late, how)]
    if kind == "dummy":
        envs: Any = DummyVecEnv(fns, record_failures=tmp_path)
    else:
        envs = SubprocVecEnv(fns, in_series=2, context="forkserver", record_failures=tmp_path)
    with envs:
        envs.reset(seed=0)
        for _ in range(5):
            envs.step([1, 2])
        if how == "raises":
            with pytest.raises(EnvError, match="too late"):
                envs.step([1, 2])
        else:
            assert np.isnan(envs.step([1, 2])[1]).tolist()[1] == [False, True, False]
    (file,) = tmp_path.iterdir()
    assert main(["replay", str(file)]) == 0
    assert "too late" in (text := capsys.readouterr().out) or "NaN" in text


class Unsteady(GoalsEnv):
    """Returns other rewards when its steps are repeated."""

    def __init__(self, folder: str, length: int = 50) -> None:
        super().__init__(K, length)
        self.folder = folder

    def reward(self, action: Any) -> Any:
        mark = Path(self.folder, f"{self.count}")
        if self.count == 3 and mark.exists():
            return np.array([1.0, 2.0, 3.5])
        mark.touch()
        return np.array([1.0, 2.0, 3.0])


def test_a_replay_that_diverges_shows_both_vectors(tmp_path: Path, caplog: Any) -> None:
    fns = [partial(Unsteady, str(tmp_path))]
    with SubprocVecEnv(fns, context="forkserver", on_worker_failure="resume") as envs:
        envs.reset(seed=0)
        for _ in range(6):
            envs.step([1])
        kill(envs, 0)
        *_, infos = envs.step([1])
    if "worker_restarted" in infos[0]:  # the states had been saved before the third step
        assert "the reward of environment 0 was [1. 2. 3.] and is [1.  2.  3.5]" in caplog.text


def test_the_environment_that_is_running_is_known() -> None:
    array = np.zeros((3, 2))
    rewards = rewards_of(array)
    rewards.target[:] = rewards.unstepped
    assert first_unstepped(array) == 0
    rewards.target[0] = np.array([np.nan, 1.0])
    assert first_unstepped(array) == 1
    rewards.target[1] = rewards.target[2] = np.ones(2, np.float32)
    assert first_unstepped(array) is None


class Dying(GoalsEnv):
    def __init__(self, dies_in: int) -> None:
        super().__init__(K)
        self.dies_in = dies_in

    def reward(self, action: Any) -> Any:
        if self.count == self.dies_in:
            os._exit(3)
        return super().reward(action)


def test_a_lost_worker_names_the_environment_that_was_running() -> None:
    fns = [partial(Dying, 9), partial(Dying, 2), partial(Dying, 9)]
    with SubprocVecEnv(fns, in_series=3, context="forkserver") as envs:
        envs.reset()
        envs.step([0, 0, 0])
        with pytest.raises(WorkerDiedError) as raised:
            envs.step([0, 0, 0])
        assert raised.value.env_index == 1
