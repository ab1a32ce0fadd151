"""The contract: what an environment raises reaches the caller, with where it came from."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
from contextlib import nullcontext
from functools import partial

import pytest
from backends import QUICK_START
from example_envs import (
    ClosingEnv,
    FailingEnv,
    OwnError,
    ReusingEnv,
    UnloadableError,
    UnpicklableError,
)

from xuance_envs.errors import ClosedVecEnvError, EnvError
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv


def failing(command, make_error=lambda: ValueError("as told"), at=3):
    """Functions that make five environments, of which one fails."""
    env_fns = [partial(FailingEnv, "nothing")] * 5
    env_fns[at] = partial(FailingEnv, command, make_error)
    return env_fns


def reset(envs):
    envs.reset()


def step(envs):
    envs.reset()
    envs.step([0] * 5)


def step_in_halves(envs):
    envs.reset()
    envs.step_async([0] * 5)
    envs.step_wait()


def step_to_an_end(envs):
    envs.reset()
    envs.step([0] * 5)
    envs.step([0] * 5)


def reset_during_a_step(envs):
    envs.reset()
    envs.step_async([0] * 5)
    envs.reset()


CLOSING = {
    "reset": ("reset", reset, "reset"),
    "partial reset": ("reset", lambda envs: envs.reset(env_ids=[1, 3]), "reset"),
    "automatic reset": ("auto-reset", step_to_an_end, "reset"),
    "step": ("step", step, "step"),
    "step in two halves": ("step", step_in_halves, "step"),
    "step that a reset waits for": ("step", reset_during_a_step, "step"),
}
"""Where it fails, what to do about that, and the command the error names."""

HARMLESS = {
    "render": ("render", lambda envs: envs.render(), "render"),
    "call": ("call", lambda envs: envs.call("method"), "call"),
    "get_attr": ("get_attr", lambda envs: envs.get_attr("attribute"), "get_attr"),
    "set_attr": ("set_attr", lambda envs: envs.set_attr("writable", 1), "set_attr"),
}

EVERYWHERE = {**CLOSING, **HARMLESS}


def names(folder, what):
    """Of which environments there is a note that they were made, or closed."""
    return {path.stem for path in folder.glob(f"*.{what}")}


def error_of(envs, act):
    with pytest.raises(EnvError) as caught:
        act(envs)
    return caught.value


# --- what the error says ------------------------------------------------------------------------


@pytest.mark.everywhere("automatic reset", "step in two halves", "set_attr")
@pytest.mark.parametrize(("where", "act", "command"), EVERYWHERE.values(), ids=EVERYWHERE)
def test_the_error_has_the_index_the_command_the_traceback_and_the_cause(make, where, act, command):
    error = error_of(make(failing(where)), act)
    assert error.env_index == 3
    assert error.command == command
    assert "ValueError: as told" in error.env_traceback
    assert "in fail_at" in error.env_traceback, "it should lead into the environment"
    assert type(error.__cause__) is ValueError
    assert error.__cause__.args == ("as told",)


@pytest.mark.everywhere
@pytest.mark.spawned
def test_so_it_has_from_workers_that_were_spawned(make_on_all):
    error = error_of(make_on_all(failing("step", partial(OwnError, 42))), step)
    assert (error.env_index, error.command) == (3, "step")
    assert "OwnError: 42" in error.env_traceback
    assert type(error.__cause__) is OwnError
    assert error.__cause__.code == 42
    loaded = pickle.loads(pickle.dumps(error))
    assert (loaded.env_index, loaded.env_traceback) == (3, error.env_traceback)


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_the_index_is_that_of_the_environment_wherever_it_lives(make, at):
    assert error_of(make(failing("step", at=at)), step).env_index == at
    assert error_of(make(failing("render", at=at)), lambda envs: envs.render()).env_index == at


def test_the_error_reads_well(make):
    error = error_of(make(failing("step")), step)
    assert str(error).startswith("environment 3 failed in 'step': ValueError: as told")
    # The cause of an error of this process has its traceback, which Python shows by itself.
    assert error.__cause__.__traceback__ is not None or error.env_traceback.rstrip() in str(error)


@pytest.mark.parametrize(("where", "act", "command"), EVERYWHERE.values(), ids=EVERYWHERE)
@pytest.mark.parametrize(
    "make_error",
    [partial(UnpicklableError, "odd"), partial(UnloadableError, "odd", "even")],
    ids=["unpicklable", "unloadable"],
)
def test_an_exception_that_cannot_be_sent_is_reported_all_the_same(
    make_either, where, act, command, make_error
):
    error = error_of(make_either(failing(where, make_error)), act)
    assert (error.env_index, error.command) == (3, command)
    assert "odd" in str(error)
    assert f"{make_error.func.__name__}: odd" in error.env_traceback


@pytest.mark.parametrize(("where", "act", "command"), EVERYWHERE.values(), ids=EVERYWHERE)
def test_an_environment_that_exits_has_failed(make_either, where, act, command):
    error = error_of(make_either(failing(where, partial(SystemExit, 3))), act)
    assert (error.env_index, error.command) == (3, command)
    assert "SystemExit" in str(error)


class OwnBaseError(BaseException):
    """Of those that no program expects to be raised by what it calls."""


@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit, OwnBaseError])
@pytest.mark.parametrize(("where", "act", "command"), EVERYWHERE.values(), ids=EVERYWHERE)
def test_an_exception_that_is_no_exception_is_the_environments_all_the_same(
    make_either, where, act, command, kind
):
    error = error_of(make_either(failing(where, kind)), act)
    assert (error.env_index, error.command) == (3, command)
    assert kind.__name__ in str(error)


def test_an_interrupt_that_an_environment_in_a_worker_raises_is_not_the_callers():
    with (
        SubprocVecEnv(failing("step", KeyboardInterrupt), in_series=5, context=QUICK_START) as envs,
        pytest.raises(
            EnvError, match="environment 3 failed in 'step': KeyboardInterrupt"
        ) as caught,
    ):
        step(envs)
    assert type(caught.value.__cause__) is KeyboardInterrupt


def test_a_signal_handler_that_ends_the_program_is_no_failure_of_an_environment():
    def handler(*_):
        raise SystemExit(143)

    envs = DummyVecEnv([ReusingEnv, partial(TerminatingEnv, signal.SIGUSR1)])
    envs.reset()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(SystemExit):
            envs.step([5, 6])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert envs.waiting
    assert envs.step_wait()[0].tolist() == [[1, 1, 5], [1, 1, 6]]
    envs.close()


class TerminatingEnv(ReusingEnv):
    """Sends its own process a signal in its first step."""

    def __init__(self, signum):
        super().__init__()
        self.signum = signum

    def step(self, action):
        if self.signum is not None:
            signum, self.signum = self.signum, None
            os.kill(os.getpid(), signum)
        return super().step(action)


@pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt])
def test_all_are_closed_whatever_one_raises_in_close(tmp_path, error):
    class Odd(ClosingEnv):
        def close(self):
            super().close()
            raise error

    kinds = [ClosingEnv, Odd, ClosingEnv]
    envs = DummyVecEnv([partial(kind, tmp_path / str(i)) for i, kind in enumerate(kinds)])
    expected = pytest.raises(error) if error is KeyboardInterrupt else nullcontext()
    with expected:
        envs.close()
    assert names(tmp_path, "closed") == {"0", "1", "2"}


@pytest.mark.parametrize("kind", [StopIteration, KeyError, IndexError, TypeError, MemoryError])
@pytest.mark.parametrize("where", ["step", "auto-reset"])
def test_no_exception_of_an_environment_is_mistaken_for_another(make_either, where, kind):
    error = error_of(make_either(failing(where, kind)), step_to_an_end)
    assert error.env_index == 3
    assert type(error.__cause__) is kind


def test_an_attribute_error_inside_a_method_is_not_a_missing_method(make):
    envs = make(failing("call", partial(AttributeError, "within")))
    error = error_of(envs, lambda envs: envs.call("method"))
    assert (error.env_index, error.command) == (3, "call")
    assert type(error.__cause__) is AttributeError


def test_of_several_that_fail_one_is_reported(make):
    envs = make([partial(FailingEnv, "step")] * 5)
    error = error_of(envs, step)
    assert error.env_index in range(5)
    assert envs.closed


# --- what it leaves behind ----------------------------------------------------------------------


@pytest.mark.everywhere("partial reset", "step that a reset waits for")
@pytest.mark.parametrize(("where", "act", "command"), CLOSING.values(), ids=CLOSING)
def test_after_an_exception_in_reset_or_step_it_is_closed(make, where, act, command):
    envs = make(failing(where))
    error_of(envs, act)
    assert envs.closed
    assert not envs.waiting
    assert multiprocessing.active_children() == []
    with pytest.raises(ClosedVecEnvError):
        envs.reset()
    envs.close()


@pytest.mark.spawned
def test_after_an_exception_in_step_nothing_of_a_spawned_worker_is_left(make_on_all):
    envs = make_on_all(failing("step"))
    error_of(envs, step)
    assert envs.closed
    assert multiprocessing.active_children() == []


@pytest.mark.everywhere("call")
@pytest.mark.parametrize(("where", "act", "command"), HARMLESS.values(), ids=HARMLESS)
def test_after_an_exception_in_anything_else_it_is_usable_as_before(make, where, act, command):
    envs = make(failing(where))
    envs.reset()
    for round_ in range(1, 4):
        error_of(envs, act)
        assert not envs.closed
        assert not envs.waiting
        assert envs.get_attr("steps_ever") == (round_ - 1,) * 5
        assert envs.step([7] * 5)[0][:, 2].tolist() == [7] * 5
    for healthy in [0, 2], [4], [1, 0]:
        assert envs.call("reset", env_ids=healthy)[0][1]["step"] == 0


@pytest.mark.everywhere
def test_the_others_do_what_was_asked_of_them_where_one_fails(make):
    envs = make(failing("call", at=0))
    error_of(envs, lambda envs: envs.call("method"))
    assert envs.call("method", env_ids=[1, 2, 3, 4]) == ("called",) * 4


@pytest.mark.everywhere
def test_an_environment_that_fails_to_close_keeps_nothing_open(make, tmp_path):
    env_fns = [partial(ClosingEnv, tmp_path / str(i)) for i in range(5)]
    env_fns[3] = partial(FailingEnv, "close")
    envs = make(env_fns)
    envs.reset()
    envs.close()
    assert envs.closed
    assert names(tmp_path, "closed") == {"0", "1", "2", "4"}
    assert multiprocessing.active_children() == []


# --- the constructor ----------------------------------------------------------------------------


@pytest.mark.everywhere("3")
@pytest.mark.spawned("3")
@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_an_exception_in_the_constructor_names_the_environment(make_on_all, at):
    with pytest.raises(EnvError) as caught:
        make_on_all(failing("construct", partial(OwnError, 7), at=at))
    error = caught.value
    assert (error.env_index, error.command) == (at, "construct")
    assert "OwnError: 7" in error.env_traceback
    assert "in __init__" in error.env_traceback
    assert type(error.__cause__) is OwnError
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "make_error",
    [
        partial(UnpicklableError, "odd"),
        partial(UnloadableError, "odd", "e"),
        partial(SystemExit, 3),
    ],
    ids=["unpicklable", "unloadable", "exit"],
)
def test_an_odd_exception_in_the_constructor_is_reported_all_the_same(make, make_error):
    with pytest.raises(EnvError) as caught:
        make(failing("construct", make_error))
    assert (caught.value.env_index, caught.value.command) == (3, "construct")
    assert make_error.func.__name__ in str(caught.value)
    assert multiprocessing.active_children() == []


@pytest.mark.everywhere
def test_environments_made_before_one_failed_are_closed(make, tmp_path):
    env_fns = [partial(ClosingEnv, tmp_path / str(i)) for i in range(5)]
    env_fns[3] = partial(FailingEnv, "construct")
    with pytest.raises(EnvError):
        make(env_fns)
    assert names(tmp_path, "made") >= {"0", "1", "2"}
    assert names(tmp_path, "closed") == names(tmp_path, "made")


def test_the_context_manager_closes_after_any_exception(make):
    envs = make([ReusingEnv] * 5)

    def fail():
        with envs:
            envs.reset()
            raise OwnError(1)

    with pytest.raises(OwnError):
        fail()
    assert envs.closed
    assert multiprocessing.active_children() == []
