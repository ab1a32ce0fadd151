"""A worker process ends or hangs: where it was is told at once, and nothing is left behind."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from faulty_envs import ENDINGS, FAULTS, HANGS, PLACES, FaultyEnv, ParentEnv, step_for
from leftovers import is_running
from scripts import start_script

from xuance_envs import SubprocVecEnv, WorkerDiedError, WorkerTimeoutError
from xuance_envs.engine.process import process_backend
from xuance_envs.engine.process.driver import stop_workers
from xuance_envs.engine.system.current import system

needs_reports = pytest.mark.skipif(
    system.NAME != "Linux", reason="crash reports go to standard error there"
)

COMMANDS = {"auto-reset": "step"}


def make(place, fault, at=4, **options):
    """Six environments, two in each worker, of which one commits a fault."""
    env_fns = [FaultyEnv] * 6
    env_fns[at] = partial(FaultyEnv, place, fault)
    options = {"context": "forkserver", "in_series": 2, "step_timeout": 0.3, **options}
    return SubprocVecEnv(env_fns, start_timeout=20, **options)


def go_through_all(envs):
    """Does all there is to do, so that the fault must come."""
    envs.reset()
    for _ in range(6):
        envs.step([0] * 6)
    envs.render()
    envs.call("method")
    envs.get_attr("attribute")
    envs.set_attr("attribute", 3)


def make_and_step():
    with SubprocVecEnv([FaultyEnv] * 3, in_series=1, context="forkserver") as envs:
        envs.reset()
        step_for(20, envs)


def stop_workers_soon(workers, close_timeout=0.3):
    stop_workers(workers, 0.3)


@pytest.fixture
def impatient(monkeypatch):
    """Environments have less time to close."""
    monkeypatch.setattr(process_backend, "stop_workers", stop_workers_soon)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "close"])
@pytest.mark.parametrize("fault", ENDINGS)
def test_a_worker_that_ends_is_an_error_that_says_where_it_was(place, fault):
    with pytest.raises(WorkerDiedError) as caught:
        go_through_all(make(place, fault, step_timeout=20))
    error = caught.value
    assert error.env_indices == (4, 5)
    assert error.env_index == 4
    assert error.command == COMMANDS.get(place, place)
    codes = {"exits": 7, "is killed": -signal.SIGKILL, "crashes": -signal.SIGSEGV}
    assert error.exitcode == codes[fault]
    assert not is_running(error.pid)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    "place", [place for place in PLACES if place not in ("construct", "close")]
)
@pytest.mark.parametrize("fault", HANGS)
def test_a_worker_that_hangs_is_an_error_that_says_where_it_was(place, fault):
    with pytest.raises(WorkerTimeoutError) as caught:
        go_through_all(make(place, fault))
    error = caught.value
    assert (error.env_indices, error.env_index, error.timeout) == ((4, 5), 4, 0.3)
    assert error.command == COMMANDS.get(place, place)
    if system.NAME == "Linux":  # elsewhere the stack is printed
        place = {"waits": "in wait", "spins": "in spin", "hangs in C": "in hang_in_c"}[fault]
        assert place in str(error)
    assert not is_running(error.pid)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("fault", HANGS)
def test_a_worker_that_hangs_while_it_starts_is_an_error_too(fault):
    env_fns = [FaultyEnv] * 3 + [partial(FaultyEnv, "construct", fault)]
    with pytest.raises(WorkerTimeoutError, match=r"'construct' within 1 s; it was run") as caught:
        SubprocVecEnv(env_fns, in_series=2, context="forkserver", start_timeout=1.0)
    assert caught.value.env_index == 3


def test_start_timeout_is_another_than_step_timeout():
    def slow():
        time.sleep(0.6)
        return FaultyEnv()

    for start_timeout in (None, 30):
        # In so little time nothing would be done.
        options = {"step_timeout": 1e-6, "start_timeout": start_timeout, "context": "forkserver"}
        SubprocVecEnv([slow], **options).close()


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_of_a_close_gets_out_of_it(fault, impatient):
    envs = make("close", fault)
    pids = envs.pids
    envs.reset()
    envs.close()
    envs.close()
    assert not any(map(is_running, pids))


@needs_reports
def test_a_crash_in_native_code_is_told_with_the_last_words_and_the_stack():
    with pytest.raises(WorkerDiedError) as caught:
        go_through_all(make("step", "crashes"))
    text = str(caught.value)
    assert "the worker process of environments 4, 5" in text
    assert "died during 'step': it was killed by SIGSEGV; it was running environment 4" in text
    assert "about to crash" in text
    assert "Fatal Python error: Segmentation fault" in text
    assert "in crash" in text
    assert "faulty_envs.py" in text
    assert text.count("\n") <= 41


@needs_reports
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_so_it_is_with_other_ways_to_start(context):
    with pytest.raises(WorkerDiedError, match=r"about to crash\n[\s\S]*in crash"):
        go_through_all(make("step", "crashes", context=context, step_timeout=None))


@needs_reports
def test_so_it_is_in_a_forked_one_where_a_library_has_put_a_handler_in_place(tmp_path):
    script = """
        import faulthandler, signal
        from faulty_envs import FaultyEnv
        from xuance_envs import SubprocVecEnv, WorkerDiedError

        faulthandler.enable()
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # as Ray does, to its own
        envs = SubprocVecEnv([lambda: FaultyEnv("step", "crashes")], context="fork")
        envs.reset()
        try:
            while True:
                envs.step([0])
        except WorkerDiedError as error:
            assert "in crash" in str(error), error
            print("told")
        """
    with start_script(tmp_path, script) as process:
        out, err = process.communicate(timeout=60)
    assert out == "told\n", err


def test_an_import_that_fails_in_a_worker_is_told(monkeypatch, tmp_path):
    (tmp_path / "gymnasium.py").write_text("raise ImportError('no such luck')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        WorkerDiedError, match=r"(?s)during 'construct': it exited with code 1.*no such luck"
    ):
        SubprocVecEnv([FaultyEnv], context="spawn")


def test_the_death_of_one_is_noticed_while_others_are_waited_for():
    envs = SubprocVecEnv(
        [lambda: FaultyEnv("step", "waits")] * 4, in_series=1, context="forkserver"
    )
    pids = envs.pids
    envs.reset()
    envs.step_async([0] * 4)
    time.sleep(0.2)
    start = time.monotonic()
    os.kill(pids[2], signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"environment 2 .*SIGKILL.*memory"):
        envs.step_wait()
    assert time.monotonic() - start < 20, "the others wait for ever"
    assert envs.closed
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("held", [False, True], ids=["alone", "with a child of its own"])
def test_a_worker_killed_at_any_moment_of_a_step_is_noticed(held):
    """Twenty times: in the midst of a step, or between two."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        make_env = ParentEnv if held else FaultyEnv
        envs = SubprocVecEnv([make_env] * 3, in_series=1, context="forkserver")
        pids = envs.pids
        envs.reset()
        victim = int(rng.integers(3))
        killer = threading.Timer(rng.uniform(0, 0.03), os.kill, (pids[victim], signal.SIGKILL))
        killer.start()
        with pytest.raises(WorkerDiedError) as caught:
            step_for(20, envs)
        killer.join()
        assert caught.value.env_indices == (victim,)
        assert caught.value.exitcode == -signal.SIGKILL
        assert not any(map(is_running, pids))


