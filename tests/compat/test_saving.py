"""States behind Gymnasium's and Stable-Baselines3's interfaces."""

from __future__ import annotations

import copy
import importlib
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from agents_envs import Herd
from comparing import assert_same
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from stateful_envs import Collector, of_length

from xuance_envs import (
    AlreadySteppingError,
    DummyVecEnv,
    MultiAgentVecEnv,
    StateError,
    StateMismatchError,
    compat,
    per_agent_rows,
)
from xuance_envs.compat import to_gymnasium
from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv
from xuance_envs.compat.native import make_native

N = 4


def env_fns() -> list[Callable[[], Any]]:
    return [lambda k=k: of_length(3 + k % 3) for k in range(N)]


def make(kind: str, mode: AutoresetMode) -> Any:
    if kind == "sync":
        return SyncVectorEnv(env_fns(), autoreset_mode=mode)
    return AsyncVectorEnv(env_fns(), autoreset_mode=mode, context="forkserver", in_series=3)


def played(envs: Any, steps: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(steps):
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            pending = envs._stepper.arrays.pending.copy()
            if pending.any():
                found.append(envs.reset(options={"reset_mask": pending}))
        found.append(envs.step(rng.integers(4, size=N)))
    return found


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(("kind", "other"), [("sync", "async"), ("async", "sync")])
def test_resets_that_are_pending_are_part_of_it(kind: str, other: str, mode: AutoresetMode) -> None:
    envs, others = make(kind, mode), make(other, mode)
    envs.reset(seed=1)
    others.reset(seed=7)
    played(others, 2)
    for _ in range(5):
        played(envs, 1)
        state = envs.save_state()
        pending = envs._stepper.arrays.pending.copy()
        expected = played(envs, 12, seed=1)
        obs, infos = others.load_state(state)
        assert obs.shape == (N, 3)
        assert infos["_trail"].any() or infos["_name"].any()
        assert_same(others._stepper.arrays.pending, pending)
        assert_same(played(others, 12, seed=1), expected)
        envs.load_state(state)
    envs.close()
    others.close()


def test_a_pending_reset_is_cloned() -> None:
    envs = make("async", AutoresetMode.NEXT_STEP)
    envs.reset(seed=1)
    played(envs, 3)
    assert envs._stepper.arrays.pending.tolist() == [True, False, False, True]
    envs.clone_state(0, range(N))
    assert envs._stepper.arrays.pending.all()
    obs, rewards, *_ = envs.step([0, 1, 2, 3])
    assert_same(list(obs), [obs[0]] * N)
    assert (rewards == 0).all()
    envs.close()


def test_a_reset_that_is_pending_needs_the_same_mode() -> None:
    with_next, same = make("sync", AutoresetMode.NEXT_STEP), make("sync", AutoresetMode.SAME_STEP)
    with_next.reset(seed=1)
    same.reset(seed=1)
    played(with_next, 3)
    with pytest.raises(
        StateMismatchError, match="saved in autoreset mode 'next step' while a reset was pending"
    ):
        same.load_state(with_next.save_state())
    same.load_state(with_next.save_state([1]), env_ids=[1])
    with_next.close()
    same.close()


def test_what_is_pending_refuses_it() -> None:
    envs = make("async", AutoresetMode.SAME_STEP)
    envs.reset(seed=1)
    state = envs.save_state()
    envs.step_async([0] * N)
    with pytest.raises(AlreadyPendingCallError):
        envs.save_state()
    envs.step_wait()
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.load_state(state)


def test_engines_that_step_all_at_once_are_refused() -> None:
    pytest.importorskip("ale_py.vector_env", reason="ale-py has it from 0.11 on")
    gymnasium.register_envs(importlib.import_module("ale_py"))
    with make_native("ALE/Breakout-v5", 2) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateError, match=r"^AtariVectorEnv does not expose the states"):
            envs.save_state()
        with pytest.raises(StateError, match="does not expose the states"):
            envs.clone_state(0, 1)


@pytest.mark.parametrize("before", ["DummyVecEnv", "SubprocVecEnv"])
def test_stable_baselines3s_go_on_with_what_they_keep(before: str) -> None:
    sb3 = pytest.importorskip("xuance_envs.compat.sb3")
    after = {"DummyVecEnv": "SubprocVecEnv", "SubprocVecEnv": "DummyVecEnv"}[before]
    envs, others = getattr(sb3, before)([Collector] * 3), getattr(sb3, after)([Collector] * 3)
    envs.seed(1)
    envs.reset()
    others.reset()
    for _ in range(9):
        envs.step(np.array([1, 2, 3]))
    envs.seed(5)
    state = envs.save_state()

    def go(those: Any) -> list[Any]:
        found = []
        for _ in range(9):
            obs, rewards, dones, infos = those.step(np.array([3, 0, 1]))
            found.append((obs, rewards.astype(np.float32), dones, list(infos)))
        return [*found, those.reset(), list(those.reset_infos)]

    expected = go(envs)
    _, infos = others.load_state(state)
    assert len(infos) == 3
    assert_same(go(others), expected)
    envs.load_state(state)
    assert_same(
        list(envs.clone_state(0, [1, 2])[0]), [envs._stepper.arrays.observations.copy()[0]] * 3
    )
    envs.reset_infos[1]["own"] = True
    assert ["own" in info for info in envs.reset_infos] == [False, True, False]
    envs.step_async(np.array([1, 2, 3]))
    if before == "SubprocVecEnv":
        with pytest.raises(AlreadySteppingError):
            envs.save_state()
    envs.step_wait()
    envs.close()
    others.close()


def make_other(kind: str) -> Any:
    if kind in ("sync", "async"):
        return make(kind, AutoresetMode.SAME_STEP)
    if kind == "rows":
        return per_agent_rows(MultiAgentVecEnv([Herd], backend="dummy"))
    if kind == "multi-agent":
        return MultiAgentVecEnv([Herd], backend="dummy")
    if kind == "to_gymnasium":
        return to_gymnasium(DummyVecEnv(env_fns()))
    name, module = kind.split()
    pytest.importorskip({"sb3": "stable_baselines3"}.get(module, module))
    if name == "to_sb3":
        return compat.to_sb3(DummyVecEnv(env_fns()))
    return getattr(importlib.import_module(f"xuance_envs.compat.{module}"), name)(env_fns())


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize(
    "kind",
    [
        *("sync", "async", "rows", "multi-agent", "to_gymnasium"),
        *("to_sb3 sb3", "DummyVecEnv sb3", "SubprocVecEnv sb3", "DummyVectorEnv tianshou"),
    ],
)
def test_they_are_neither_pickled_nor_copied(
    closing: Any, kind: str, copied: Callable[[Any], Any]
) -> None:
    envs = closing(make_other(kind))
    said = f"cannot pickle or copy {type(envs).__name__}; create a new one from the environment"
    with pytest.raises(TypeError, match=said) as caught:
        copied(envs)
    assert ("save_state" in str(caught.value)) == hasattr(envs, "save_state")
