"""A step that one write starts in all workers: no failure loses or repeats a wake-up."""

from __future__ import annotations

import gc
import itertools
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from interrupts import Instant

import xuance_envs
from xuance_envs import (
    ClosedVecEnvError,
    DummyVecEnv,
    SubprocVecEnv,
    WorkerDiedError,
    WorkerTimeoutError,
)
from xuance_envs.engine.process import common_step
from xuance_envs.engine.process.common_step import MIN_WORKERS, Follower
from xuance_envs.engine.process.shared_memory import SharedMemory

N = MIN_WORKERS
FOLDER = str(Path(xuance_envs.__file__).parent)
COMMON_STEP = str(common_step.__file__)
"""File in which no interrupt is deferred; the start of a process defers them."""

needs_eventfd = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system lacks eventfd")
pytestmark = needs_eventfd


@pytest.fixture(autouse=True, params=["one team", "teams"])
def teams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Lets few workers wake each other, in teams of three, in half of the tests."""
    if request.param == "teams":
        monkeypatch.setattr(common_step, "MIN_TREE_WORKERS", N)
    return bool(request.param == "teams")


class CountingEnv(gymnasium.Env[Any, Any]):
    """Environment that observes its number of steps, and may end its process around the next."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, period: int = 0) -> None:
        self.steps = 0
        self.at = ""
        self.period = period
        self.seconds = 0.0
        self.extra: Any = None
        self.gate: Path | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.full(1, self.steps), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        at, self.at = self.at, ""
        if at:
            end_process(at)
        time.sleep(self.seconds)
        while self.gate is not None and not self.gate.exists():
            time.sleep(1e-3)
        ended = bool(self.period) and self.steps % self.period == 0
        info = {} if self.extra is None else {"extra": self.extra}
        return np.full(1, self.steps), float(action), ended, False, info

    def end_at(self, instant: str) -> None:
        self.at = instant

    def pid(self) -> int:
        return os.getpid()

    def value(self, extra: Any = None, seconds: float = 0.0) -> None:
        self.extra, self.seconds = extra, seconds


INSTANTS = ("in the step", "before the code", "after the code", "after the token", "as the last")
"""Instants between the wake-up and the bell at which a process ends."""

WAKING = ("before it wakes others", "while it wakes others")
"""Instants of the next step at which a process ends that wakes another team."""

COMPLETE = (*INSTANTS[2:], *WAKING)
"""Instants at which the results of the step are complete."""


def end_process(instant: str) -> None:
    """End this process at an instant of its reply."""
    if instant == "in the step":
        kill_self()
    (follower,) = [each for each in gc.get_objects() if type(each) is Follower]
    if instant == "before the code":
        follower.finish = kill_self  # type: ignore[method-assign, assignment]
        return
    if instant == "before it wakes others":
        common_step._wake = kill_self
        return
    if instant == "as the last":  # no token is left when the others have finished
        tokens = select.poll()
        tokens.register(follower._tokens, select.POLLIN)
        while tokens.poll(0):
            time.sleep(1e-4)
    common_step.os = EndingOs(instant)  # type: ignore[assignment]


class EndingOs:
    """Module ``os`` for a follower whose process must end."""

    def __init__(self, instant: str) -> None:
        self.instant = instant

    def read(self, fd: int, size: int) -> bytes:
        if self.instant == "while it wakes others":
            return os.read(fd, size)
        if self.instant == "after the code":
            kill_self()
        try:
            token = os.read(fd, size)
        except BlockingIOError:
            kill_self()
        if self.instant == "after the token":
            kill_self()
        return token

    def write(self, fd: int, data: bytes) -> int:
        if self.instant == "while it wakes others":
            kill_self()
        return os.write(fd, data)


