"""What only shows in the long run: ``make test-long``."""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from xuance_envs import DummyVecEnv_Gym, Gym_Env, SubprocVecEnv_Gym, VecEnv

pytestmark = pytest.mark.long

CARTPOLES = [lambda: Gym_Env("CartPole-v1")] * 4


def held() -> tuple[int, int, int]:
    """Descriptors, threads and child processes of this process."""
    descriptors = len(os.listdir("/proc/self/fd"))
    return descriptors, threading.active_count(), len(multiprocessing.active_children())


def assert_no_more_than(before: tuple[int, int, int]) -> None:
    """Less is right: what earlier tests left to the garbage collector goes meanwhile."""
    now = held()
    assert all(map(operator.le, now, before)), f"{now}, before {before}"


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
def test_nothing_is_left_behind_by_200_of_them(context: str) -> None:
    for turn in range(200):
        with SubprocVecEnv_Gym(CARTPOLES, context=context, caller_steps=bool(turn % 2)) as envs:
            envs.reset()
            envs.step([0] * 4)
        if turn == 4:
            before = held()
    assert_no_more_than(before)


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
def test_nothing_is_left_behind_by_100_restarts(context: str) -> None:
    options = {"context": context, "on_worker_failure": "restart", "max_restarts": None}
    with SubprocVecEnv_Gym(CARTPOLES, in_series=2, **options) as envs:
        envs.reset()
        for turn in range(105):
            os.kill(envs.pids[turn % 2], signal.SIGKILL)
            envs.step([0] * 4)
            if turn == 4:
                before, memory = held(), resident_mib(os.getpid())
        assert_no_more_than(before)
        assert resident_mib(os.getpid()) < memory + 2


@pytest.mark.parametrize("kind", [DummyVecEnv_Gym, SubprocVecEnv_Gym])
def test_memory_stays_as_it_is_over_a_million_steps(kind: type) -> None:
    rng = np.random.default_rng(0)
    with kind([lambda: Gym_Env("CartPole-v1")] * 64) as envs:
        envs.reset(seed=0)
        pids = {os.getpid(), *getattr(envs, "pids", ())}
        for step in range(1_000_000 // 64):
            infos = envs.step(rng.integers(0, 2, 64))[4]
            infos[step % 64]
            if step == 3_000:
                before = {pid: resident_mib(pid) for pid in pids}
        assert all(resident_mib(pid) < before[pid] + 2 for pid in pids)


def test_the_same_trajectory_for_a_hundred_thousand_steps() -> None:
    def trajectory(envs: VecEnv) -> np.ndarray:
        rng = np.random.default_rng(5)
        with envs:
            envs.reset(seed=9)
            return np.array([envs.step(rng.integers(0, 2, 4))[0] for _ in range(25_000)])

    expected = trajectory(DummyVecEnv_Gym(CARTPOLES))
    for options in ({}, {"caller_steps": True}, {"in_series": 3}):
        assert (trajectory(SubprocVecEnv_Gym(CARTPOLES, **options)) == expected).all()
