"""The contract: what may be asked when, what closing does, and what Ctrl-C leaves."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial

import pytest
from example_envs import ClosingEnv, DuckEnv, InterruptingEnv, NamedEnv

from xuance_envs.errors import AlreadySteppingError, ClosedVecEnvError, NotSteppingError
from xuance_envs.vector_envs import vector_env

ASKING = {
    "reset": lambda envs: envs.reset(),
    "partial reset": lambda envs: envs.reset(env_ids=[1]),
    "step": lambda envs: envs.step([0] * 5),
    "step_async": lambda envs: envs.step_async([0] * 5),
    "step_wait": lambda envs: envs.step_wait(),
    "call": lambda envs: envs.call("describe", "I am"),
    "get_attr": lambda envs: envs.get_attr("name"),
    "set_attr": lambda envs: envs.set_attr("name", 1),
    "render": lambda envs: envs.render(),
    "close": lambda envs: envs.close(),
}
"""Everything that can be asked of a vector environment."""

REFUSED = {
    "idle": {"step_wait": NotSteppingError},
    "stepping": dict.fromkeys(
        ["step", "step_async", "call", "get_attr", "set_attr", "render"], AlreadySteppingError
    ),
    "closed": dict.fromkeys([name for name in ASKING if name != "close"], ClosedVecEnvError),
}
"""What is refused in which state; all the rest is done."""

NAMED = [partial(NamedEnv, i) for i in range(5)]


def in_state(state, make):
    envs = make(NAMED)
    envs.reset()
    if state == "stepping":
        envs.step_async([0] * 5)
    if state == "closed":
        envs.close()
    return envs


@pytest.mark.parametrize("asked", ASKING)
@pytest.mark.parametrize("state", REFUSED)
def test_this_is_refused_in_that_state_and_all_else_is_done(make, state, asked):
    envs = in_state(state, make)
    error = REFUSED[state].get(asked)
    if error is None:
        ASKING[asked](envs)
    else:
        with pytest.raises(error):
            ASKING[asked](envs)


@pytest.mark.everywhere
@pytest.mark.parametrize("state", REFUSED)
def test_what_is_refused_changes_nothing(make, state):
    envs = in_state(state, make)
    waiting, closed = envs.waiting, envs.closed
    for asked, error in REFUSED[state].items():
        with pytest.raises(error):
            ASKING[asked](envs)
    assert (envs.waiting, envs.closed) == (waiting, closed)
    if state == "stepping":
        assert envs.step_wait()[0].tolist() == [[1, 1]] * 5
    if state == "idle":
        assert envs.step([0] * 5)[0].tolist() == [[1, 1]] * 5


@pytest.mark.parametrize("state", REFUSED)
def test_waiting_and_closed_say_which_state_it_is_in(make, state):
    envs = in_state(state, make)
    assert (envs.waiting, envs.closed) == (state == "stepping", state == "closed")


def test_wrong_arguments_are_refused_before_a_pending_step_is_waited_for(make):
    envs = in_state("stepping", make)
    with pytest.raises(ValueError, match="seed"):
        envs.reset(seed=[1, 2])
    assert envs.waiting
    envs.step_wait()


@pytest.mark.everywhere
def test_step_wait_can_be_had_only_once(make):
    envs = in_state("stepping", make)
    envs.step_wait()
    with pytest.raises(NotSteppingError):
        envs.step_wait()


def test_the_two_stepping_errors_can_be_imported_from_where_xuance_has_them():
    assert vector_env.AlreadySteppingError is AlreadySteppingError
    assert vector_env.NotSteppingError is NotSteppingError


# --- closing ------------------------------------------------------------------------------------


def closing(tmp_path):
    """Functions that make environments of which a second close is an error."""
    return [partial(ClosingEnv, tmp_path / str(i)) for i in range(5)]


def closed(tmp_path):
    return sorted(path.stem for path in tmp_path.glob("*.closed"))


@pytest.mark.everywhere("stepping")
@pytest.mark.parametrize("state", ["new", "idle", "stepping"])
def test_closing_closes_every_environment_once_and_leaves_no_process(make, tmp_path, state):
    envs = make(closing(tmp_path))
    if state != "new":
        envs.reset()
    if state == "stepping":
        envs.step_async([0] * 5)
    assert closed(tmp_path) == []
    for _ in range(2):
        envs.close()
        assert closed(tmp_path) == ["0", "1", "2", "3", "4"]
        assert envs.closed
        assert not envs.waiting
        assert multiprocessing.active_children() == []


@pytest.mark.everywhere
@pytest.mark.spawned
def test_closing_closes_the_environments_of_spawned_workers(make_on_all, tmp_path):
    envs = make_on_all(closing(tmp_path))
    envs.reset()
    envs.close()
    assert closed(tmp_path) == ["0", "1", "2", "3", "4"]
    assert multiprocessing.active_children() == []


def test_leaving_the_context_closes(make, tmp_path):
    with make(closing(tmp_path)) as envs:
        envs.reset()
        assert not envs.closed
    assert envs.closed
    assert closed(tmp_path) == ["0", "1", "2", "3", "4"]


def test_leaving_the_context_of_something_closed_is_harmless(make, tmp_path):
    with make(closing(tmp_path)) as envs:
        envs.close()
    assert envs.closed


def test_close_extras_is_called_once(make, monkeypatch):
    envs = make(NAMED)
    calls = []
    close_extras = envs.close_extras
    monkeypatch.setattr(envs, "close_extras", lambda: (calls.append(1), close_extras()))
    envs.close()
    envs.close()
    assert calls == [1]


def test_a_closed_one_can_still_be_looked_at(make):
    envs = make(NAMED)
    envs.reset()
    obs, *_, infos = envs.step([0] * 5)
    envs.close()
    assert envs.num_envs == 5
    assert envs.observation_space.shape == (2,)
    assert envs.buf_obs.tolist() == obs.tolist()
    assert envs.buf_infos is infos
    assert "closed" in repr(envs)


def test_environments_need_not_have_a_close(make):
    envs = make([DuckEnv] * 5)
    envs.reset()
    envs.close()
    assert envs.closed


# --- Ctrl-C -------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c():
    """Lets Ctrl-C raise KeyboardInterrupt, which it does not in a process in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interrupted(make, ctrl_c):
    """A vector environment that Ctrl-C hit in the middle of a step; reset once, never stepped."""
    envs = make([partial(InterruptingEnv, os.getpid())] * 5)
    envs.reset()
    envs.set_attr("armed", "step", env_ids=[1])
    with pytest.raises(KeyboardInterrupt):
        envs.step([10, 11, 12, 13, 14])
    return envs


