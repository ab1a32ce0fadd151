"""Environments in threads: what the contract suite does not cover."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from coroutine_envs import WaitingEnv
from gymnasium import spaces
from interrupted_steps import ENV_FNS, Interrupted, assert_nothing_is_lost

from xuance_envs import (
    DummyVecEnv,
    EnvError,
    Gym_Env,
    SubprocVecEnv,
    ThreadVecEnv,
    VecEnvError,
    WorkerTimeoutError,
    autotune,
    make_multi_agent_vec,
    make_vec,
    tuning,
    tuning_estimates,
)
from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv
from xuance_envs.engine.cpus import available_cpus, gil_is_enabled
from xuance_envs.engine.thread import thread_backend, thread_driver
from xuance_envs.vector_envs import thread_vec_env


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def our_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("xuance_envs-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    if our_threads():
        gc.collect()  # forgotten vector environments; a collection takes as long as ten tests
    for each in our_threads():
        each.join(20)
    assert not our_threads()


class Named(gymnasium.Env[Any, Any]):
    """An environment that records the thread of each call."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    render_mode: str | None = "rgb_array"

    def __init__(self, threads: list[list[threading.Thread]]) -> None:
        self.threads: list[threading.Thread] = []
        threads.append(self.threads)
        self.note()

    def note(self) -> None:
        self.threads.append(threading.current_thread())

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.note()
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.note()
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def render(self) -> Any:
        self.note()
        return np.zeros((2, 2, 3), np.uint8)

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("copied")

    def close(self) -> None:
        self.note()


def test_an_environment_never_leaves_its_thread() -> None:
    found: list[list[threading.Thread]] = []
    with ThreadVecEnv([partial(Named, found)] * 4, in_series=2) as envs:
        assert len(our_threads()) == 2
        envs.reset(seed=1)
        envs.step([0] * 4)
        envs.render()
        envs.call("note")
    assert [len(threads) for threads in found] == [6] * 4
    assert all(len(set(threads)) == 1 for threads in found)
    assert len({threads[0] for threads in found}) == 2
    assert threading.main_thread() not in {threads[0] for threads in found}


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, 6 if gil_is_enabled() else min(6, available_cpus())),
        ({"num_workers": 2}, 2),
        ({"envs_per_worker": 4}, 2),
        ({"in_series": 3}, 2),
    ],
)
def test_there_are_as_many_threads_as_asked_for(options: dict[str, Any], groups: int) -> None:
    with ThreadVecEnv([cartpole] * 6, **options):
        assert len(our_threads()) == groups


def test_the_limit_of_threads_makes_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_vec_env, "MAX_AUTO_THREADS", 3)
    monkeypatch.setattr(thread_vec_env, "gil_is_enabled", lambda: True)
    with ThreadVecEnv([cartpole] * 7) as envs:
        assert len(our_threads()) == 3
        assert envs.in_series == 3


@pytest.mark.skipif(sys.platform != "linux", reason="counts a thread's switches")
def test_the_main_thread_is_woken_once_in_a_step() -> None:
    import resource

    def switches() -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    with ThreadVecEnv([Waiting] * 80, in_series=1) as envs:
        envs.reset(seed=0)
        before = switches()
        envs.step([0] * 80)
        assert switches() - before < 40


@pytest.mark.parametrize("halves", [False, True], ids=["whole", "in halves"])
def test_an_interrupt_leaves_no_thread_asleep(
    monkeypatch: pytest.MonkeyPatch, halves: bool
) -> None:
    monkeypatch.setattr(thread_driver, "FIRST_WOKEN", 2)
    make = lambda: Interrupted(ThreadVecEnv(ENV_FNS, in_series=1), halves=halves)  # noqa: E731
    assert assert_nothing_is_lost(make, itertools.count(int(halves), 5)) >= 30


