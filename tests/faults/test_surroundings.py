"""Odd surroundings: closed standard streams, forks, children that stay, floods of output."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial

import numpy as np
import pytest
from faulty_envs import FAULTS, FaultyEnv
from leftovers import is_running, wait_until
from scripts import run_script

from xuance_envs import DummyVecEnv, SubprocVecEnv, VecEnvError, WorkerDiedError


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
def test_standard_streams_may_be_closed(tmp_path, context):
    """No worker prints into a pipe of ours, which might have taken the place of one."""
    run_script(
        tmp_path,
        f"""
        import os
        for fd in range(3):
            os.close(fd)

        from faulty_envs import FaultyEnv
        from xuance_envs import SubprocVecEnv

        class Printing(FaultyEnv):
            def step(self, action):
                print("x" * 1000)
                os.write(1, b"y" * 1000)
                os.write(2, b"z" * 1000)
                return super().step(action)

        with SubprocVecEnv([lambda: Printing()] * 4, in_series=2, context={context!r}) as envs:
            envs.reset()
            for number in range(1, 4):
                assert (envs.step([0] * 4)[0][:, 0] == number).all()
        """,
    )


def test_a_common_wake_up_leaves_closed_standard_streams_alone(tmp_path):
    run_script(
        tmp_path,
        """
        import os
        for fd in range(3):
            os.close(fd)

        from faulty_envs import FaultyEnv
        from xuance_envs import SubprocVecEnv

        with SubprocVecEnv([FaultyEnv] * 8, in_series=1, context="fork") as envs:
            envs.reset()
            for number in range(1, 4):
                assert (envs.step([0] * 8)[0][:, 0] == number).all()
            assert envs._groups.ledger.common.tag > 0  # it took place
            for fd in range(3):
                try:
                    os.fstat(fd)
                except OSError:
                    pass
                else:
                    raise AssertionError(f"descriptor {fd} is open")
        """,
    )


def shared_memory(envs):
    fd = envs._backend.settings.memory.fd
    return np.frombuffer(os.pread(fd, os.fstat(fd).st_size, 0), np.uint8)


@pytest.mark.parametrize("context", ["forkserver", "fork"])
@pytest.mark.parametrize("end", ["answers", "crashes"])
def test_a_fork_that_an_environment_lets_escape_answers_and_changes_nothing(context, end, tmp_path):
    """It goes on when the caller has the results of the step, and nothing else is being done."""

    class Forking(FaultyEnv):
        def step(self, action):
            if action == 1 and os.fork() == 0:
                (tmp_path / f"{os.getpid()}").touch()
                assert wait_until((tmp_path / "go").exists)
                print("out of place", file=sys.stderr)
                if end in FAULTS:
                    FAULTS[end]()
                self.count = 1000
            return super().step(action)

    def children():
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]

    with SubprocVecEnv([Forking] * 4, in_series=2, context=context) as envs:
        envs.reset()
        assert envs.step([0, 1, 1, 0])[0][:, 0].tolist() == [1] * 4
        assert wait_until(lambda: len(children()) == 2)
        before = shared_memory(envs)
        (tmp_path / "go").touch()
        assert wait_until(lambda: not any(map(is_running, children())))
        assert np.flatnonzero(shared_memory(envs) != before).tolist() == []
        for number in range(2, 5):
            assert envs.step([0] * 4)[0][:, 0].tolist() == [number] * 4


@pytest.mark.parametrize("how", ["fork", "exec"])
def test_children_of_environments_keep_nothing_from_ending(how):
    class Parent(FaultyEnv):
        def __init__(self):
            super().__init__()
            if how == "exec":
                os.system("sleep 20 >/dev/null 2>&1 &")
            elif os.fork() == 0:
                os.execvp("sleep", ["sleep", "20"])

    with SubprocVecEnv([Parent] * 2, in_series=1, context="forkserver", step_timeout=20) as envs:
        envs.reset()
        envs.step([0, 0])
        os.kill(envs.pids[0], 9)
        with pytest.raises(WorkerDiedError, match="environment 0"):
            envs.call("method")


def test_a_flood_on_standard_error_stops_nothing_and_its_end_is_told():
    class Shouting(FaultyEnv):
        def step(self, action):
            for number in range(2_000):
                print("x" * 1000, number, file=sys.stderr)
            print("the last line", file=sys.stderr)
            os._exit(3)

    envs = SubprocVecEnv([Shouting], context="forkserver")
    envs.reset()
    with pytest.raises(WorkerDiedError) as caught:
        envs.step([0])
    lines = str(caught.value).splitlines()
    assert lines[-1] == "the last line"
    assert max(map(len, lines)) < 400


def test_an_environment_may_have_its_own_way_with_standard_error():
    class Own(FaultyEnv):
        def __init__(self):
            super().__init__()
            import faulthandler
            import io

            faulthandler.enable()
            sys.stderr = io.StringIO()

    envs = SubprocVecEnv([Own, partial(FaultyEnv, "step", "crashes")], context="forkserver")
    envs.reset()
    with pytest.raises(WorkerDiedError, match="SIGSEGV"):
        envs.step([0, 0])


def test_many_workers_are_as_few():
    """More than can run at once, each with one environment, and all lost at the same time."""
    options = {"in_series": 1, "context": "forkserver", "on_worker_failure": "restart"}
    with SubprocVecEnv([FaultyEnv] * 48, **options) as envs, DummyVecEnv([FaultyEnv] * 48) as same:
        assert (envs.reset(seed=1)[0] == same.reset(seed=1)[0]).all()
        assert (envs.step([0] * 48)[0] == same.step([0] * 48)[0]).all()
        for pid in envs.pids[::4]:
            os.kill(pid, 9)
        truncated = envs.step([0] * 48)[3]
        assert np.flatnonzero(truncated).tolist() == list(range(0, 48, 4))


@pytest.mark.parametrize("library", ["cv2", "torch"])
def test_a_library_imported_late_has_as_few_threads_as_one_imported_early(library):
    pytest.importorskip(library)

    class Late(FaultyEnv):
        def threads(self):
            if library == "cv2":
                import cv2

                return cv2.getNumThreads()
            import torch

            return torch.get_num_threads()

    with SubprocVecEnv([Late]) as envs:
        assert envs.call("threads") == (1,)


def test_an_exception_beyond_exception_is_an_error_that_closes():
    class Cancelled(FaultyEnv):
        def step(self, action):
            raise asyncio.CancelledError("as told")

    envs = SubprocVecEnv([Cancelled] * 2, in_series=1, context="forkserver")
    envs.reset()
    with pytest.raises(VecEnvError, match="CancelledError: as told") as caught:
        envs.step([0, 0])
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert envs.closed
