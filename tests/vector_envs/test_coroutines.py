"""Environments whose methods are coroutines, in every backend."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from agents_envs import Squad
from backends import Maker
from comparing import assert_same
from coroutine_envs import (
    AsyncAgents,
    Awaitables,
    BlockingEnv,
    Coroutines,
    HalfAsync,
    HandsThrough,
    RaisingEnv,
    WaitingEnv,
)
from example_envs import TalliedEnv
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from interrupts import interrupt_after

from xuance_envs import (
    DummyVecEnv,
    EnvError,
    NormalizeObservations,
    StateError,
    SubprocVecEnv,
    ThreadVecEnv,
    WorkerTimeoutError,
    WrongProcessError,
    autotune,
    check_saving,
    make_multi_agent_vec,
)
from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv
from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv

WAIT = 0.05


def our_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("xuance_envs-")]


@pytest.fixture(autouse=True)
def no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    # A collection takes as long as ten tests. Forgotten vector environments need one, and so do
    # coroutines that nobody awaits, while the test's filter of warnings is there.
    if our_threads() or request.node.get_closest_marker("filterwarnings"):
        gc.collect()
    deadline = time.monotonic() + 20
    while our_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert our_threads() == []


def seconds_of(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# --- results ------------------------------------------------------------------------------------


def test_they_go_as_their_environments_do(make: Maker) -> None:
    plain = [partial(TalliedEnv, name) for name in range(5)]
    coroutines = [partial(lambda name: Coroutines(TalliedEnv(name)), name) for name in range(5)]
    with DummyVecEnv(plain) as expected:
        envs = make(coroutines)
        assert_same(envs.reset(seed=3), expected.reset(seed=3))
        for k in range(30):
            actions = [(k + i) % 3 for i in range(5)]
            for got, right in zip(envs.step(actions), expected.step(actions), strict=True):
                assert_same(list(got), list(right))
        assert_same(envs.reset(seed=1, env_ids=[1, 4]), expected.reset(seed=1, env_ids=[1, 4]))
        assert_same(envs.step([0] * 5)[0], expected.step([0] * 5)[0])


def test_an_observation_is_kept_though_the_reset_writes_to_it(make: Maker) -> None:
    envs = make([partial(WaitingEnv, 0.0, 3)] * 2)
    envs.reset(seed=0)
    for _ in range(3):
        obs, _, terminated, _, infos = envs.step([1, 2])
    assert terminated.all()
    assert (obs > 3).all()
    assert (infos[0]["reset_obs"] < 1).all()
    assert infos[1] == infos[1] | {"steps": 3, "text": "ä", "reset_info": {"steps": 0}}


class Flagged(WaitingEnv):
    """An environment whose ``terminated`` is a list of one flag."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        obs, reward, terminated, *rest = await super().step(action)
        return obs, reward, [terminated], *rest


def test_an_episode_ends_at_its_flag_whatever_holds_it(make: Maker) -> None:
    envs = make([partial(Flagged, length=3)] * 2)
    envs.reset(seed=0)
    counts = []
    for _ in range(4):
        *_, terminated, _, infos = envs.step([0, 0])
        counts.append((infos[1]["steps"], terminated[1].item()))
    assert counts == [(1, False), (2, False), (3, True), (1, False)]


@pytest.mark.parametrize("mode", ["Disabled", "NextStep", "SameStep"])
def test_gymnasium_s_modes_of_autoreset(mode: str) -> None:
    def trajectory(kind: Callable[..., Any], wrap: Callable[[Any], Any]) -> list[Any]:
        envs = kind([lambda: wrap(TalliedEnv(1)), lambda: wrap(TalliedEnv(2))], autoreset_mode=mode)
        try:
            seen = [envs.reset(seed=2)]
            for k in range(20):
                seen.append(envs.step(np.array([k % 2, 1])))
                over = seen[-1][2] | seen[-1][3]
                if mode == "Disabled" and over.any():
                    seen.append(envs.reset(options={"reset_mask": over}))
            return seen
        finally:
            envs.close()

    expected = trajectory(SyncVectorEnv, lambda env: env)
    for kind in (SyncVectorEnv, AsyncVectorEnv, partial(AsyncVectorEnv, context="thread")):
        assert_same(trajectory(kind, Coroutines), expected)