def test_the_caller_steps_a_share_and_nothing_differs() -> None:
    with (
        DummyVecEnv([cartpole] * 5) as dummy,
        ThreadVecEnv([cartpole] * 5, num_workers=2, caller_steps=True) as envs,
    ):
        assert len(our_threads()) == 2
        assert (dummy.reset(seed=4)[0] == envs.reset(seed=4)[0]).all()
        for step in range(60):
            expected, found = (each.step([step % 2] * 5) for each in (dummy, envs))
            for one, other in zip(expected[:4], found[:4], strict=True):
                np.testing.assert_array_equal(one, other)
            np.testing.assert_equal(list(found[4]), list(expected[4]))


def test_a_caller_that_steps_all_of_them_needs_no_thread() -> None:
    with ThreadVecEnv([cartpole] * 2, in_series=2, caller_steps=True) as envs:
        assert our_threads() == []
        envs.reset(seed=0)
        assert envs.step([0, 1])[1].tolist() == [1.0, 1.0]
        envs.send([0, 1], [0, 1])
        assert envs.recv().env_ids.tolist() == [0, 1]


@pytest.mark.parametrize("twins", [(0, 1), (1, 3)])
@pytest.mark.parametrize("kind", [cartpole, WaitingEnv])
def test_an_environment_of_two_threads_is_refused(kind: Any, twins: tuple[int, int]) -> None:
    env_fns, twin = [kind] * 4, kind()
    for i in twins:
        env_fns[i] = lambda: twin
    told = r"env_fns\[{}\] and env_fns\[{}\] returned the same object".format(*twins)
    with pytest.raises(ValueError, match=told):
        ThreadVecEnv(env_fns, in_series=1, caller_steps=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_worker_failure": "restart"}, "a thread cannot be killed and restarted"),
        ({"on_worker_failure": "resume"}, "a thread cannot be killed and restarted"),
        ({"worker_threads": 1}, "threads share the library threads|they share the library"),
    ],
)
def test_what_threads_cannot_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThreadVecEnv([cartpole], **options)
    with pytest.raises(ValueError, match=message):
        make_vec("CartPole-v1", 2, backend="thread", vector_kwargs=options)


def test_windows_are_refused() -> None:
    def human() -> Any:
        env = Named([])
        env.render_mode = "human"
        return env

    with pytest.raises(
        ValueError, match="environment 1: expected a render_mode other than 'human'"
    ):
        ThreadVecEnv([partial(Named, []), human])


def test_a_library_that_is_not_safe_is_named() -> None:
    drawing = partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    with pytest.warns(RuntimeWarning, match="environment 1 uses pygame, which is not safe"):
        ThreadVecEnv([cartpole, drawing]).close()


def test_legacy_gym_is_named() -> None:
    pytest.importorskip("gym")
    make = partial(Gym_Env, "CartPole-v1", library="gym")
    with pytest.warns(RuntimeWarning, match="environment 0 uses gym, which is not safe"):
        ThreadVecEnv([make] * 2).close()


class Raising(Named):
    def __init__(self, error: BaseException) -> None:
        super().__init__([])
        self.error = error

    def step(self, action: Any) -> Any:
        if action:
            raise self.error
        return super().step(action)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), ValueError()]
)
def test_whatever_an_environment_raises_is_an_error_with_its_index(error: BaseException) -> None:
    with ThreadVecEnv([partial(Raising, error)] * 3) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=type(error).__name__) as caught:
            envs.step([0, 1, 0])
        assert caught.value.env_index == 1


class Hanging(Named):
    released = threading.Event()

    def step(self, action: Any) -> Any:
        if action:
            self.hang()
        return super().step(action)

    def hang(self) -> None:
        self.released.wait(60)


@pytest.fixture
def released() -> Iterator[threading.Event]:
    Hanging.released.clear()
    yield Hanging.released
    Hanging.released.set()


