"""Closing by another thread, or by a signal handler, while a call waits for environments."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from leftovers import wait_until

from xuance_envs import DummyVecEnv, SubprocVecEnv, ThreadVecEnv
from xuance_envs.errors import ClosedVecEnvError

SECONDS = 0.5  # that a command of an environment takes
RELEASED = threading.Event()  # ends a step that hangs in a thread of this process


class Slow(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(100)
    was_reset = closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.was_reset:
            self.wait()
        self.was_reset = True
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if action == 99:
            RELEASED.wait(60)
        time.sleep(SECONDS)
        assert not self.closed
        return np.ones(1, np.float32), 1.0, False, False, {}

    def wait(self) -> int:
        time.sleep(SECONDS)
        return 5

    def close(self) -> None:
        self.closed = True


class Awaited(Slow):
    async def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
        return super().reset(**arguments)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(SECONDS if action < 99 else 60)
        return np.ones(1, np.float32), 1.0, False, False, {}


KINDS = {
    "dummy": partial(DummyVecEnv, [Slow] * 2),
    "processes": partial(SubprocVecEnv, [Slow] * 2, in_series=1),
    "common step": partial(SubprocVecEnv, [Slow] * 8, in_series=1),
    "restarts": partial(SubprocVecEnv, [Slow] * 2, in_series=1, on_worker_failure="restart"),
    "caller steps": partial(SubprocVecEnv, [Slow] * 2, in_series=1, caller_steps=True),
    "threads": partial(ThreadVecEnv, [Slow] * 2),
    "coroutines": partial(ThreadVecEnv, [Awaited] * 2),
    "coroutines here": partial(DummyVecEnv, [Awaited] * 2),
}
all_kinds = pytest.mark.parametrize("kind", KINDS)


CALLS = {
    "step": lambda envs: envs.step([0] * envs.num_envs)[1],
    "recv": lambda envs: envs.recv(min_envs=envs.num_envs).rewards,
    "reset": lambda envs: envs.reset()[0][:, 0] + 1,
    "call": lambda envs: np.array(envs.call("wait")) - 4,
}
all_calls = pytest.mark.parametrize("call", CALLS)


def make(kind: str, call: str = "step") -> Any:
    envs = KINDS[kind]()
    envs.reset()
    if call == "recv":
        envs.send([0] * envs.num_envs, range(envs.num_envs))
    return envs


def wait_for_call(envs: Any) -> None:
    while True not in envs._groups.users.values():
        time.sleep(0.001)
    time.sleep(SECONDS / 10)  # until it waits for the environments


def our_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("xuance_envs")]


def assert_nothing_is_left() -> None:
    assert not multiprocessing.active_children()
    assert not our_threads()


@all_kinds
@all_calls
def test_another_thread_waits_for_the_call(kind: str, call: str) -> None:
    envs = make(kind, call)
    results: list[Any] = []
    user = threading.Thread(target=lambda: results.append(CALLS[call](envs)))
    user.start()
    wait_for_call(envs)
    envs.close()
    user.join(10)
    assert results[0].tolist() == [1.0] * envs.num_envs
    with pytest.raises(ClosedVecEnvError, match="is closed"):
        envs.reset()
    assert_nothing_is_left()


@all_kinds
@all_calls
def test_a_signal_handler_ends_the_call(kind: str, call: str) -> None:
    envs = make(kind, call)
    opened: list[int] = []

    def close(*_: object) -> None:
        envs.close()
        opened.extend(os.open(__file__, os.O_RDONLY) for _ in range(40))

    def send_signal() -> None:
        wait_for_call(envs)
        os.kill(os.getpid(), signal.SIGALRM)

    previous = signal.signal(signal.SIGALRM, close)
    sender = threading.Thread(target=send_signal)
    try:
        sender.start()
        with pytest.raises(ClosedVecEnvError, match="closed during this call"):
            CALLS[call](envs)
    finally:
        sender.join()
        signal.signal(signal.SIGALRM, previous)
        read = [os.lseek(fd, 0, os.SEEK_CUR) for fd in opened]
        for fd in opened:
            os.close(fd)
    assert not any(read)
    assert_nothing_is_left()


def test_a_signal_handler_ends_a_call_that_the_event_loop_has_not_begun() -> None:
    envs = make("coroutines here")
    envs._groups._group.loop.post(partial(time.sleep, 2 * SECONDS))
    previous = signal.signal(signal.SIGALRM, lambda *_: envs.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS / 5)
        with pytest.raises(ClosedVecEnvError, match="closed during this call"):
            envs.step([0, 0])
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert_nothing_is_left()


HERE = "dummy", "caller steps", "coroutines here"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in HERE])
def test_a_call_that_hangs_ends_with_an_error(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    envs = make(kind)
    errors: list[BaseException] = []

    def use() -> None:
        try:
            envs.step([0] * (envs.num_envs - 1) + [99])
        except BaseException as error:
            errors.append(error)

    user = threading.Thread(target=use)
    user.start()
    wait_for_call(envs)
    envs._groups.close(2 * SECONDS)
    user.join(10)
    assert [type(error) for error in errors] == [ClosedVecEnvError]
    assert "restart" not in caplog.text
    RELEASED.set()
    assert wait_until(lambda: not our_threads())
    RELEASED.clear()
    assert not multiprocessing.active_children()