# --- together -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv, partial(SubprocVecEnv, num_workers=1)])
def test_a_group_is_awaited_together(kind: Any) -> None:
    with kind([partial(WaitingEnv, WAIT)] * 40) as envs:
        assert seconds_of(lambda: envs.reset(seed=0)) < 30 * WAIT
        assert seconds_of(lambda: envs.step([0] * 40)) < 30 * WAIT
        assert seconds_of(lambda: envs.call("double", 2)) < 30 * WAIT
        assert seconds_of(envs.render) < 30 * WAIT
        assert seconds_of(envs.close) < 30 * WAIT


def test_threads_have_one_for_all_of_them() -> None:
    with ThreadVecEnv([partial(WaitingEnv, WAIT)] * 100) as envs:
        assert len(our_threads()) == 1
        assert envs.in_series == 1
        assert seconds_of(lambda: envs.reset(seed=0)) < 50 * WAIT
        assert seconds_of(lambda: envs.step([0] * 100)) < 50 * WAIT
        envs.render()
        envs.call("double", 1)
        assert {name for names in envs.get_attr("threads") for name in names} == set(our_threads())


def test_under_send_and_recv_each_answers_by_itself() -> None:
    with ThreadVecEnv([partial(WaitingEnv, WAIT)] * 8) as envs:
        envs.reset(seed=0)
        envs.send([40, *[0] * 7], range(8))
        first = envs.recv(min_envs=7)
        assert first.env_ids.tolist() == list(range(1, 8))
        envs.send([0], [3])
        assert envs.recv().env_ids.tolist() == [3]
        assert envs.recv().env_ids.tolist() == [0]


def test_in_series_makes_groups_of_them_too() -> None:
    with ThreadVecEnv([partial(WaitingEnv, WAIT)] * 6, in_series=3) as envs:
        assert len(our_threads()) == 1
        envs.reset(seed=0)
        envs.send([0] * 3, [0, 1, 2])
        assert envs.recv().env_ids.tolist() == [0, 1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="counts a thread's switches")
def test_the_main_thread_is_woken_once_in_a_step() -> None:
    import resource

    def switches() -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    with ThreadVecEnv([partial(WaitingEnv, 0.005)] * 80) as envs:
        envs.reset(seed=0)
        before = switches()
        envs.step(list(range(80)))
        assert switches() - before < 40


def test_an_error_is_raised_though_others_wait() -> None:
    fns = [partial(RaisingEnv, ValueError("own")), partial(WaitingEnv, WAIT)]
    with ThreadVecEnv(fns) as envs:
        envs.reset(seed=0)
        began = time.perf_counter()
        with pytest.raises(EnvError, match="own"):
            envs.step([1, 99])
        assert time.perf_counter() - began < 80 * WAIT


@pytest.mark.parametrize("first_is_async", [True, False])
def test_beside_ordinary_environments_each_kind_has_its_own_groups(first_is_async: bool) -> None:
    found: list[threading.Thread] = []

    def ordinary(name: int) -> Any:
        found.append(threading.current_thread())
        return TalliedEnv(name)

    kinds = [(k % 2 == 0) == first_is_async for k in range(6)]
    fns = [
        partial(lambda k: Coroutines(TalliedEnv(k)), k) if kind else partial(ordinary, k)
        for k, kind in enumerate(kinds)
    ]
    with (
        ThreadVecEnv(fns, in_series=1) as envs,
        DummyVecEnv([partial(TalliedEnv, k) for k in range(6)]) as each,
    ):
        end = time.monotonic() + 20  # threads whose groups have moved end by themselves
        while len(our_threads()) > 4 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(our_threads()) == 4
        assert_same(envs.reset(seed=4), each.reset(seed=4))
        for k in range(20):
            for got, right in zip(envs.step([k % 2] * 6), each.step([k % 2] * 6), strict=True):
                assert_same(list(got), list(right))


