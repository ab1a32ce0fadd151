"""Ctrl-C within a step of what takes steps in parts: at every instant, in every mode of reset."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from example_envs import CountedEnv
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState
from interrupted_steps import (
    ACTIONS,
    ENV_FNS,
    FOLDERS,
    NUM_ENVS,
    Interrupted,
    assert_nothing_is_lost,
)
from interrupts import Instant

from xuance_envs import DummyVecEnv
from xuance_envs.compat import to_gymnasium
from xuance_envs.compat.env_functions import call_method
from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv
from xuance_envs.compat.stepping import make_stepper
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.vector_envs.worker_settings import ProcessSettings

STEPPERS = {
    "serial": make_stepper,
    "workers": partial(make_stepper, settings=ProcessSettings(context="forkserver", in_series=2)),
    "caller": partial(
        make_stepper,
        settings=ProcessSettings(context="forkserver", in_series=2, caller_steps=True),
    ),
}

modes = pytest.mark.parametrize("mode", Autoreset, ids=lambda mode: mode.name)


class InParts:
    """A stepper, with the interface of a whole one."""

    def __init__(self, stepper):
        self.stepper = stepper
        self.close = stepper.close

    @property
    def waiting(self):
        return self.stepper.waiting

    def reset(self):
        nothing = [None] * NUM_ENVS
        self.stepper.start_reset(range(NUM_ENVS), nothing, nothing)
        self.stepper.finish_reset()

    def step(self, actions):
        self.stepper.start_step(actions)
        return self.step_wait()

    def call(self, name):
        return self.stepper.apply(range(NUM_ENVS), call_method, name, (), {})

    def step_wait(self):
        (batch, ends), arrays = self.stepper.finish_step(), self.stepper.arrays
        observations, infos = arrays.observations.copy(), batch.dicts(np.arange(NUM_ENVS))
        envs, resets = ([], None) if ends is None else ends.resets()
        if ends is not None:
            observations[envs] = self.stepper.final.flat
        for k, env in enumerate(envs):
            infos[env]["reset_obs"] = np.array(arrays.reset_observations.value(env))
            infos[env]["reset_info"] = resets.build(k, env)
        flags = arrays.terminated, arrays.truncated
        return observations, arrays.rewards, *flags, infos


class InPartsInterrupted(Interrupted):
    """What a step gives is lost where it is over and being put together, and only there."""

    def last_result(self):
        return None


def assert_steppers_lose_nothing(name, mode, numbers):
    return assert_nothing_is_lost(
        lambda: InPartsInterrupted(InParts(STEPPERS[name](ENV_FNS, mode)), mode), numbers
    )


@pytest.mark.parametrize("name", STEPPERS)
@modes
def test_an_interrupt_within_a_step_taken_in_parts_loses_and_repeats_nothing(name, mode):
    every = 13 if name == "serial" else 23
    assert assert_steppers_lose_nothing(name, mode, itertools.count(0, every)) >= 30


@pytest.mark.long
@pytest.mark.parametrize("name", STEPPERS)
@modes
def test_an_interrupt_at_any_instant_of_one_taken_in_parts_loses_and_repeats_nothing(name, mode):
    assert assert_steppers_lose_nothing(name, mode, itertools.count()) >= 500


class OfGymnasium:
    """Gymnasium's asynchronous one, with that interface."""

    def __init__(self, envs):
        self.envs = envs
        self.reset, self.call, self.close = envs.reset, envs.call, envs.close

    @property
    def waiting(self):
        return self.envs._call_state is AsyncState.WAITING_STEP

    def step(self, actions):
        self.envs.step_async(actions)
        return self.step_wait()

    def step_wait(self):
        return *self.envs.step_wait()[:4], None


@pytest.mark.parametrize("caller_steps", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED], ids=str)
def test_an_interrupted_step_of_gymnasiums_goes_on_with_step_wait(mode, caller_steps):
    kind = partial(AsyncVectorEnv, context="forkserver", in_series=2, caller_steps=caller_steps)

    def make():
        envs = OfGymnasium(kind(ENV_FNS, autoreset_mode=mode))
        return InPartsInterrupted(envs, Autoreset[mode.name])

    assert assert_nothing_is_lost(make, itertools.count(0, 23)) >= 30