def test_a_worker_killed_at_any_moment_of_its_start_is_noticed(monkeypatch):
    rng = np.random.default_rng(4)
    start = process_backend.ProcessBackend.start
    killers = []

    def start_and_kill(self):
        start(self)
        pid = self.workers[1].worker.pid
        killers.append(threading.Timer(rng.uniform(0, 0.05), os.kill, (pid, signal.SIGKILL)))
        killers[-1].start()

    monkeypatch.setattr(process_backend.ProcessBackend, "start", start_and_kill)
    for _ in range(20):
        with pytest.raises(WorkerDiedError) as caught:
            make_and_step()
        assert caught.value.env_indices == (1,)
        killers[-1].join()


def test_an_answer_longer_than_the_pipe_may_be_taken_late():
    class Talkative(FaultyEnv):
        def method(self):
            return b"x" * 1_000_000

        def step(self, action):
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, {"long": "x" * 1_000_000}

    with SubprocVecEnv(
        [Talkative] * 2, in_series=1, context="forkserver", step_timeout=1.0
    ) as envs:
        envs.reset()
        envs.step_async([0, 0])
        time.sleep(1.5)
        assert [len(info["long"]) for info in envs.step_wait()[4]] == [1_000_000] * 2


WAITING = "envs.step([0, 0])"


@pytest.mark.slow("is stopped for longer than a step may take")
@pytest.mark.parametrize(
    ("stepped", "with_workers"),
    [
        (WAITING, True),
        ("[envs.step_async([0, 0]), time.sleep(0.5), *envs.step_wait()][2:]", True),
        ("[envs.send([0, 0], [0, 1]), *envs.recv(2)][1:]", True),
        (WAITING, False),
    ],
    ids=["while it waits", "before it waits", "first-ready", "Ctrl-Z"],
)
def test_a_caller_that_was_stopped_does_not_take_its_workers_for_hanging_ones(
    stepped, with_workers, tmp_path
):
    """Alone, as by Ctrl-Z, or with its workers, as with the container they are in."""
    script = f"""
        import time
        from faulty_envs import FaultyEnv
        from xuance_envs import SubprocVecEnv

        class Slow(FaultyEnv):
            def step(self, action):
                for _ in range(60):  # whichever of them is stopped, the others are still to come
                    time.sleep(0.01)
                return super().step(action)

        with SubprocVecEnv([Slow] * 2, in_series=1, context="fork", step_timeout=3.0) as envs:
            envs.reset()
            print(*envs.pids, flush=True)
            obs, *_ = {stepped}
            assert obs[:, 0].tolist() == [1.0, 1.0]
    """
    with start_script(tmp_path, script) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.2)
        for number, seconds in ((signal.SIGSTOP, 4.0), (signal.SIGCONT, 0.0)):
            for group in [process.pid, *(pids if with_workers else [])]:
                os.killpg(group, number)
            time.sleep(seconds)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, out + err


def test_a_worker_that_hangs_while_nobody_looks_is_overdue_all_the_same():
    with make("step", "waits") as envs:
        envs.reset()
        envs.send([0] * 6, range(6))
        overdue = []
        for _ in range(50):
            time.sleep(0.4)  # each look comes late
            try:
                envs.recv(timeout=0)
            except WorkerTimeoutError as error:
                if error.timeout:  # else nothing has come
                    overdue.append((error.timeout, error.env_index))
                    break
        assert overdue == [(0.3, 4)]
