"""Large observations in shared memory that a step returns without copying them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from holders import HOLDERS
from hypothesis import given, settings
from hypothesis import strategies as st
from image_envs import HANG, IMAGE, KILL, ImageEnv
from leftovers import is_running, wait_until

from xuance_envs import DummyVecEnv, SubprocVecEnv, WorkerDiedError, WorkerTimeoutError
from xuance_envs.engine.data import buffer_pool, output_buffers

pytestmark = pytest.mark.skipif(
    not buffer_pool.HAS_REFCOUNTS, reason="without the GIL, observations are copied"
)

DICT = spaces.Dict({"image": IMAGE, "speed": spaces.Box(0, 100, (3,), np.float32)})


def make(n: int = 4, space: Any = IMAGE, **options: Any) -> SubprocVecEnv:
    given: dict[str, Any] = {"in_series": 2, **options}
    envs = SubprocVecEnv([partial(ImageEnv, space)] * n, **given)
    envs.reset(seed=0)
    return envs


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not is_running(pid))


def step(envs: Any, action: int = 0) -> Any:
    return envs.step([action] * envs.num_envs)[0]


def lies_in_a_buffer(envs: SubprocVecEnv, array: Any) -> bool:
    outputs = envs._arrays.outputs
    return outputs is not None and any(
        np.shares_memory(array, part) for parts in outputs._parts for part in parts
    )


@pytest.mark.parametrize("options", [{}, {"caller_steps": True}, {"in_series": 1}])
def test_a_step_returns_shared_memory(options: Any) -> None:
    n = 10 if options.get("in_series") else 4
    with make(n, **options) as envs:
        before = None
        for number in range(1, 4):
            obs = step(envs, 3)
            assert lies_in_a_buffer(envs, obs)
            assert obs.flags.writeable
            assert obs.flags.c_contiguous
            assert (obs == 16 * number + 3).all()
            assert before is None or (before == 16 * number - 13).all()
            before = obs


def test_parts_of_a_dict_are_held_together() -> None:
    with make(space=DICT) as envs:
        held = [step(envs)["speed"] for _ in range(5)]
        assert [lies_in_a_buffer(envs, one) for one in held] == [True] * 3 + [False] * 2
        assert [one[0, 0] for one in held] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_buffer_is_used_again_only_if_nothing_refers_to_it(hold: Any) -> None:
    with make() as envs:
        held = []
        for number in range(1, 6):
            obs = step(envs, number)
            assert lies_in_a_buffer(envs, obs) == (number <= output_buffers.NUM_BUFFERS)
            held.append((hold(obs), 17 * number))
            del obs
        for one, value in held:
            assert (np.asarray(one) == value).all()
        held.clear()
        del one
        step(envs)
        assert lies_in_a_buffer(envs, step(envs))


def test_what_is_returned_may_be_overwritten_and_the_last_observations_stay() -> None:
    with make() as envs:
        for number in range(1, 4):
            obs = step(envs)
            obs[:] = 7
            if number == 2:
                state = envs.save_state([0])
        assert (envs.buf_obs == 48).all()
        assert (envs.load_state(state, [1])[0] == 32).all()
        assert (obs == 7).all()


def test_other_requests_leave_buffers_alone() -> None:
    with make() as envs:
        obs = step(envs, 1)
        envs.reset(env_ids=[0])
        envs.send([5, 5], [0, 1])
        envs.recv()
        envs.async_reset()
        envs.recv(4)
        envs.reset()
        assert (obs == 17).all()
        assert not lies_in_a_buffer(envs, envs.reset()[0])


def test_it_stays_valid_when_the_environments_are_gone() -> None:
    with make() as envs:
        obs = step(envs, 2)
    envs = make()
    other = step(envs, 3)
    assert lies_in_a_buffer(envs, other)
    del envs
    gc.collect()
    assert (obs == 18).all()
    assert (other == 19).all()
    obs[:] = 1
    assert (obs == 1).all()


def change_in_a_child(array: Any) -> tuple[int, int]:
    """Change the array in a forked process; return what it was there, and what it is here."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os.write(write, bytes([array[0, 0, 0, 0]]))
        array[:] = 200
        os._exit(0)
    os.waitpid(child, 0)
    was = os.read(read, 1)[0]
    os.close(read)
    os.close(write)
    return was, int(array[0, 0, 0, 0])


@pytest.mark.parametrize("closed", [False, True])
def test_a_fork_has_the_arrays_to_itself(closed: bool) -> None:
    with make() as envs:
        obs, later = step(envs, 1), step(envs, 1)
        if closed:
            envs.close()
        assert change_in_a_child(obs) == (17, 17)
        if not closed:
            for number in range(3, 9):
                assert not lies_in_a_buffer(envs, step(envs, number))
        assert (obs == 17).all()
        assert (later == 33).all()


def test_a_fork_during_a_step_leaves_its_result() -> None:
    with make() as envs:
        envs.step_async([1] * 4)
        context = multiprocessing.get_context("fork")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = context.Process(target=int)
            child.start()
        child.join()
        assert (envs.step_wait()[0] == 17).all()
        assert (step(envs, 2) == 34).all()


@pytest.mark.parametrize("action", [KILL, HANG])
def test_a_failed_worker_leaves_held_arrays(action: int) -> None:
    with make(step_timeout=2.0) as envs:
        held = [step(envs, 1) for _ in range(2)]
        with pytest.raises((WorkerDiedError, WorkerTimeoutError)):
            envs.step([0, 0, 0, action])
        assert [int(one.max()) for one in held] == [17, 33]


