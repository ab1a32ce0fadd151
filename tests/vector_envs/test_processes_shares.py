"""Worker processes: which environments each of them has."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest
from process_env import ProcessEnv

from xuance_envs import SubprocVecEnv
from xuance_envs.vector_envs import subproc_vec_env


@pytest.mark.parametrize(
    ("options", "workers", "largest"),
    [
        ({"in_series": 2}, 3, 2),
        ({"in_series": 2, "caller_steps": True}, 2, 2),
        ({"in_series": 9, "caller_steps": True}, 0, 5),
    ],
)
def test_how_many_workers_there_are_and_what_the_largest_share_is(
    options: dict[str, Any], workers: int, largest: int
) -> None:
    with SubprocVecEnv([ProcessEnv] * 5, context="forkserver", **options) as envs:
        assert len(envs.pids) == workers
    assert (envs.n_remotes, envs.in_series) == (workers, largest)


def test_caller_steps_keeps_the_last_share() -> None:
    with SubprocVecEnv(
        [ProcessEnv] * 5, in_series=2, caller_steps=True, context="forkserver"
    ) as envs:
        mine = [pid == os.getpid() for pid in envs.call("pid")]
    assert mine == [False, False, False, False, True]


def test_caller_steps_with_one_share_needs_no_worker() -> None:
    with SubprocVecEnv([ProcessEnv] * 2, in_series=2, caller_steps=True) as envs:
        assert envs.call("pid") == (os.getpid(),) * 2
        assert multiprocessing.active_children() == []
        envs.reset()
        assert envs.step([0, 0])[0].tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("workers", "cpus", "of", "spins"),
    [
        (1, 2, 2, True),
        (2, 2, 2, False),
        (4, 4, 4, True),
        (5, 4, 4, False),
        (15, 16, 16, True),
        (16, 16, 16, True),
        (16, 16, 64, False),
        (17, 16, 16, False),
    ],
    ids=str,
)
def test_the_caller_spins_where_that_takes_little_from_the_workers(
    monkeypatch, workers, cpus, of, spins
):
    monkeypatch.setattr(subproc_vec_env, "available_cpus", lambda: cpus)
    monkeypatch.setattr(subproc_vec_env, "affinity_cpus", lambda: of)
    assert subproc_vec_env._main_process_may_spin(workers) is spins