def test_a_hang_is_noticed_and_closes(released: threading.Event) -> None:
    with ThreadVecEnv([partial(Hanging, [])] * 3, in_series=1, step_timeout=0.3) as envs:
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match="A thread cannot be killed") as caught:
            envs.step([0, 1, 0])
        assert caught.value.env_indices == (1,)
        assert "in hang" in str(caught.value)
        assert envs.closed
        (left,) = our_threads()
    with ThreadVecEnv([partial(Named, [])] * 3) as others:  # not disturbed by the late result
        observations, _ = others.reset()
        released.set()
        left.join(20)
        others.step([0] * 3)
        assert (observations == 0).all()


def test_an_interrupt_does_not_wait_for_a_hang(released: threading.Event) -> None:
    with ThreadVecEnv([partial(Hanging, [])] * 2) as envs:
        envs.reset()
        main = threading.main_thread().ident
        timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 1])
        timer.join()
        assert envs.waiting
        released.set()
        assert envs.step_wait()[1].tolist() == [1.0, 1.0]


PROGRAM = """
import threading, gymnasium, numpy as np
from xuance_envs import ThreadVecEnv
class Hanging(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        threading.Event().wait()
envs = ThreadVecEnv([Hanging] * 2, step_timeout=0.2)
envs.reset()
try:
    envs.step([0, 0])
except Exception as error:
    print(type(error).__name__)
"""


def test_a_program_ends_though_a_thread_hangs() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, "WorkerTimeoutError\n"), result.stderr


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.long)])
def test_many_threads_come_and_go(rounds: int) -> None:
    for _ in range(rounds):
        with ThreadVecEnv([partial(Named, [])] * 256, in_series=1) as envs:
            assert len(our_threads()) == 256
            envs.reset()
            envs.step([0] * 256)
        assert not our_threads()


def test_a_forgotten_one_ends_its_threads() -> None:
    found: list[list[threading.Thread]] = []
    envs = ThreadVecEnv([partial(Named, found)] * 2)
    envs.reset()
    del envs
    gc.collect()
    for each in our_threads():
        each.join(20)
    assert not our_threads()
    assert [len(threads) for threads in found] == [3, 3]  # made, reset, closed


@pytest.mark.parametrize(
    "kind",
    [
        DummyVecEnv,
        partial(ThreadVecEnv, in_series=1),
        partial(SubprocVecEnv, context="forkserver", num_workers=2),
    ],
)
def test_two_in_two_threads_go_as_alone(kind: Any) -> None:
    def trajectory(seed: int, results: dict[int, Any]) -> None:
        with kind([cartpole] * 3) as envs:
            observations = [envs.reset(seed=seed)[0]]
            for k in range(100):
                obs, _, _, _, infos = envs.step([k % 2] * 3)
                observations += [obs, *(info["reset_obs"] for info in infos if info)]
                if k % 10 == 0:
                    envs.load_state(envs.save_state())
        results[seed] = np.concatenate([np.ravel(each) for each in observations])

    alone: dict[int, Any] = {}
    together: dict[int, Any] = {}
    for seed in range(2):
        trajectory(seed, alone)
    threads = [threading.Thread(target=trajectory, args=(seed, together)) for seed in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for seed in range(2):
        np.testing.assert_array_equal(alone[seed], together[seed])


@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv])
def test_two_threads_in_one_are_refused(kind: Any, released: threading.Event) -> None:
    with kind([partial(Hanging, [])] * 2) as envs:
        envs.reset()
        results: list[Any] = []
        user = threading.Thread(target=lambda: results.append(envs.step([0, 1])[1]))
        user.start()
        while not envs.waiting:
            time.sleep(0.01)
        step = partial(envs.step, [0, 0])
        for use in (step, envs.step_wait, envs.reset, lambda: envs.recv()):
            refused = pytest.raises(VecEnvError, match="another thread is using this")
            with refused:
                use()
        released.set()
        user.join()
        assert results[0].tolist() == [1.0, 1.0]
        assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]


