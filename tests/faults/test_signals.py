"""Ctrl-C, SIGTERM and SIGKILL, to the caller and to its workers, at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from faulty_envs import HANGS, FaultyEnv, step_for
from leftovers import is_running, nothing_left, wait_until
from pressure import seconds_stalled
from scripts import run_script, start_script

from xuance_envs import SubprocVecEnv, WorkerDiedError
from xuance_envs.engine.system.current import system

SCRIPT = """
    import sys, time
    from faulty_envs import FaultyEnv
    from xuance_envs import SubprocVecEnv

    where, options = {where!r}, {options!r}
    env_fns = [lambda: FaultyEnv(*where)] * 4
    envs = SubprocVecEnv(env_fns, in_series=2, **options)
    print(*envs.pids, flush=True)
    envs.reset()
    while True:
        envs.step([0] * 4)
"""

needs_processes = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a list of processes"
)

DOINGS = {
    "spinning for steps": (),
    **{f"in a step that {fault}": ("step", fault) for fault in HANGS},
}

QUICK = ("spinning for steps", "in a step that hangs in C")

doings = pytest.mark.parametrize(
    "where",
    [
        pytest.param(where, id=name, marks=() if name in QUICK else pytest.mark.long)
        for name, where in DOINGS.items()
    ],
)


def started(tmp_path, where, **options):
    """A program in the midst of steps, and the process ids of its workers."""
    process = start_script(tmp_path, SCRIPT.format(where=where, options=options), cwd=tmp_path)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2, process.communicate()
    time.sleep(0.3)
    return process, pids


@doings
def test_ctrl_c_ends_all_with_one_traceback(tmp_path, where):
    """It goes to the whole process group, as from a terminal."""
    process, pids = started(tmp_path, where)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert wait_until(lambda: not any(map(is_running, pids)))
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_hammering_ctrl_c_ends_all_too(tmp_path):
    process, pids = started(tmp_path, ("step", "hangs in C"))
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)
    process.communicate(timeout=30)
    assert wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
@doings
def test_workers_do_not_outlive_a_caller_that_is_ended(tmp_path, where, number):
    process, pids = started(tmp_path, where)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert wait_until(lambda: not any(map(is_running, pids)))


@needs_processes
def test_nor_do_they_while_they_are_being_restarted(tmp_path):
    process, pids = started(tmp_path, (), on_worker_failure="restart", max_restarts=None)
    os.kill(pids[0], signal.SIGKILL)
    time.sleep(0.05)
    assert len(processes_in(tmp_path)) >= 2
    process.kill()
    process.communicate(timeout=30)
    assert wait_until(lambda: not processes_in(tmp_path))


def processes_in(folder):
    """Return the names of the running processes whose working directory is ``folder``, by id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder and is_running(int(process.name)):
                found[int(process.name)] = (process / "comm").read_text().strip()
    return found


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:context='fork':RuntimeWarning")  # pytest may have threads
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_signal_to_its_process_group_ends_one_worker_only(tmp_path, context, number):
    """The script has its own process group, so that a failure does not end pytest."""
    script = f"""
        import os
        from faulty_envs import FaultyEnv
        from xuance_envs import SubprocVecEnv, WorkerDiedError

        class Signaling(FaultyEnv):
            def step(self, action):
                if action:
                    os.kill(0, {number})
                return super().step(action)

        envs = SubprocVecEnv([Signaling] * 2, in_series=1, context={context!r})
        envs.reset()
        try:
            envs.step([0, 1])
        except WorkerDiedError as error:
            print(error.env_indices, error.exitcode)
    """
    assert run_script(tmp_path, script) == f"(1,) {-number}\n"


