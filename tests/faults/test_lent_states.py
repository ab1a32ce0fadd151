"""Large states, which worker processes are lent in the memory they share: none stays there."""

from __future__ import annotations

import gc
import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from comparing import assert_same
from gymnasium.wrappers import OrderEnforcing
from interrupts import Instant
from stateful_envs import Collector, Heavy, scaled_by

import xuance_envs
from xuance_envs import StateError, StateMismatchError, SubprocVecEnv, WorkerDiedError
from xuance_envs.engine import saving
from xuance_envs.engine.group.group_states import GroupStates
from xuance_envs.engine.process.channel import Channel
from xuance_envs.engine.process.process_backend import TRANSFER_THRESHOLD
from xuance_envs.engine.process.shared_memory import ALIGNMENT, SharedMemory
from xuance_envs.engine.system.current import system

PACKAGE = Path(xuance_envs.__file__).parent
N = 6


def subproc(fns: list[Any], **options: Any) -> SubprocVecEnv:
    return SubprocVecEnv(fns, in_series=2, context="forkserver", **options)


def shared_bytes(envs: SubprocVecEnv) -> int:
    """Bytes of shared memory, where the next part would begin."""
    return -(-os.fstat(envs._groups.backend.settings.memory.fd).st_size // ALIGNMENT) * ALIGNMENT


@pytest.fixture
def in_pipes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the bytes that go through pipes, in requests and in replies."""
    counted: list[int] = []
    ask, answer = Channel.send, Channel.wait_reply

    def counting_ask(self: Channel, message: bytes, *rest: Any) -> None:
        counted.append(len(message))
        ask(self, message, *rest)

    def counting_answer(self: Channel, *rest: Any) -> Any:
        found = answer(self, *rest)
        counted.append(len(found[1]))
        return found

    monkeypatch.setattr(Channel, "send", counting_ask)
    monkeypatch.setattr(Channel, "wait_reply", counting_answer)
    return counted


@pytest.mark.parametrize("caller_steps", [False, True])
def test_they_do_not_go_through_pipes_and_leave_nothing(
    in_pipes: list[int], caller_steps: bool
) -> None:
    with subproc([Heavy] * N, caller_steps=caller_steps) as envs:
        envs.reset(seed=1)
        before = shared_bytes(envs)
        del in_pipes[:]
        obs, _ = envs.clone_state(3, range(N))
        assert_same(list(obs), [obs[3]] * N)
        envs.clone_state([5, 4, 3, 2, 1, 0], range(N))
        envs.load_state(envs.save_state())
        assert sum(in_pipes) < TRANSFER_THRESHOLD
        assert shared_bytes(envs) == before


def test_batches_of_saved_ones_take_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    allocate = SharedMemory.allocate

    def noted(memory: SharedMemory, *given: Any) -> int:
        starts.append(allocate(memory, *given))
        return starts[-1]

    monkeypatch.setattr(saving, "_BATCH_BYTES", 1)
    with subproc([Heavy] * N) as envs:
        envs.reset(seed=1)
        monkeypatch.setattr(SharedMemory, "allocate", noted)
        envs.save_state()
    assert starts == starts[:1] * N


def test_small_ones_go_with_their_command() -> None:
    with subproc([Collector] * N) as envs:
        envs.reset(seed=1)
        state_transfer = envs._groups.saver.transfer
        state_transfer.allocate = state_transfer.export = None  # type: ignore[assignment]  # so that it would fail
        envs.clone_state(3, range(N))
        envs.load_state(envs.save_state())


def test_each_is_written_once_for_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    pwrite = os.pwrite
    with subproc([Heavy] * N) as envs:
        envs.reset(seed=1)
        state = envs.save_state([2])

        def counting(fd: int, data: Any, at: int) -> int:
            written.append(len(data))
            return pwrite(fd, data, at)

        monkeypatch.setattr(system, "pwrite", counting)
        envs.load_state(state[[0] * N])
        assert sum(written) == len(state.envs[0].env)


def test_one_that_does_not_fit_an_environment_leaves_nothing() -> None:
    fns = [partial(wrapped, 2)] * 5 + [lambda: OrderEnforcing(wrapped(2))]
    with subproc(fns) as envs:
        envs.reset(seed=1)
        before = shared_bytes(envs)
        with pytest.raises(StateMismatchError, match="environment 5"):
            envs.clone_state(0, range(N))
        assert shared_bytes(envs) == before
        envs.clone_state(0, range(5))


def wrapped(factor: int) -> Any:
    env = scaled_by(factor)
    env.unwrapped.ballast = list(range(1 << 16))
    return env


def test_too_little_memory_for_them_is_said_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subproc([Heavy] * N) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        monkeypatch.setattr(system, "available_memory", lambda: 1000)
        monkeypatch.setattr("xuance_envs.engine.process.process_backend.UNCHECKED_BYTES", 100_000)
        with pytest.raises(MemoryError, match=r"states .* need 5\d\d,\d{3} bytes .* 1,000 are"):
            envs.clone_state(0, 5)
        monkeypatch.undo()
        assert envs.save_state() == state


class Watching(Heavy):
    """Knows what the group that it is in keeps of states."""

    def kept(self) -> int:
        gc.collect()
        groups = [each for each in gc.get_objects() if issubclass(type(each), GroupStates)]
        kept = [vars(each)[name] for each in groups for name in ("_kept", "_outgoing", "_prepared")]
        return sum(map(len, kept))


class Other(Watching):
    """Is another environment."""


@pytest.mark.parametrize("what", ["save_state", "clone_state"])
def test_workers_keep_nothing_after_an_error(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with subproc([Watching] * N) as envs:
        envs.reset(seed=1)
        monkeypatch.setattr(system, "available_memory", lambda: 1000)
        monkeypatch.setattr("xuance_envs.engine.process.process_backend.UNCHECKED_BYTES", 100_000)
        with pytest.raises(MemoryError):
            envs.clone_state([0, 1, 2], [1, 0, 4]) if what == "clone_state" else envs.save_state()
        assert envs.call("kept") == (0,) * N
        monkeypatch.undo()
        envs.clone_state([0, 1, 2], [1, 0, 4])
        assert envs.call("kept") == (0,) * N


def test_groups_keep_nothing_after_a_refusal() -> None:
    with subproc([Watching] * 4 + [Other] * 2, caller_steps=True) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateMismatchError, match="environment 4"):
            envs.clone_state([0, 3, 2, 2], [1, 2, 3, 4])
        assert envs.call("kept") == (0,) * 6


class Heavier(Heavy):
    """Has a fingerprint of its own."""


def test_what_is_saved_comes_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    extend = SharedMemory.allocate

    def counting(self: SharedMemory, nbytes: int, *rest: Any) -> int:
        sizes.append(nbytes)
        return extend(self, nbytes, *rest)

    with subproc([Heavy, Heavier] * (N // 2)) as envs:
        envs.reset(seed=1)
        before = shared_bytes(envs)
        whole = envs.save_state()
        one = len(whole.envs[0].env)
        monkeypatch.setattr(SharedMemory, "allocate", counting)
        for most, turns in ((10 * one, [6]), (5 * one // 2, [2, 2, 2]), (9, [1] * 6)):
            del sizes[:]
            monkeypatch.setattr("xuance_envs.engine.saving._BATCH_BYTES", most)
            assert envs.save_state() == whole
            assert [round(size / one) for size in sizes] == turns
            assert shared_bytes(envs) == before
        envs.load_state(whole)  # with the fingerprint of each


SAVING = "save_states", "copy_saved_states"


@pytest.mark.parametrize("command", [*SAVING, "prepare_states", "load_states"])
@pytest.mark.parametrize("mode", ["raise", "restart", "resume"])
def test_a_worker_that_is_killed_in_between_leaves_nothing(command: str, mode: str) -> None:
    how: dict[str, Any] = {} if mode == "raise" else {"on_worker_failure": mode}
    envs = subproc([Heavy] * N, **how)
    envs.reset(seed=1)
    before = shared_bytes(envs)
    driver = envs._groups.drivers[1]
    ask, killed = driver.submit, list[int]()

    def killing(tag: int, packed: Any) -> None:
        name = packed[0] if mode == "raise" else packed[0][0]
        if name == command and not killed:
            killed.append(envs.pids[1])
            os.kill(killed[0], signal.SIGKILL)
        ask(tag, packed)

    driver.submit = killing  # type: ignore[method-assign]
    try:
        if mode == "raise":
            with pytest.raises(WorkerDiedError):
                envs.clone_state(3, range(N))
        else:
            losses = (WorkerDiedError, StateError) if command in SAVING else ()
            with suppress(*losses):
                obs, _ = envs.clone_state(3, range(N))
                assert_same(list(obs), [obs[3]] * N)
            del driver.submit
            assert killed
            assert shared_bytes(envs) == before
            if mode == "restart" and command in SAVING:
                with pytest.raises(StateError, match="the next step will truncate its episode"):
                    envs.clone_state(3, range(N))
                assert shared_bytes(envs) == before
                envs.step(envs.sample_actions())
            obs, _ = envs.clone_state(3, range(N))
            assert_same(list(obs), [obs[3]] * N)
            assert shared_bytes(envs) == before
    finally:
        envs.close()


@pytest.mark.parametrize("where", ["", "process/shared_memory.py", "process/process_backend.py"])
def test_an_interrupt_leaves_nothing_for_long(where: str) -> None:
    with subproc([Watching] * N) as envs:
        envs.reset(seed=1)
        before = shared_bytes(envs)
        number, came = 0, True
        while came:
            with Instant(number, [str(PACKAGE / "engine" / where)]) as instant:
                envs.clone_state(3, range(N))
            came, number = instant.came, number + (1 if where else number // 4 + 3)
            assert envs.call("kept") == (0,) * N
            assert shared_bytes(envs) == before
            obs, _ = envs.clone_state(0, range(N))
            assert_same(list(obs), [obs[0]] * N)
            assert shared_bytes(envs) == before