class OfStableBaselines:
    """Stable-Baselines3's, with that interface."""

    def __init__(self, envs):
        self.envs = envs
        self.reset, self.call, self.close = envs.reset, envs.env_method, envs.close

    @property
    def waiting(self):
        return self.envs.waiting

    def step(self, actions):
        self.envs.step_async(actions)
        return self.step_wait()

    def step_wait(self):
        observations, rewards, dones, infos = self.envs.step_wait()
        for env in dones.nonzero()[0]:
            observations[env] = infos[env]["terminal_observation"]
        truncated = np.array([info["TimeLimit.truncated"] for info in infos])
        return observations, rewards, dones & ~truncated, truncated, None


def test_an_interrupted_step_of_stable_baselines_goes_on_with_step_wait():
    kind = pytest.importorskip("xuance_envs.compat.sb3").SubprocVecEnv

    def make():
        return InPartsInterrupted(OfStableBaselines(kind(ENV_FNS, "fork", in_series=2)))

    assert assert_nothing_is_lost(make, itertools.count(0, 23)) >= 30


class InterruptedOnce(CountedEnv):
    """Environment whose second step is interrupted at its beginning."""

    came = False

    def step(self, action):
        if self.steps == 1 and not self.came:
            self.came = True
            raise KeyboardInterrupt
        return super().step(action)


INTERRUPTED = [partial(CountedEnv, 0, 9), partial(InterruptedOnce, 1, 9)]
IN_PROCESS = {
    "gymnasium": lambda: SyncVectorEnv(INTERRUPTED),
    "disabled": lambda: SyncVectorEnv(INTERRUPTED, autoreset_mode=AutoresetMode.DISABLED),
    "to_gymnasium": lambda: to_gymnasium(DummyVecEnv(INTERRUPTED)),
    "sb3": lambda: pytest.importorskip("xuance_envs.compat.sb3").DummyVecEnv(INTERRUPTED),
}


@pytest.mark.parametrize("make", IN_PROCESS.values(), ids=IN_PROCESS)
def test_the_step_after_an_interrupted_one_steps_every_environment_as_often(make):
    envs = make()
    envs.reset()
    actions = np.zeros(2, np.int64)
    envs.step(actions)
    with pytest.raises(KeyboardInterrupt):
        envs.step(actions)
    assert envs.step(actions)[1].tolist() == list(envs.get_attr("steps")) == [3, 3]
    envs.close()


ENDING = [partial(CountedEnv, 0, 2), partial(InterruptedOnce, 1, 9)]
IN_THE_SAME_STEP = {
    "gymnasium": lambda: SyncVectorEnv(ENDING, autoreset_mode=AutoresetMode.SAME_STEP),
    "to_gymnasium": lambda: to_gymnasium(DummyVecEnv(ENDING)),
}


@pytest.mark.parametrize("make", IN_THE_SAME_STEP.values(), ids=IN_THE_SAME_STEP)
def test_a_reset_of_some_after_an_interrupted_step_shows_the_episode_that_others_are_in(make):
    envs = make()
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    with pytest.raises(KeyboardInterrupt):
        envs.step(np.zeros(2, np.int64))
    observations, _ = envs.reset(options={"reset_mask": np.array([False, True])})
    assert observations[0].tolist() == [2, 2, 0], "the first of its second episode"
    envs.close()


@pytest.mark.parametrize("kind", ["gymnasium", "sb3"])
def test_states_can_be_saved_after_an_interrupted_step(kind):
    envs = IN_PROCESS[kind]()
    envs.reset()
    actions = np.zeros(2, np.int64)
    envs.step(actions)
    with pytest.raises(KeyboardInterrupt):
        envs.step(actions)
    state = envs.save_state()
    envs.step(actions)
    envs.load_state(state)
    assert list(envs.get_attr("steps")) == [2, 2]
    envs.close()


def test_after_an_interrupt_a_reset_begins_anew():
    envs = SyncVectorEnv(ENV_FNS)
    for number in itertools.count(0, 3):
        envs.reset()
        with Instant(number, FOLDERS) as instant:
            envs.step(ACTIONS)
        assert (envs.reset()[0][:, 2] == 0).all()
        observations, rewards, terminated, truncated, _ = envs.step(ACTIONS)
        assert (observations[:, 2] == 1).all()
        assert rewards.tolist() == observations[:, 1].tolist()
        assert not (terminated | truncated).any()
        if not instant.came:
            break
    assert number > 100
    envs.close()