@pytest.mark.parametrize("mode", ["restart", "resume"])
def test_a_restart_keeps_what_a_step_returns(mode: Any) -> None:
    """The killed worker's environments return their last observations, or continue."""
    with make(on_worker_failure=mode) as envs:
        held = [step(envs, 1)]
        kill(envs.pids[0])
        held.append(step(envs, 2))
        assert held[1][:, 0, 0, 0].tolist() == [17 if mode == "restart" else 34] * 2 + [34] * 2
        held.append(step(envs, 3))
        assert held[2][:, 0, 0, 0].tolist() == [19 if mode == "restart" else 51] * 2 + [51] * 2
        assert held[0][:, 0, 0, 0].tolist() == [17] * 4
        assert lies_in_a_buffer(envs, held[2])


def test_a_worker_that_cannot_be_killed_detaches_the_buffers(monkeypatch: Any) -> None:
    with make(on_worker_failure="restart") as envs:
        obs = step(envs, 1)
        worker = envs._backend.workers[0].worker
        monkeypatch.setattr(
            worker.process, "close", lambda: (_ for _ in ()).throw(ValueError), raising=False
        )
        kill(worker.pid)
        step(envs, 2)
        assert worker.may_run
        assert not lies_in_a_buffer(envs, step(envs, 3))
        assert (obs == 17).all()


def test_a_step_after_a_restart_in_another_command_truncates() -> None:
    """After a restart in another command, the step that truncates returns the stored rows."""
    with make(on_worker_failure="restart") as envs:
        step(envs, 1)
        kill(envs.pids[0])
        envs.get_attr("length")  # the worker has ended before the command begins
        assert step(envs, 2)[:, 0, 0, 0].tolist() == [17, 17, 34, 34]


@pytest.mark.parametrize("moment", ["choose", "take", "after"])
def test_an_interrupt_loses_no_step(moment: str, monkeypatch: Any) -> None:
    with make() as envs:
        owner: Any = envs._arrays.outputs
        name = "choose"
        if moment != "choose":
            owner, name = envs, "_copy_observations"
        act = getattr(owner, name)

        def interrupted() -> Any:
            monkeypatch.undo()
            if moment == "after":
                act()
            raise KeyboardInterrupt

        step(envs, 1)
        monkeypatch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            step(envs, 2)
        obs = envs.step_wait()[0] if envs.waiting else step(envs, 2)
        assert (obs == 34).all()
        assert (step(envs, 3) == 51).all()
        assert (obs == 34).all()


def test_without_a_count_of_references_observations_are_copied(monkeypatch: Any) -> None:
    monkeypatch.setattr(output_buffers, "HAS_REFCOUNTS", False)
    with make() as envs:
        assert envs._arrays.outputs is None
        assert (step(envs, 1) == 17).all()


@pytest.mark.parametrize(
    ("n", "space", "copy"),
    [(2, IMAGE, True), (4, IMAGE, False), (4, spaces.Dict(a=IMAGE, b=spaces.Text(5)), True)],
    ids=["small", "views", "objects"],
)
def test_it_is_for_large_arrays_that_are_copied(n: int, space: Any, copy: bool) -> None:
    with SubprocVecEnv([partial(ImageEnv, space)] * n, copy=copy) as envs:
        assert envs._arrays.outputs is None


def test_without_memory_for_buffers_observations_are_copied(monkeypatch: Any) -> None:
    from xuance_envs.engine.process.shared_memory import SharedMemory

    allocate = SharedMemory.allocate

    def limited(self: Any, nbytes: int, *args: Any) -> int:
        if nbytes > 5 * 2**16:  # the arrays without buffers need less
            raise MemoryError
        return allocate(self, nbytes, *args)

    monkeypatch.setattr(SharedMemory, "allocate", limited)
    with make() as envs:
        assert envs._arrays.outputs is None
        assert (step(envs, 1) == 17).all()


def test_threads_that_drop_arrays_meanwhile() -> None:
    with make() as envs:
        held: list[Any] = [None] * 4
        ended = threading.Event()

        def drop() -> None:
            while not ended.wait(1e-4):
                held[np.random.default_rng().integers(4)] = None

        thread = threading.Thread(target=drop)
        thread.start()
        try:
            for number in range(100):
                obs = step(envs, number % 8)
                assert (obs == obs[0, 0, 0, 0]).all()
                held[number % 4] = obs
                value = int(obs[0, 0, 0, 0])
                step(envs, 0)
                assert (obs == value).all()
        finally:
            ended.set()
            thread.join()


PATTERNS = st.lists(
    st.tuples(
        st.integers(0, 8), st.sampled_from(["step", "step", "step", "send", "reset"]), st.booleans()
    ),
    min_size=5,
    max_size=25,
)


def test_values_are_those_of_dummy_whatever_is_held() -> None:
    with make(space=DICT) as envs, DummyVecEnv([partial(ImageEnv, DICT)] * 4) as dummy:

        @settings(max_examples=40, deadline=None, derandomize=True)
        @given(PATTERNS)
        def check(pattern: list[tuple[int, str, bool]]) -> None:
            held: dict[int, Any] = {}
            envs.reset(seed=0)
            dummy.reset(seed=0)
            for number, (slot, what, overwrite) in enumerate(pattern):
                mine, others = (result(each, what, number % 9) for each in (envs, dummy))
                if overwrite:
                    mine["image"][0] = others["image"][0] = 77
                held[slot] = mine, others
                for one, other in [*held.values(), (envs.buf_obs, dummy.buf_obs)]:
                    for key in one:
                        np.testing.assert_array_equal(one[key], other[key])

        check()


def result(envs: Any, what: str, action: int) -> Any:
    """Step all environments, or reset two of them, and return the observations."""
    if what == "step":
        return step(envs, action)
    if what == "reset":
        return envs.reset(env_ids=[1, 3])[0]
    envs.send([action] * 4, range(4))
    return envs.recv(4).obs
