"""Wrong guesses of newcomers, by program, and the answer to each: what to write instead."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from xuance_envs import (
    ClosedVecEnvError,
    DummyVecEnv,
    EnvError,
    EnvStates,
    Gym_Env,
    MultiAgentVecEnv,
    NotResetError,
    NotSteppingError,
    StateError,
    SubprocVecEnv,
    SubprocVecEnv_Gym,
    ThreadVecEnv,
    VecEnv,
    make_multi_agent_vec,
    make_vec,
)


class Walk(gym.Env):
    """A random walk on a line."""

    observation_space = gym.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {"score": 1}


class LegacyReset(Walk):
    def reset(self, **given: Any) -> Any:
        return super().reset(**given)[0]


class LegacyStep(Walk):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


def walks(kind: type[Walk] = Walk, *, reset: bool = True) -> VecEnv:
    envs = DummyVecEnv([kind] * 4)
    if reset:
        envs.reset(seed=0)
    return envs


def closed() -> VecEnv:
    envs = walks()
    envs.close()
    return envs


def shared() -> VecEnv:
    env = Walk()
    return DummyVecEnv([lambda: env] * 2)


Guess = tuple[Callable[[], Any], type[Exception], str]

OWN_ENVIRONMENT: dict[str, Guess] = {
    "a class": (lambda: SubprocVecEnv(Walk), TypeError, "expected a list of functions"),
    "instances": (
        lambda: SubprocVecEnv([Walk()] * 4),
        TypeError,
        "env_fns[0]: expected a callable that returns an environment",
    ),
    "one instance for all": (shared, ValueError, "each function must create a new environment"),
    "workers second": (lambda: SubprocVecEnv([Walk] * 4, 2), TypeError, "mean num_workers=2?"),
    "workers second, XuanCe's class": (
        lambda: SubprocVecEnv_Gym([Walk] * 4, 2),
        ValueError,
        "did you mean num_workers=2?",
    ),
    "num_worker": (
        lambda: SubprocVecEnv([Walk] * 4, num_worker=2),
        TypeError,
        "did you mean 'num_workers'?",
    ),
    "n_workers": (
        lambda: SubprocVecEnv_Gym([Walk] * 4, n_workers=2),
        TypeError,
        "did you mean 'num_workers'?",
    ),
    "num_threads": (
        lambda: ThreadVecEnv([Walk] * 4, num_threads=2),
        TypeError,
        "did you mean 'num_workers'?",
    ),
    "num_envs": (
        lambda: SubprocVecEnv_Gym(Walk, num_envs=4),
        TypeError,
        "env_fns has one function per environment: [make_env] * num_envs",
    ),
    "two splits": (
        lambda: SubprocVecEnv([Walk] * 4, num_workers=2, in_series=2),
        ValueError,
        "got in_series=2, num_workers=2",
    ),
    "too many workers": (
        lambda: SubprocVecEnv([Walk] * 4, num_workers=9),
        ValueError,
        "num_workers: expected an int from 1 to 4",
    ),
    "reboot": (
        lambda: SubprocVecEnv([Walk] * 4, on_worker_failure="reboot"),
        ValueError,
        "expected 'raise', 'restart' or 'resume'",
    ),
    "step before reset": (
        lambda: walks(reset=False).step([0] * 4),
        NotResetError,
        "environments 0 to 3 have not been reset; call reset() first",
    ),
    "one environment's action": (
        lambda: walks().step(walks().action_space.sample()),
        ValueError,
        "envs.sample_actions() returns one per environment",
    ),
    "too few actions": (
        lambda: walks().step(np.zeros(3, int)),
        ValueError,
        "actions for 4 environments: expected shape (4,), got shape (3,)",
    ),
    "infos as a dict": (
        lambda: walks().step([0] * 4)[4]["score"],
        TypeError,
        "infos.column('score')",
    ),
    "a legacy reset": (
        lambda: walks(LegacyReset),
        EnvError,
        "environment 0 failed in 'reset': reset: expected a tuple (observation, info)",
    ),
    "a legacy step": (
        lambda: walks(LegacyStep).step([0] * 4),
        EnvError,
        "use Gym_Env(..., library='gym') for environments of legacy gym",
    ),
    "a class in make_vec": (
        lambda: make_vec(Walk, 4),
        TypeError,
        "pass functions that create them to SubprocVecEnv, ThreadVecEnv or DummyVecEnv",
    ),
    "an option in make_vec": (
        lambda: make_vec("CartPole-v1", 4, backend="subproc", in_series=2),
        TypeError,
        "use vector_kwargs={'in_series': 2}",
    ),
    "a misspelt id": (
        lambda: make_vec("CartPol-v1", 4, backend="dummy"),
        EnvError,
        "Did you mean: `CartPole`?",
    ),
    "another backend": (
        lambda: make_vec("CartPole-v1", 4, backend="process"),
        ValueError,
        "expected one of 'auto', 'dummy', 'thread', 'subproc'",
    ),
    "Gymnasium's mode": (
        lambda: make_vec("CartPole-v1", 4, backend="async"),
        ValueError,
        "got 'async'; did you mean 'subproc'?",
    ),
    "threads": (
        lambda: make_vec("CartPole-v1", 4, backend="threads"),
        ValueError,
        "got 'threads'; did you mean 'thread'?",
    ),
    "recv before send": (
        lambda: walks().recv(),
        NotSteppingError,
        "call async_reset() or send(actions, env_ids) first",
    ),
}

RESUME: dict[str, Guess] = {
    "save with a path": (
        lambda: walks().save_state("envs.state"),
        ValueError,
        "use save_state().save('envs.state')",
    ),
    "load a path": (
        lambda: walks().load_state("envs.state"),
        TypeError,
        "EnvStates.load('envs.state') reads a file",
    ),
    "load bytes": (
        lambda: walks().load_state(b""),
        TypeError,
        "EnvStates.from_bytes reads bytes",
    ),
    "another file": (
        lambda: EnvStates.load(__file__),
        StateError,
        "test_wrong_guesses.py: expected the output of EnvStates.to_bytes",
    ),
    "another number of environments": (
        lambda: walks().load_state(walks().save_state([0, 1])),
        ValueError,
        "expected states of 4 environments, got 2",
    ),
    "pickle": (lambda: pickle.dumps(walks()), TypeError, "use save_state()"),
    "deepcopy": (lambda: copy.deepcopy(walks()), TypeError, "cannot pickle or copy DummyVecEnv"),
    "after close": (lambda: closed().step([0] * 4), ClosedVecEnvError, "create a new one"),
}


@pytest.mark.parametrize("guess", OWN_ENVIRONMENT)
def test_of_an_own_environment(guess: str) -> None:
    check(OWN_ENVIRONMENT[guess])


@pytest.mark.parametrize("guess", RESUME)
def test_of_resuming(guess: str) -> None:
    check(RESUME[guess])


def check(guess: Guess) -> None:
    call, error, answer = guess
    with pytest.raises(error, match=re.escape(answer)):
        call()


def test_a_wrong_guess_leaves_the_vectorized_environment_open() -> None:
    with walks(reset=False) as envs:
        with pytest.raises(NotResetError):
            envs.step([0] * 4)
        envs.reset()
        with pytest.raises(ValueError, match="sample_actions"):
            envs.step(envs.action_space.sample())
        infos = envs.step(envs.sample_actions())[-1]
        with pytest.raises(
            AttributeError, match="'get'; infos\\[i\\] is the dict of environment i"
        ):
            infos.get("x")  # type: ignore[attr-defined]


def test_of_stable_baselines3() -> None:
    pytest.importorskip("stable_baselines3")
    from xuance_envs.compat import sb3

    for guess in (
        (lambda: sb3.SubprocVecEnv("CartPole-v1"), TypeError, "expected a list of functions"),
        (lambda: sb3.SubprocVecEnv([Walk] * 4, 2), ValueError, "did you mean num_workers=2?"),
        (lambda: sb3.DummyVecEnv([Walk()]), TypeError, "env_fns[0]: expected a callable"),
    ):
        check(guess)


def test_of_multi_agent_environments() -> None:
    mpe2 = pytest.importorskip("mpe2.simple_spread_v3")
    name = "mpe2:simple_spread_v3"
    dummy = partial(make_multi_agent_vec, backend="dummy")
    for guess in (
        (lambda: dummy("simple_spread_v3", 2), ValueError, "such as 'mpe2:simple_spread_v3'"),
        (lambda: make_vec(name, 2), ValueError, "use make_multi_agent_vec"),
        (
            lambda: make_multi_agent_vec(name, 2, backend="subprocess"),
            ValueError,
            "got 'subprocess'; did you mean 'subproc'?",
        ),
        (lambda: dummy(name, 2, num_workers=2), TypeError, "vector_kwargs={'num_workers': 2}"),
        (lambda: dummy(name, 2).step(np.zeros((2, 3))), NotResetError, "call reset() first"),
        (lambda: DummyVecEnv([mpe2.parallel_env]), EnvError, "MultiAgentVecEnv for multi-agent"),
        (
            lambda: MultiAgentVecEnv([Walk], backend="dummy"),
            EnvError,
            "expected a multi-agent environment, with an observation_space method (PettingZoo)",
        ),
    ):
        check(guess)
    with dummy(name, 2) as envs:
        text = repr(envs.reset(seed=0))
        assert text.startswith("MultiAgentStep(obs=float32(2, 3, 18), rewards=float32(2, 3), ")
        for actions, answer in (
            (dict.fromkeys(envs.agents, 0), "or a list with a dict {agent: action}"),
            (np.zeros(6, int), "expected shape (2, 3), got shape (6,)"),
            ([{"agent_0": 0}] * 2, "expected an action for active agent 'agent_1'"),
            ([dict.fromkeys((*envs.agents, "bob"), 0)] * 2, "unknown agents ['bob']"),
        ):
            check((partial(envs.step, actions), ValueError, answer))
        envs.step(envs.sample_actions())
        first, again = envs.sample_actions(0), envs.sample_actions(0)
        assert first == again
        assert first[0].keys() == set(envs.agents)


def test_of_atari_games() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    for guess in (
        (lambda: make_vec("ALE/Pnog-v5", 2, backend="dummy"), EnvError, "Did you mean: `Pong`?"),
        (lambda: make_vec("Pong", 2, atari_preset="DQN"), ValueError, "expected 'dqn' or None"),
        (
            lambda: make_vec("CartPole-v1", 2, atari_preset="dqn"),
            ValueError,
            "expected an Atari game",
        ),
    ):
        check(guess)


def test_of_rollouts() -> None:
    pytest.importorskip("torch")
    from xuance_envs import RolloutCollector

    method = "expected an object with the method get_actions_and_values(states, actions=None)"
    envs = DummyVecEnv([lambda: Gym_Env("CartPole-v1")] * 2)
    for guess in (
        (lambda: RolloutCollector(envs, object(), 10), TypeError, f"agent: {method}, got object"),
        (lambda: RolloutCollector(envs, 10, object()), TypeError, f"agent: {method}, got int"),
    ):
        check(guess)