def kill_self(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def make(n: int = N, **options: Any) -> Any:
    env_fn = options.pop("env_fn", CountingEnv)
    options.setdefault("context", "forkserver")
    return SubprocVecEnv([env_fn] * n, in_series=1, **options)


def step(envs: Any) -> list[float]:
    """Step, and return the number of steps of each environment."""
    counts: list[float] = envs.step([0] * envs.num_envs)[0][:, 0].tolist()
    return counts


def is_common(envs: Any) -> bool:
    """Return whether the last step was started by one write."""
    ledger = envs._ledger
    return bool(ledger.common is not None and ledger.common.tag == ledger._tag)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"copy": False},
        {"caller_steps": True, "copy": False},
        {"on_worker_failure": "restart"},
        {"on_worker_failure": "resume", "copy": False},
    ],
    ids=str,
)
def test_results_are_those_of_one_process(options: dict[str, Any]) -> None:
    env_fns = [partial(CountingEnv, period=3 + i) for i in range(N + 1)]
    with (
        SubprocVecEnv(env_fns, in_series=1, context="forkserver", **options) as envs,
        DummyVecEnv(env_fns) as expected,
    ):
        for each in (envs, expected):
            each.reset(seed=0)
        common = 0
        for count in range(60):
            actions = np.arange(N + 1) % 2
            for got, wanted in zip(envs.step(actions), expected.step(actions), strict=True):
                assert list(map(str, got)) == list(map(str, wanted))
            common += is_common(envs)
            if count % 10 == 5:  # commands in between, also of some environments
                for each in (envs, expected):
                    each.call("value", count if count % 20 == 5 else None, env_ids=[2, 5])
            if count % 10 == 8:
                for each in (envs, expected):
                    each.reset(env_ids=[1])
        assert common >= 58


def test_fewer_workers_have_a_pipe_each() -> None:
    with make(N - 1) as envs:
        assert envs._ledger.common is None


@pytest.mark.parametrize("options", [{}, {"caller_steps": True}], ids=str)
def test_a_step_runs_no_more_python_code_for_more_workers(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common_step, "PATIENCE", 60)  # counting slows the main process down
    fewer, more = (fewest_opcodes(workers, **options) for workers in (N, 2 * N))
    assert 100 < more <= fewer


def fewest_opcodes(workers: int, **options: Any) -> int:
    """Return the number of opcodes of a step in the main process, if no wait is repeated."""
    counts = []
    with make(workers + bool(options), context="fork", **options) as envs:
        envs.reset()
        step(envs)
        for _ in range(50):
            with Opcodes() as opcodes:
                envs.step_async([0] * envs.num_envs)
                envs.step_wait()
            assert is_common(envs)
            counts.append(opcodes.count)
    return min(counts)


class Opcodes:
    """Number of opcodes that this thread executes in functions called by a block."""

    def __enter__(self) -> Opcodes:
        self.count = 0
        self._traced_before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 checks only the frame that starts it
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._traced_before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace = self._trace  # otherwise Python 3.13 ignores the next line
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self._trace


def test_replies_too_large_for_a_pipe_arrive() -> None:
    with make(info_bytes=64) as envs:
        envs.reset()
        step(envs)
        large = "x" * (1 << 20)
        envs.call("value", large)
        for _ in range(3):
            *_, infos = envs.step([0] * N)
            assert [info["extra"] for info in infos] == [large] * N
            assert is_common(envs)


def test_send_and_recv_mix_with_common_steps() -> None:
    rng = np.random.default_rng(0)
    with make() as envs:
        envs.reset()
        counts = np.zeros(N)
        for _ in range(60):
            if rng.random() < 0.5:
                counts += 1
                assert step(envs) == counts.tolist()
            else:
                some = rng.permutation(N)[: rng.integers(1, N + 1)]
                envs.send([0] * len(some), some)
                counts[some] += 1
                left = len(some)
                while left:
                    batch = envs.recv()
                    assert batch.obs[:, 0].tolist() == counts[batch.env_ids].tolist()
                    left -= len(batch.env_ids)
        step(envs)
        assert is_common(envs)


def kill_workers(kills: int, instants: Sequence[str], **options: Any) -> None:
    """End workers at all instants in turn, and check each environment's count of steps."""
    rng = np.random.default_rng(0)
    with make(on_worker_failure="restart", max_restarts=None, **options) as envs:
        envs.reset()
        counts = np.zeros(N)
        for instant in itertools.islice(itertools.cycle(instants), kills):
            for _ in range(int(rng.integers(2, 4))):
                counts += 1
                assert step(envs) == counts.tolist()
            assert is_common(envs)
            victim = int(rng.integers(2 if instant in WAKING else N))
            envs.call("end_at", instant, env_ids=[victim])
            others = np.arange(N) != victim
            for complete in [True, False] if instant in COMPLETE else [False]:
                before = counts[victim]
                counts += 1
                got, _, _, truncated, infos = envs.step([0] * N)
                assert got[others, 0].tolist() == counts[others].tolist(), instant
                assert truncated.tolist() == [not complete and i == victim for i in range(N)]
                assert got[victim, 0] == (before + 1 if complete else before), instant
            assert infos[victim]["worker_restarted"]
            counts[victim] = 0


def test_workers_killed_between_the_wake_up_and_the_bell(teams: bool) -> None:
    kill_workers(50, INSTANTS + WAKING * teams, context="fork")