def test_a_fork_beside_threads_does_not_wait_for_them(released: threading.Event) -> None:
    with ThreadVecEnv([partial(Hanging, [])] * 2) as envs:
        envs.reset()
        envs.step_async([0, 1])
        child = os.fork()
        if child == 0:
            envs.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        released.set()
        envs.step_wait()


def test_gymnasium_s_class_takes_them() -> None:
    threads = AsyncVectorEnv([cartpole] * 3, context="thread", in_series=1)
    serial = SyncVectorEnv([cartpole] * 3)
    try:
        assert len(our_threads()) == 3
        for one, other in [
            (threads.reset(seed=2), serial.reset(seed=2)),
            *((threads.step([0, 1, 0]), serial.step([0, 1, 0])) for _ in range(40)),
        ]:
            np.testing.assert_equal(one, other)
    finally:
        threads.close()
        serial.close()
    with pytest.raises(TypeError, match="pin_workers: cannot be combined with context='thread'"):
        AsyncVectorEnv([cartpole], context="thread", pin_workers=False)
    with pytest.raises(ValueError, match="restart_on_exception: expected False for threads"):
        AsyncVectorEnv([cartpole], context="thread", restart_on_exception=True)


def test_agents_act_in_threads() -> None:
    pytest.importorskip("mpe2")
    make = partial(make_multi_agent_vec, "mpe2:simple_spread_v3", 3, seed=5)
    with make(backend="thread") as envs, make(backend="dummy") as dummy:
        assert len(our_threads()) == 3
        np.testing.assert_array_equal(envs.reset().obs, dummy.reset().obs)
        actions = np.ones((3, 3), int)
        for _ in range(30):
            np.testing.assert_array_equal(envs.step(actions).obs, dummy.step(actions).obs)


class Waiting(Named):
    def __init__(self) -> None:
        super().__init__([])

    def step(self, action: Any) -> Any:
        time.sleep(0.02)
        return super().step(action)


def test_they_are_chosen_where_steps_wait_and_only_if_allowed() -> None:
    assert autotune(Waiting, 32, allow_threads=True).choice.backend == "thread"
    assert "thread" not in {each.backend for each in autotune(Waiting, 32).candidates}
    tuned = autotune(Waiting, 32, allow_threads=True, options={"max_restarts": 1})
    assert "thread" not in {each.backend for each in tuned.candidates}


def test_without_the_gil_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_estimates, "gil_is_enabled", lambda: False)
    monkeypatch.setattr(tuning, "available_cpus", lambda: 2)
    tuned = autotune(cartpole, 16, allow_threads=True)
    found = {each.name for each in tuned.candidates}
    assert {"thread", "thread, caller_steps", "subproc", "dummy"} <= found


def test_threads_spin_without_the_gil_and_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_backend, "gil_is_enabled", lambda: False)
    monkeypatch.setattr(thread_backend, "available_cpus", lambda: 8)
    with ThreadVecEnv([cartpole] * 2) as envs, SubprocVecEnv([cartpole] * 2) as workers:
        assert envs._groups.backend._wake_ups.spin
        assert (envs.reset(seed=1)[0] == workers.reset(seed=1)[0]).all()
        for _ in range(30):
            assert (envs.step([0, 1])[0] == workers.step([0, 1])[0]).all()


def test_threads_that_stepped_are_not_remembered() -> None:
    done = threading.Event()

    def use() -> None:
        envs.step([0])
        used.release()
        done.wait(20)

    used = threading.Semaphore(0)
    with DummyVecEnv([cartpole]) as envs:
        envs.reset(seed=0)
        threads = [threading.Thread(target=use) for _ in range(20)]
        for thread in threads:
            thread.start()
            assert used.acquire(timeout=20)
        done.set()
        for thread in threads:
            thread.join(20)
        assert len(envs._groups.users) <= 2
