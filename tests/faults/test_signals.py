"""Ctrl-C, SIGTERM and SIGKILL, to the caller and to its workers, at any moment."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from faulty_envs import HANGS, FaultyEnv
from leftovers import is_running, nothing_left, wait_until
from scripts import start_script

from xuance_envs import SubprocVecEnv, WorkerDiedError

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

DOINGS = {
    "spinning for steps": (),
    **{f"in a step that {fault}": ("step", fault) for fault in HANGS},
}


def started(tmp_path, where, **options):
    """A program in the midst of steps, and the process ids of its workers."""
    process = start_script(tmp_path, SCRIPT.format(where=where, options=options))
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2, process.communicate()
    time.sleep(0.3)
    return process, pids


@pytest.mark.parametrize("where", DOINGS.values(), ids=DOINGS)
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
@pytest.mark.parametrize("where", DOINGS.values(), ids=DOINGS)
def test_workers_do_not_outlive_a_caller_that_is_ended(tmp_path, where, number):
    process, pids = started(tmp_path, where)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert wait_until(lambda: not any(map(is_running, pids)))


def test_nor_do_they_while_they_are_being_restarted(tmp_path):
    process, pids = started(tmp_path, (), on_worker_failure="restart", max_restarts=None)
    os.kill(pids[0], signal.SIGKILL)
    time.sleep(0.05)
    group = process.pid
    process.kill()
    process.communicate(timeout=30)
    assert wait_until(lambda: not group_members(group))


def group_members(group):
    """The processes of a process group that run."""
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getpgid(int(name)) == group and is_running(int(name)):
                members.append(int(name))
        except ProcessLookupError:
            pass
    return members


@pytest.mark.parametrize("context", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:context='fork':RuntimeWarning")  # there is the timer's thread
def test_ctrl_c_at_any_moment_of_a_start_leaves_nothing(context):
    """Sent to the process, so that any of its threads may get it."""
    rng = np.random.default_rng(6)
    interrupts = 0
    for _ in range(20):
        with nothing_left():
            args = (os.getpid(), signal.SIGINT)
            timer = threading.Timer(rng.uniform(0, 0.12), os.kill, args)
            timer.daemon = True
            try:
                timer.start()
                with SubprocVecEnv([FaultyEnv] * 2, in_series=1, context=context):
                    timer.join()
                    time.sleep(0.02)
            except KeyboardInterrupt:
                interrupts += 1
            timer.join()
    assert interrupts == 20


def step_for(seconds, envs):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        envs.step([0, 0])


def test_after_ctrl_c_close_is_in_a_hurry():
    envs = SubprocVecEnv([lambda: FaultyEnv("step", "waits")])
    pids = envs.pids
    envs.reset()
    envs.step_async([0])
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), envs:
        raise KeyboardInterrupt
    assert time.monotonic() - start < 4.5
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1], ids=str)
def test_any_signal_that_ends_a_worker_is_named(number):
    envs = SubprocVecEnv([FaultyEnv] * 2, in_series=1, context="forkserver")
    envs.reset()
    os.kill(envs.pids[1], number)
    with pytest.raises(WorkerDiedError, match=f"killed by {number.name}"):
        step_for(20, envs)
    assert envs.closed


def test_a_stopped_worker_does_not_keep_close_waiting_for_ever():
    envs = SubprocVecEnv([FaultyEnv] * 2, in_series=1, context="forkserver")
    pids = envs.pids
    os.kill(pids[0], signal.SIGSTOP)
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 25
    assert not any(map(is_running, pids))