def test_a_group_of_both_kinds(make: Maker) -> None:
    both = [partial(lambda k: Coroutines(TalliedEnv(k)), 0), partial(TalliedEnv, 1)] * 2
    with DummyVecEnv([partial(TalliedEnv, k % 2) for k in range(4)]) as expected:
        envs = make(both)
        assert_same(envs.reset(seed=4), expected.reset(seed=4))
        for k in range(20):
            for got, right in zip(envs.step([k % 2] * 4), expected.step([k % 2] * 4), strict=True):
                assert_same(list(got), list(right))
        if type(envs).__name__ != "RemoteVecEnv":
            assert envs.get_attr("name") == expected.get_attr("name")


# --- other methods ------------------------------------------------------------------------------


def test_coroutines_are_awaited_in_calls(make_local: Maker) -> None:
    envs = make_local([WaitingEnv] * 3)
    envs.reset(seed=0)
    assert envs.call("double", 4) == (8, 8, 8)
    assert [frame.max() for frame in envs.render()] == [0, 0, 0]
    with pytest.raises(EnvError, match="KeyError") as caught:
        envs.call("fail", env_ids=[2])
    assert (caught.value.env_index, caught.value.command) == (2, "call")
    assert envs.call("double", 4, env_ids=[1]) == (8,)


@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv])
def test_close_is_awaited(kind: Any) -> None:
    made: list[WaitingEnv] = []

    def make() -> Any:
        made.append(WaitingEnv())
        return made[-1]

    kind([make] * 3).close()
    assert [env.closed for env in made] == [True] * 3


def test_close_of_those_that_were_made_before_an_error() -> None:
    made: list[WaitingEnv] = []

    def make() -> Any:
        if len(made) == 2:
            raise ValueError("no third")
        made.append(WaitingEnv())
        return made[-1]

    for kind in (DummyVecEnv, ThreadVecEnv):
        made.clear()
        with pytest.raises(EnvError, match="no third"):
            kind([make] * 3)
        assert [env.closed for env in made] == [True] * 2


def test_states(make: Maker) -> None:
    envs = make([partial(WaitingEnv, 0.0, 4)] * 3)
    envs.reset(seed=0)
    envs.step([1, 2, 3])
    saved = envs.save_state()
    expected = [envs.step([k] * 3)[0] for k in range(9)]
    envs.load_state(saved)
    assert_same([envs.step([k] * 3)[0] for k in range(9)], expected)
    envs.clone_state(0, [1, 2])
    obs = envs.step([1] * 3)[0]
    assert (obs == obs[0]).all()


