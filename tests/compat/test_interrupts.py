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
from xuance_envs.compat.stepping import SerialStepper, WorkerStepper
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.vector_envs.worker_settings import ProcessSettings

STEPPERS = {
    "serial": SerialStepper,
    "workers": partial(WorkerStepper, settings=ProcessSettings(context="forkserver", in_series=2)),
    "caller": partial(
        WorkerStepper,
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
        infos = batch.dicts(np.arange(NUM_ENVS))
        envs, resets = ([], None) if ends is None else ends.resets()
        for k, env in enumerate(envs):
            infos[env]["reset_obs"] = np.array(arrays.reset_observations.value(env))
            infos[env]["reset_info"] = resets.build(k, env)
        flags = arrays.terminated, arrays.truncated
        return arrays.observations.copy(), arrays.rewards, *flags, infos


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
        return self.envs._call.state is AsyncState.WAITING_STEP

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