@needs_processes
@pytest.mark.slow("a worker that hangs has five seconds to close")
@pytest.mark.parametrize(
    ("fault", "timeout", "closes"),
    [
        ("waits", None, False),
        ("spins", None, False),
        ("spins", 2.0, False),
        ("hangs in C", 2.0, False),
        ("hangs in C", None, True),
    ],
)
def test_what_a_hanging_environment_has_started_ends_with_its_worker(
    tmp_path, fault, timeout, closes
):
    """After a timeout, when the caller closes the environments, or when it is killed."""
    script = f"""
        import subprocess, time
        from faulty_envs import HANGS, FaultyEnv, step_for
        from xuance_envs import SubprocVecEnv, WorkerTimeoutError

        class Starting(FaultyEnv):
            def step(self, action):
                subprocess.Popen(["sleep", "1000"])
                HANGS[{fault!r}]()

        with SubprocVecEnv([Starting], step_timeout={timeout}) as envs:
            envs.reset()
            envs.step_async([0])
            print("started", flush=True)
            try:
                if {closes}:
                    envs.close()
                else:
                    envs.step_wait()
            except WorkerTimeoutError:
                pass
            print("ended", flush=True)
            time.sleep(1000)
    """
    with start_script(tmp_path, script, cwd=tmp_path) as process:
        try:
            assert process.stdout.readline() == "started\n"
            assert wait_until(lambda: "sleep" in processes_in(tmp_path).values())
            if timeout or closes:
                assert process.stdout.readline() == "ended\n"
                assert wait_until(lambda: "sleep" not in processes_in(tmp_path).values())
            process.kill()
            assert wait_until(lambda: not processes_in(tmp_path))
        finally:
            for pid in processes_in(tmp_path):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:context='fork':RuntimeWarning")  # there is the timer's thread
def test_ctrl_c_at_any_moment_of_a_start_leaves_nothing(context):
    """Sent to the process, so that any of its threads may get it."""
    rng = np.random.default_rng(6)
    interrupts = 0
    for moment in range(8):
        with nothing_left():
            args = (os.getpid(), signal.SIGINT)
            delay = 0.015 * (moment + rng.random())
            timer = threading.Timer(delay, os.kill, args)
            timer.daemon = True
            try:
                timer.start()
                with SubprocVecEnv([FaultyEnv] * 2, in_series=1, context=context):
                    timer.join()
                    time.sleep(0.02)
            except KeyboardInterrupt:
                interrupts += 1
            timer.join()
    assert interrupts == 8


@pytest.mark.parametrize("opens", ["open_anonymous_file", "open_counters"])
def test_ctrl_c_while_a_descriptor_is_opened_leaves_none(monkeypatch, opens):
    original = getattr(system, opens)

    def interrupted(*args):
        descriptors = original(*args)
        signal.raise_signal(signal.SIGINT)
        return descriptors

    monkeypatch.setattr(system, opens, interrupted)
    with nothing_left(), pytest.raises(KeyboardInterrupt):
        SubprocVecEnv([FaultyEnv] * 8, in_series=1)


def test_after_ctrl_c_close_is_in_a_hurry():
    envs = SubprocVecEnv([lambda: FaultyEnv("step", "waits")])
    pids = envs.pids
    envs.reset()
    envs.step_async([0])
    start = time.monotonic() - seconds_stalled()
    with pytest.raises(KeyboardInterrupt), envs:
        raise KeyboardInterrupt
    assert time.monotonic() - seconds_stalled() - start < 4.5
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1], ids=str)
def test_any_signal_that_ends_a_worker_is_named(number):
    envs = SubprocVecEnv([FaultyEnv] * 2, in_series=1, context="forkserver")
    envs.reset()
    os.kill(envs.pids[1], number)
    with pytest.raises(WorkerDiedError, match=f"killed by {number.name}"):
        step_for(20, envs)
    assert envs.closed


@pytest.mark.slow("waits for the time limit of close")
def test_a_stopped_worker_does_not_keep_close_waiting_for_ever():
    envs = SubprocVecEnv([FaultyEnv] * 2, in_series=1, context="forkserver")
    pids = envs.pids
    os.kill(pids[0], signal.SIGSTOP)
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 25
    assert not any(map(is_running, pids))
