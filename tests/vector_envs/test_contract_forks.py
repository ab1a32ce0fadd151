"""In a process that is forked, one whose environments are elsewhere is an error, and harmless."""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from faulty_envs import FaultyEnv

from xuance_envs import ClosedVecEnvError, SubprocVecEnv, WrongProcessError
from xuance_envs.compat.gymnasium import AsyncVectorEnv

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")

USES: dict[str, Callable[[Any], Any]] = {
    "step": lambda envs: envs.step([0, 0, 0]),
    "step_async": lambda envs: envs.step_async([0, 0, 0]),
    "step_wait": lambda envs: envs.step_wait(),
    "reset": lambda envs: envs.reset(seed=3),
    "partial reset": lambda envs: envs.reset(env_ids=[1]),
    "async_reset": lambda envs: envs.async_reset(),
    "send": lambda envs: envs.send([0, 0], [0, 1]),
    "recv": lambda envs: envs.recv(),
    "call": lambda envs: envs.call("method"),
    "get_attr": lambda envs: envs.get_attr("spec"),
    "set_attr": lambda envs: envs.set_attr("name", 3),
    "render": lambda envs: envs.render(),
    "statistics": lambda envs: envs.statistics(),
}
GYMNASIUM_USES: dict[str, Callable[[Any], Any]] = {
    **{name: USES[name] for name in ("step", "step_async", "step_wait", "call", "get_attr")},
    "reset": lambda envs: envs.reset(seed=3),
    "reset_async": lambda envs: envs.reset_async(),
    "reset_wait": lambda envs: envs.reset_wait(),
    "call_async": lambda envs: envs.call_async("method"),
    "call_wait": lambda envs: envs.call_wait(timeout=1),
    "set_attr": lambda envs: envs.set_attr("name", 3),
    "render": lambda envs: envs.render(),
}
SB3_USES: dict[str, Callable[[Any], Any]] = {
    **{name: USES[name] for name in ("step", "step_async", "step_wait", "get_attr", "set_attr")},
    "reset": lambda envs: envs.reset(),
    "env_method": lambda envs: envs.env_method("method"),
    "env_is_wrapped": lambda envs: envs.env_is_wrapped(gymnasium.Wrapper),
}
PENDING: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda envs: None,
    "a step": lambda envs: envs.step_async([0, 0, 0]),
    "what was sent": lambda envs: envs.send([0, 0, 0], [0, 1, 2]),
}


def in_a_fork(function: Callable[[], Any]) -> Any:
    """What a function returns in a process forked from this one."""
    with tempfile.TemporaryFile() as answer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads that libraries have started before
            child = os.fork()
        if child == 0:
            try:
                pickle.dump(function(), answer)
                answer.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        answer.seek(0)
        return pickle.load(answer)


def outcomes_in_a_fork(uses: dict[str, Callable[[Any], Any]], envs: Any) -> dict[str, Any]:
    """What comes of each use, where other files have got the numbers of the pipes."""

    def use_all() -> dict[str, Any]:
        files = [tempfile.TemporaryFile() for _ in range(64)]  # noqa: SIM115  # until the process ends
        outcomes: dict[str, Any] = {}
        for name, use in uses.items():
            try:
                outcomes[name] = type(use(envs)).__name__
            except Exception as error:
                outcomes[name] = error
        envs.close()
        assert all(os.fstat(file.fileno()).st_size == 0 for file in files)
        return outcomes

    outcomes: dict[str, Any] = in_a_fork(use_all)
    return outcomes


def check(outcomes: dict[str, Any]) -> None:
    kinds = {name: type(outcome) for name, outcome in outcomes.items()}
    assert kinds == dict.fromkeys(outcomes, WrongProcessError), outcomes
    (told,) = set(map(str, outcomes.values()))
    assert f"belongs to process {os.getpid()}, from which process" in told


@pytest.mark.everywhere
@pytest.mark.parametrize("pending", PENDING)
def test_there_it_can_be_used_for_nothing_and_trying_does_nothing(make: Any, pending: str) -> None:
    envs = make([FaultyEnv] * 3)
    envs.reset(seed=1)
    if make.backend.name.endswith("dummy"):  # is copied, and goes on in both
        assert in_a_fork(lambda: envs.step([0, 0, 0])[0])[:, 0].tolist() == [1.0] * 3
        assert envs.step([0, 0, 0])[0][:, 0].tolist() == [1.0] * 3
        return
    PENDING[pending](envs)
    check(outcomes_in_a_fork(USES, envs))
    assert not in_a_fork(lambda: envs.waiting)
    if pending == "nothing":
        batch = envs.step([0, 0, 0])
    else:
        batch = envs.step_wait() if pending == "a step" else envs.recv(min_envs=3)
    assert batch[0][:, 0].tolist() == [1.0] * 3


def test_so_it_is_with_restarts_and_what_is_shared_stays_as_it_is() -> None:
    options: dict[str, Any] = {"context": "forkserver", "in_series": 2, "caller_steps": True}
    with SubprocVecEnv([FaultyEnv] * 3, on_worker_failure="restart", **options) as envs:
        envs.reset(seed=1)
        envs.step_async([0, 0, 0])
        assert [driver.result() for driver in envs._groups.drivers[:-1]]  # the workers are done
        memory = envs._backend.settings.memory
        before = os.pread(memory.fd, os.fstat(memory.fd).st_size, 0)
        check(outcomes_in_a_fork(USES, envs))
        assert os.pread(memory.fd, os.fstat(memory.fd).st_size, 0) == before
        assert envs.step_wait()[0][:, 0].tolist() == [1.0] * 3


def test_a_closed_one_is_closed_there_too_and_a_new_one_can_be_made() -> None:
    envs = SubprocVecEnv([FaultyEnv], context="forkserver")
    envs.close()

    def use() -> Any:
        with SubprocVecEnv([FaultyEnv], context="fork") as own:
            steps = own.reset()[0], own.step([0])[0]
        with pytest.raises(ClosedVecEnvError):
            envs.reset()
        return [batch[0, 0] for batch in steps]

    assert in_a_fork(use) == [0.0, 1.0]


@pytest.mark.parametrize("pending", ["step_async", "reset_async", "call_async", None])
def test_so_it_is_with_gymnasiums_interface(pending: str | None) -> None:
    envs = AsyncVectorEnv([FaultyEnv] * 3, context="forkserver", caller_steps=True)
    envs.reset(seed=1)
    if pending is not None:
        GYMNASIUM_USES[pending](envs)
    check(outcomes_in_a_fork(GYMNASIUM_USES, envs))
    if pending is not None:
        getattr(envs, pending.replace("async", "wait"))()
    envs.close()


@pytest.mark.parametrize("pending", [True, False])
def test_so_it_is_with_stable_baselines3s_interface(pending: bool) -> None:
    pytest.importorskip("stable_baselines3")
    from xuance_envs.compat import sb3

    envs = sb3.SubprocVecEnv([FaultyEnv] * 3, caller_steps=True)
    envs.reset()
    if pending:
        envs.step_async([0, 0, 0])
    check(outcomes_in_a_fork(SB3_USES, envs))
    assert (envs.step_wait() if pending else envs.step([0, 0, 0]))[0][:, 0].tolist() == [1.0] * 3
    envs.close()
