"""Worker processes: how they end, and what is known of it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from leftovers import MAPS, count_maps, is_running, wait_until
from process_env import ProcessEnv
from scripts import run_script, start_script

from xuance_envs import EnvError, SubprocVecEnv, WorkerDiedError
from xuance_envs.engine.process import process_backend, worker_process
from xuance_envs.engine.process.driver import stop_workers

METHODS = multiprocessing.get_all_start_methods()


@pytest.mark.parametrize("context", METHODS)
def test_a_killed_worker_is_reported_with_all_that_is_known(context: str) -> None:
    envs = SubprocVecEnv([lambda: ProcessEnv(60)] * 4, context=context, in_series=2)
    envs.reset()
    pids = envs.call("pid")
    envs.step_async([0, 0, ProcessEnv.WAIT, 0])
    threading.Timer(0.05, os.kill, (pids[2], signal.SIGKILL)).start()
    with pytest.raises(WorkerDiedError, match=r"SIGKILL.*memory") as caught:
        envs.step_wait()
    error = caught.value
    assert error.env_indices == (2, 3)
    assert (error.pid, error.exitcode, error.command) == (pids[2], -signal.SIGKILL, "step")
    assert envs.closed
    assert multiprocessing.active_children() == []


def test_an_environment_that_exits_is_reported_with_its_exit_code() -> None:
    envs = SubprocVecEnv([ProcessEnv] * 2, context="forkserver")
    envs.reset()
    with pytest.raises(WorkerDiedError, match="it exited with code 7"):
        envs.step([0, ProcessEnv.EXIT])
    assert multiprocessing.active_children() == []


def test_a_worker_that_died_between_two_commands_is_noticed_in_the_second() -> None:
    envs = SubprocVecEnv([ProcessEnv] * 2, in_series=1, context="forkserver")
    envs.reset()
    envs.step([0, 0])
    os.kill(envs.call("pid")[0], signal.SIGTERM)
    with pytest.raises(WorkerDiedError, match="SIGTERM"):
        envs.get_attr("steps")


def test_close_does_not_wait_for_an_environment_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_backend, "stop_workers", lambda of, _: stop_workers(of, 0.3))
    envs = SubprocVecEnv([lambda: ProcessEnv(60)], context="forkserver")
    envs.reset()
    envs.step_async([ProcessEnv.WAIT])
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 20
    assert multiprocessing.active_children() == []


def test_close_during_a_short_step_lets_the_worker_end_by_itself() -> None:
    envs = SubprocVecEnv([lambda: ProcessEnv(0.1)] * 2, context="forkserver")
    envs.reset()
    process = multiprocessing.active_children()[0]
    codes = []
    process.close = lambda: codes.append(process.exitcode)  # asked once it has ended
    envs.step_async([ProcessEnv.WAIT] * 2)
    envs.close()
    assert codes == [0]


def test_what_is_forgotten_is_closed() -> None:
    envs = SubprocVecEnv([ProcessEnv], context="forkserver")
    (pid,) = envs.call("pid")
    del envs
    gc.collect()
    assert wait_until(lambda: not is_running(pid))


@pytest.mark.skipif("forkserver" not in METHODS, reason="the forkserver reports ended processes")
def test_a_vec_env_collected_while_a_worker_starts_does_not_wait_for_the_forkserver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forgotten = [SubprocVecEnv([ProcessEnv], context="forkserver")]
    (driver,) = forgotten[0]._backend.workers
    getfd, collected = resource_tracker.getfd, []

    def collect() -> int:
        """Collect the vec env while the forkserver waits for the rest of a request."""
        forgotten.clear()
        gc.collect()
        collected.append(not driver.worker.alive)
        return getfd()

    monkeypatch.setattr(worker_process, "KILL_TIMEOUT", 5.0)
    monkeypatch.setattr(resource_tracker, "getfd", collect)
    SubprocVecEnv([ProcessEnv], context="forkserver").close()
    assert collected[0]
    assert not driver.worker.may_run
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(not MAPS.exists(), reason="needs a list of maps")
@pytest.mark.parametrize(
    "options",
    [{}, {"caller_steps": True}, {"on_worker_failure": "restart"}, {"copy": False}],
    ids=str,
)
def test_what_is_closed_and_dropped_leaves_nothing_to_the_collector(
    options: dict[str, Any],
) -> None:
    gc.collect()
    gc.disable()
    try:
        before = count_maps()
        with SubprocVecEnv([ProcessEnv] * 2, context="forkserver", **options) as envs:
            envs.reset()
            envs.step([0] * 2)
            envs.send([0] * 2, range(2))
            envs.recv(min_envs=2)
            assert count_maps() > before
        del envs
        assert count_maps() == before
    finally:
        gc.enable()


def test_a_program_that_closes_nothing_ends_with_its_workers(tmp_path: Path) -> None:
    pids = run_script(
        tmp_path,
        """
        import gymnasium
        from xuance_envs import SubprocVecEnv
        envs = SubprocVecEnv([lambda: gymnasium.make("CartPole-v1")] * 4, in_series=1)
        envs.reset()
        envs.step_async([0] * 4)
        print(*envs.pids)
        """,
    )
    assert not any(is_running(int(pid)) for pid in pids.split())


@pytest.mark.parametrize("doing", ["idle", "inside a step", "stopped"])
def test_workers_do_not_outlive_a_caller_that_is_killed(tmp_path: Path, doing: str) -> None:
    caller = start_script(
        tmp_path,
        f"""
        import time
        from process_env import ProcessEnv
        from xuance_envs import SubprocVecEnv
        envs = SubprocVecEnv([lambda: ProcessEnv(60)] * 2, in_series=1)
        envs.reset()
        if {doing == "inside a step"}:
            envs.step_async([ProcessEnv.WAIT] * 2)
        print(*envs.pids, flush=True)
        time.sleep(60)
        """,
    )
    with caller:
        assert caller.stdout is not None
        pids = [int(pid) for pid in caller.stdout.readline().split()]
        assert len(pids) == 2
        if doing == "stopped":
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        caller.kill()
    assert wait_until(lambda: not any(map(is_running, pids)))


def test_errors_of_all_groups_are_waited_for_and_the_first_is_raised() -> None:
    class Failing(ProcessEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise RuntimeError("no")

    envs = SubprocVecEnv([ProcessEnv, Failing, Failing], in_series=1, context="forkserver")
    with pytest.raises(EnvError) as caught:
        envs.reset()
    assert caught.value.env_index == 1
    assert envs.closed
