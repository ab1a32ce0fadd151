"""Concurrent sessions: each reply belongs to the session of its request."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from remote_envs import cart_pole
from serving import ServedProcess

from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

SESSIONS, ENVS = 20, 8


def step_and_compare(url: str, number: int, until: float, counts: list[int]) -> None:
    """Compare a session's steps with those of local environments; its number is the seed."""
    rng = np.random.default_rng(number)
    here = DummyVecEnv([cart_pole] * ENVS)
    with RemoteVecEnv(url, "CartPole-v1", ENVS, user_token=f"token-{number % 5}") as there:
        assert_same(there.reset(seed=1000 * number)[0], here.reset(seed=1000 * number)[0])
        while time.monotonic() < until or counts[number] < 20:
            actions = rng.integers(2, size=ENVS)
            got, expected = there.step(actions), here.step(actions)
            assert_same(got[:4], expected[:4])
            assert_same(list(got[4]), list(expected[4]))
            counts[number] += 1
    here.close()


def run_all(seconds: float) -> list[int]:
    """Number of vector steps of each session."""
    tokens = ",".join(f"token-{k}" for k in range(5))
    served = ServedProcess("--env", "CartPole-v1", "--no-access-log", XUANCE_ENVS_TOKENS=tokens)
    counts, failures = [0] * SESSIONS, []

    def act(number: int, until: float) -> None:
        try:
            step_and_compare(served.url, number, until, counts)
        except BaseException as error:
            failures.append(error)

    until = time.monotonic() + seconds
    threads: list[Any] = [
        threading.Thread(target=act, args=(number, until)) for number in range(SESSIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served.close()
    assert failures == []
    return counts


def test_every_answer_belongs_to_its_session() -> None:
    assert min(run_all(1.0)) >= 20


@pytest.mark.long
def test_every_answer_belongs_to_its_session_for_a_minute() -> None:
    assert min(run_all(60.0)) >= 20