@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv, SubprocVecEnv])
def test_states_are_verified(kind: Any) -> None:
    with kind([partial(WaitingEnv, 0.0, 4)] * 2) as envs:
        envs.reset(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            envs.save_state(verify=True)
    assert check_saving(partial(WaitingEnv, 0.0, 4), steps=20) == []


def test_what_a_coroutine_holds_is_refused_as_a_state() -> None:
    class Holding(WaitingEnv):
        async def step(self, action: Any) -> Any:
            import asyncio

            self.future = asyncio.get_running_loop().create_future()
            return await super().step(action)

    with ThreadVecEnv([Holding]) as envs:
        envs.reset(seed=0)
        envs.step([0])
        with pytest.raises(StateError, match="future"):
            envs.save_state()


@pytest.mark.parametrize("mode", ["restart", "resume"])
def test_workers_are_restarted_and_resumed(mode: Any) -> None:
    make = partial(SubprocVecEnv, [partial(WaitingEnv, 0.0, 5)] * 2, num_workers=1)
    with make() as expected, make(on_worker_failure=mode) as envs:
        for each in (expected, envs):
            each.reset(seed=0)
        for k in range(40):
            if k == 20:
                os.kill(envs.pids[0], signal.SIGKILL)
            right, got = expected.step([k] * 2), envs.step([k] * 2)
            if mode == "resume":
                assert_same(got[:4], right[:4])
        assert (mode == "resume") == bool((got[0] == right[0]).all())


def test_agents_and_transforms() -> None:
    mpe2 = pytest.importorskip("mpe2.simple_spread_v3")
    fns = [lambda: AsyncAgents(mpe2.parallel_env())] * 3
    with make_multi_agent_vec("mpe2:simple_spread_v3", 3, backend="dummy") as expected:
        for backend in ("dummy", "thread"):
            with MultiAgentVecEnv(fns, backend=backend) as envs:
                np.testing.assert_array_equal(envs.reset(seed=1).obs, expected.reset(seed=1).obs)
                actions = np.ones((3, 3), int)
                for _ in range(30):
                    got, right = envs.step(actions), expected.step(actions)
                    np.testing.assert_array_equal(got.obs, right.obs)
    with NormalizeObservations(ThreadVecEnv([partial(WaitingEnv, 0.0, 3)] * 4)) as transformed:
        transformed.reset(seed=0)
        for _ in range(10):
            assert np.isfinite(transformed.step([1] * 4)[0]).all()


def test_xuance_s_agents() -> None:
    class Async(Squad):
        async def reset(self) -> Any:
            return super().reset()

        async def step(self, actions: Any) -> Any:  # type: ignore[override]
            return super().step(actions)

    with (
        MultiAgentVecEnv([partial(Squad, 3)] * 2, backend="dummy") as expected,
        MultiAgentVecEnv([partial(Async, 3)] * 2, backend="thread") as envs,
    ):
        assert_same(envs.reset().obs, expected.reset().obs)
        for k in range(20):
            actions = [{f"red_{i}": k % 2 for i in range(3)}] * 2
            got, right = envs.step(actions), expected.step(actions)
            assert_same([got.obs, got.rewards, got.acted], [right.obs, right.rewards, right.acted])


def test_they_are_timed_as_long_as_they_wait() -> None:
    for kind in (DummyVecEnv, ThreadVecEnv):
        with kind([partial(WaitingEnv, WAIT)] * 2) as envs:
            envs.reset(seed=0)
            envs.step([0, 0])
            assert all(each.p50 >= WAIT for each in envs.statistics())
    tuned = autotune(partial(WaitingEnv, WAIT / 50), 16, allow_threads=True)  # times the action
    assert tuned.choice.backend == "thread"


@pytest.mark.parametrize("kind", [DummyVecEnv, partial(ThreadVecEnv, num_workers=1)])
def test_the_slowest_is_the_one_that_waits_longest(kind: Any) -> None:
    """A group waits for its first environment first, and then less for the others."""
    with kind([partial(WaitingEnv, seconds) for seconds in (0.2, 0.3)]) as envs:
        envs.reset(seed=0)
        envs.step([0, 0])
        (worker,) = envs.statistics()
    assert worker.slowest_env == 1
    assert worker.slowest_time >= 0.3


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("own"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_one_raises_is_an_error_with_its_index(
    make_local: Maker, error: BaseException
) -> None:
    envs = make_local([partial(RaisingEnv, error)] * 3)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=f"reason: |{type(error).__name__}") as caught:
        envs.step([0, 1, 0])
    assert (caught.value.env_index, caught.value.command) == (1, "step")
    assert caught.value.reason.startswith(type(error).__name__)
    assert "coroutine_envs.py" in caught.value.env_traceback
    assert envs.closed


def test_a_half_of_one_is_refused_by_name(make_local: Maker) -> None:
    with pytest.raises(EnvError, match=r"step of HalfAsync is 'async def', and reset of .* is not"):
        make_local([WaitingEnv, HalfAsync])


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv])
def test_a_wrapper_that_reads_the_result_is_named(kind: Any) -> None:
    class ReadsReset(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            return self.env.reset(**kwargs), {}

    with kind([lambda: TimeLimit(WaitingEnv(), 5)] * 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvError, match="TimeLimit uses the result of step without awaiting"):
            envs.step([0, 0])
    with (
        kind([lambda: ReadsReset(WaitingEnv())]) as envs,
        pytest.raises(EnvError, match="ReadsReset uses the result of reset without awaiting"),
    ):
        envs.reset()


def test_wrappers_that_hand_results_through_are_fine(make_local: Maker) -> None:
    envs = make_local([lambda: HandsThrough(OrderEnforcing(WaitingEnv()))] * 2)
    envs.reset(seed=0)
    envs.step([0, 0])
    assert envs.get_attr("steps") == (1, 1)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_awaitables_of_methods_that_do_not_say_so_are_explained() -> None:
    with (
        DummyVecEnv([Awaitables]) as envs,
        pytest.raises(EnvError, match="declare reset and step as 'async def'"),
    ):
        envs.reset()


def test_a_timeout_cancels_a_coroutine_and_names_it() -> None:
    made: list[WaitingEnv] = []

    def make() -> Any:
        made.append(WaitingEnv(WAIT))
        return made[-1]

    with ThreadVecEnv([make] * 3, step_timeout=0.5) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerTimeoutError, match="The coroutine was cancelled") as caught:
            envs.step([0, 99, 0])
        assert caught.value.env_indices == (1,)
        assert caught.value.env_index == 1
        assert "in wait" in str(caught.value)
        assert envs.closed
    assert [env.cancelled for env in made] == [False, True, False]