@pytest.mark.long
@pytest.mark.parametrize("context", ["forkserver", "fork"])
def test_many_workers_killed_between_the_wake_up_and_the_bell(context: str, teams: bool) -> None:
    kill_workers(250, INSTANTS + WAKING * teams, context=context, step_timeout=20)


def test_without_restarts_the_error_names_the_killed_worker(teams: bool) -> None:
    for instant in INSTANTS + WAKING * teams:
        with make() as envs:
            envs.reset()
            step(envs)
            envs.call("end_at", instant, env_ids=[1])
            if instant in COMPLETE:
                assert step(envs) == [2] * N, instant
            with pytest.raises(WorkerDiedError) as caught:
                step(envs)
            assert list(caught.value.env_indices) == [1], instant
            assert envs.closed


def test_an_idle_worker_that_was_killed_is_named() -> None:
    with make() as envs:
        envs.reset()
        step(envs)
        os.kill(envs.pids[3], signal.SIGKILL)
        with pytest.raises(WorkerDiedError) as caught:
            step(envs)
        assert list(caught.value.env_indices) == [3]


@pytest.mark.parametrize("mode", ["restart", "resume"])
def test_a_killed_worker_is_replaced_and_steps_are_common_again(mode: str) -> None:
    with make(on_worker_failure=mode) as envs:
        envs.reset()
        for _ in range(40):
            counts = step(envs)
        os.kill(envs.pids[3], signal.SIGKILL)
        others = np.arange(N) != 3
        for _ in range(5):
            expected = [count + 1 for count in counts]
            counts = step(envs)
            assert np.array(counts)[others].tolist() == np.array(expected)[others].tolist()
            if mode == "resume":
                assert counts == expected
        assert is_common(envs)


@pytest.mark.parametrize("mode", ["raise", "restart"])
@pytest.mark.parametrize("victim", [6, 1])
def test_a_stopped_worker_is_named_and_delays_no_other(victim: int, mode: str) -> None:
    with make(step_timeout=1.0, on_worker_failure=mode) as envs, ThreadPoolExecutor() as threads:
        envs.reset()
        step(envs)
        os.kill(envs.pids[victim], signal.SIGSTOP)
        envs.step_async([0] * N)
        left = threads.submit(waiting_workers, envs._ledger.common._codes, 1)
        if mode == "raise":
            with pytest.raises(WorkerTimeoutError) as caught:
                envs.step_wait()
            assert list(caught.value.env_indices) == [victim]
        else:
            _, _, _, truncated, _ = envs.step_wait()
            assert truncated.nonzero()[0].tolist() == [victim]
        assert left.result() == [victim]


def waiting_workers(codes: memoryview, wanted: int) -> list[int]:
    """Return which workers still wait when so few do, or after ten seconds."""
    deadline = time.monotonic() + 10
    while list(codes).count(common_step.WAITING) > wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    return [k for k, code in enumerate(codes) if code == common_step.WAITING]


def save_in_next_step(envs: Any, worker: int) -> None:
    """Let one worker save its environments in the next step, whose request uses its pipe."""
    for k, driver in enumerate(envs._ledger.drivers):
        driver._replay_log.next_save = -1 if k == worker else 10**9


def test_a_worker_that_saves_delays_no_other(tmp_path: Path) -> None:
    with make(on_worker_failure="resume") as envs, ThreadPoolExecutor() as threads:
        envs.reset()
        for _ in range(8):
            counts = step(envs)
        gate = tmp_path / "gate"
        envs.set_attr("gate", gate, env_ids=[0])
        save_in_next_step(envs, 0)
        envs.step_async([0] * N)
        left = threads.submit(waiting_workers, envs._ledger.common._codes, 0)
        left.add_done_callback(lambda _: gate.touch())
        assert envs.step_wait()[0][:, 0].tolist() == [count + 1 for count in counts]
        assert is_common(envs)
        assert left.result() == []


def test_a_worker_that_saves_wakes_no_other() -> None:
    with make(on_worker_failure="resume") as envs:
        envs.reset()
        for _ in range(8):
            counts = step(envs)
        envs.call("end_at", "before it wakes others", env_ids=[0])
        step(envs)
        pid = envs.pids[0]
        save_in_next_step(envs, 0)
        assert step(envs) == [count + 2 for count in counts]
        assert envs.pids[0] == pid