def test_an_interrupted_step_is_still_pending(interrupted):
    assert interrupted.waiting
    assert not interrupted.closed
    with pytest.raises(AlreadySteppingError):
        interrupted.get_attr("armed")


@pytest.mark.everywhere
def test_an_interrupted_step_goes_on_with_step_wait(interrupted):
    obs, rewards, *_, infos = interrupted.step_wait()
    assert obs.tolist() == [[1, 1, action] for action in (10, 11, 12, 13, 14)]
    assert rewards.tolist() == [1] * 5
    assert [info["step"] for info in infos] == [1] * 5
    assert interrupted.get_attr("steps_ever") == (1,) * 5
    assert interrupted.step([7] * 5)[0].tolist() == [[1, 2, 7]] * 5


def test_an_interrupted_step_goes_on_with_reset(interrupted):
    assert interrupted.reset()[0].tolist() == [[2, 0, -1]] * 5
    assert interrupted.get_attr("steps_ever") == (1,) * 5
    assert interrupted.step([7] * 5)[0].tolist() == [[2, 1, 7]] * 5


@pytest.mark.everywhere
def test_an_interrupted_step_can_be_closed(interrupted):
    interrupted.close()
    assert interrupted.closed
    assert multiprocessing.active_children() == []


@pytest.mark.everywhere
@pytest.mark.parametrize(
    ("method", "call"),
    [("step", lambda envs: envs.call("step", 5)), ("reset", lambda envs: envs.reset())],
    ids=["step", "reset"],
)
def test_after_an_interrupt_every_answer_is_to_its_own_question(make, ctrl_c, method, call):
    envs = make([partial(InterruptingEnv, os.getpid())] * 5)
    envs.reset()
    envs.set_attr("armed", method, env_ids=[1])
    with pytest.raises(KeyboardInterrupt):
        call(envs)
    assert envs.get_attr("lengths") == ((3, 2),) * 5
    assert envs.reset()[0][:, 1:].tolist() == [[0, -1]] * 5
    assert envs.step([7] * 5)[0][:, 1:].tolist() == [[1, 7]] * 5