def test_a_coroutine_that_blocks_its_thread_is_named() -> None:
    with ThreadVecEnv([BlockingEnv] * 3, step_timeout=0.5) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerTimeoutError, match=r"time\.sleep"):
            envs.step([0, 1, 0])


def test_a_timeout_of_a_worker_names_the_coroutine() -> None:
    with SubprocVecEnv([partial(WaitingEnv, WAIT)] * 3, num_workers=1, step_timeout=1.0) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerTimeoutError) as caught:
            envs.step([0, 99, 0])
        assert caught.value.env_index == 1


# --- interrupts and forks -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv])
def test_an_interrupt_repeats_nothing(kind: Any) -> None:
    with kind([partial(WaitingEnv, 0.3)] * 3) as envs:
        envs.reset(seed=0)
        main = threading.main_thread().ident
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 1, 0])
        timer.join()
        assert envs.waiting
        envs.step_wait()
        assert envs.get_attr("steps") == (1, 1, 1)


@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv])
def test_an_interrupted_reset_is_cancelled(kind: Any) -> None:
    with kind([partial(WaitingEnv, 0.5)] * 2) as envs:
        main = threading.main_thread().ident
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            envs.reset(seed=0)
        timer.join()
        obs, _ = envs.reset(seed=0)
        with DummyVecEnv([WaitingEnv] * 2) as others:
            assert_same(obs, others.reset(seed=0)[0])


class Late(WaitingEnv):
    """An environment with a method that changes it at its end."""

    async def finish_late(self) -> None:
        await asyncio.sleep(6 * WAIT)
        self.steps = 50


def test_an_interrupted_call_is_cancelled_before_the_next_step() -> None:
    with DummyVecEnv([Late] * 2) as envs:
        envs.reset(seed=0)
        with pytest.raises(KeyboardInterrupt), interrupt_after(WAIT):
            envs.call("finish_late")
        envs.step([0, 0])
        time.sleep(7 * WAIT)
        assert envs.get_attr("steps") == (1, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv])
def test_a_forked_child_gets_an_error(kind: Any) -> None:
    with kind([WaitingEnv] * 2) as envs:
        envs.reset(seed=0)
        child = os.fork()
        if child == 0:
            try:
                envs.step([0, 0])
            except WrongProcessError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        envs.step([0, 0])


@pytest.mark.parametrize("kind", [DummyVecEnv, ThreadVecEnv])
def test_a_forgotten_one_ends_its_loop(kind: Any) -> None:
    envs = kind([WaitingEnv] * 2)
    envs.reset(seed=0)
    del envs
    gc.collect()  # the fixture checks that no thread is left


def test_a_task_in_the_background_runs_between_steps() -> None:
    class Beating(WaitingEnv):
        beats = 0

        async def reset(self, **kwargs: Any) -> Any:
            import asyncio

            self.task = asyncio.create_task(self.beat())
            return await super().reset(**kwargs)

        async def beat(self) -> None:
            import asyncio

            while True:
                self.beats += 1
                await asyncio.sleep(0.01)

    for kind in (DummyVecEnv, ThreadVecEnv):
        with kind([Beating]) as envs:
            envs.reset()
            deadline = time.monotonic() + 10
            while envs.get_attr("beats")[0] < 5 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert envs.get_attr("beats")[0] >= 5