def test_closing_in_a_signal_handler_ends_the_step(teams: bool) -> None:
    envs = make()
    envs.reset()
    envs.call("value", seconds=0.5)
    step(envs)
    numbers = set(envs._ledger.common._counters)
    opened: set[int] = set()

    def close(*_: object) -> None:
        envs.close()
        while not numbers <= opened:
            opened.add(os.eventfd(0, os.EFD_NONBLOCK))

    previous = signal.signal(signal.SIGALRM, close)
    signal.setitimer(signal.ITIMER_REAL, 0.002 if teams else 0.2)
    with pytest.raises(ClosedVecEnvError):
        step(envs)
    signal.signal(signal.SIGALRM, previous)
    for fd in opened:
        with pytest.raises(BlockingIOError):  # nobody has written
            os.read(fd, 8)
        os.close(fd)


@pytest.mark.parametrize("workers", [N, N + 1, 31, 32, 33, 36, 37, 64, 128, 1000])
def test_each_team_is_woken_by_one_process(workers: int, teams: bool) -> None:
    memory = SharedMemory(reserved=0)
    common = common_step.open_common_step(memory, memory.allocate(workers, []), workers, 0.0, False)
    assert common is not None
    fds = [common.share_of(k)[0] for k in range(workers)]
    common.close()
    memory.close()
    assert len({tuple(each[:2]) for each in fds}) == 1  # tokens and bell
    own, woken = [tuple(each[2:4]) for each in fds], [tuple(each[4:]) for each in fds if each[4:]]
    assert sorted([own[0], *woken]) == sorted(set(own))
    assert all(pair == own[0] for pair in own[: len(woken)])
    largest = max(map(own.count, own))
    assert largest**2 >= workers > (largest - 1) ** 2 if teams or workers >= 32 else not woken


def test_a_worker_that_was_stopped_for_a_while_loses_no_step() -> None:
    with make() as envs:
        envs.reset()
        step(envs)
        for count, pid in enumerate(envs.pids, start=2):
            os.kill(pid, signal.SIGSTOP)
            envs.step_async([0] * N)
            time.sleep(0.02)
            os.kill(pid, signal.SIGCONT)
            assert envs.step_wait()[0].tolist() == [[count]] * N
            assert is_common(envs)


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("mode", ["raise", pytest.param("restart", marks=pytest.mark.long)])
def test_an_interrupt_at_any_instant_loses_and_repeats_no_step(mode: str, looks: bool) -> None:
    with make(on_worker_failure=mode) as envs:
        envs.reset()
        count = int(step(envs)[0])
        came, number = True, 0
        while came:
            with Instant(number, [FOLDER]) as instant:
                envs.step_async([0] * N)
                envs.step_wait()
            came, number = instant.came, number + 1
            if envs.waiting:
                assert not looks or envs._ledger.ready_by(time.monotonic() + 20), instant.place
                envs.step_wait()
            counts = envs.buf_obs[:, 0].tolist()
            assert counts in ([count] * N, [count + 1] * N), instant.place
            count = int(counts[0])
            assert list(envs.call("value")) == [None] * N
        assert number > 50
        count += 1
        assert step(envs) == [count] * N
        assert is_common(envs)


def test_an_interrupt_at_any_instant_of_a_restart_can_be_resumed() -> None:
    with make(on_worker_failure="restart", max_restarts=None) as envs:
        envs.reset()
        counts = np.array(step(envs))
        for number in range(0, 240, 6):
            victim = number % N
            envs.call("end_at", "in the step", env_ids=[victim])
            with Instant(number, [COMMON_STEP]):
                envs.step_async([0] * N)
                envs.step_wait()
            others = np.arange(N) != victim
            if envs.waiting:
                envs.step_wait()
            elif (envs.buf_obs[others, 0] == counts[others]).all():  # it came before the step
                envs.step([0] * N)
            counts += 1
            counts[victim] = 0
            assert envs.buf_obs[others, 0].tolist() == counts[others].tolist()
            for _ in range(2):
                counts += 1
                assert step(envs) == counts.tolist()


def test_a_forked_child_leaves_the_workers_alone() -> None:
    with make() as envs:
        envs.reset()
        step(envs)
        envs.step_async([0] * N)
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        assert envs.step_wait()[0].tolist() == [[2]] * N
        assert step(envs) == [3] * N


def test_what_is_closed_and_dropped_leaves_nothing_to_the_collector() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:xuance_envs")

    gc.collect()
    gc.disable()
    try:
        before = mapped()
        with make() as envs:
            envs.reset()
            step(envs)
            step(envs)
            assert mapped() > before
        del envs
        assert mapped() == before
    finally:
        gc.enable()


def test_systems_without_counters_have_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_step.system, "open_counters", lambda *_: None)
    with make() as envs:
        envs.reset()
        assert [step(envs), step(envs)] == [[1] * N, [2] * N]
        assert envs._ledger.common is None
