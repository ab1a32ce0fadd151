"""Ctrl-C while worker processes are waited for."""

from __future__ import annotations

import multiprocessing
import signal
import time
from typing import Any

import numpy as np
import pytest
from backends import DUMMY, WORKERS, Backend
from interrupts import alarms_interrupt, interrupt_after
from leftovers import is_running
from process_env import ProcessEnv

from xuance_envs import DummyVecEnv, SubprocVecEnv


@pytest.mark.parametrize("backend", [DUMMY, WORKERS], ids=str)
def test_an_interrupted_reset_loses_no_keys_of_infos(backend: Backend) -> None:
    class Telling(ProcessEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            time.sleep(0.3 if options else 0.0)
            return np.zeros(1), {"told": 1}

    with backend.kind([Telling] * 2, **backend.options) as envs:
        with pytest.raises(KeyboardInterrupt), interrupt_after(0.05):
            envs.reset(options={"slowly": True})
        assert list(envs.reset()[1]) == [{"told": 1}] * 2


def test_an_interrupted_close_still_ends_the_workers() -> None:
    class SlowToClose(ProcessEnv):
        def close(self) -> None:
            time.sleep(60)

    envs = SubprocVecEnv([SlowToClose] * 2, in_series=1, context="forkserver")
    pids = envs.call("pid")
    with pytest.raises(KeyboardInterrupt), interrupt_after(0.05):
        envs.close()
    assert not any(map(is_running, pids))
    assert multiprocessing.active_children() == []


def test_without_processes_an_interrupt_after_a_step_does_not_repeat_it() -> None:
    class Interrupting(ProcessEnv):
        def step(self, action: int) -> Any:
            observation, _, *rest = super().step(action)
            return observation, Reward(), *rest

    class Reward:
        told = False

        def __float__(self) -> float:
            if not self.told:
                self.told = True
                raise KeyboardInterrupt
            return 2.0

    with DummyVecEnv([Interrupting, ProcessEnv]) as envs:
        envs.reset()
        with pytest.raises(KeyboardInterrupt):
            envs.step([0, 0])
        observations, rewards, *_ = envs.step_wait()
        assert observations.tolist() == [[1.0], [1.0]]
        assert rewards.tolist() == [2.0, 0.0]
        assert envs.get_attr("steps") == (1, 1)


@pytest.mark.parametrize("options", [{}, {"in_series": 1}, {"caller_steps": True}], ids=str)
def test_an_interrupted_step_stays_pending(options: dict[str, Any]) -> None:
    with SubprocVecEnv([lambda: ProcessEnv(0.3)] * 4, context="forkserver", **options) as envs:
        envs.reset()
        with pytest.raises(KeyboardInterrupt), interrupt_after(0.05):
            envs.step([ProcessEnv.WAIT, 0, ProcessEnv.WAIT, 0])
        assert envs.waiting
        assert envs.step_wait()[0].tolist() == [[1.0]] * 4
        assert envs.step([0] * 4)[0].tolist() == [[2.0]] * 4


def test_a_reset_goes_on_from_an_interrupted_step() -> None:
    with SubprocVecEnv([lambda: ProcessEnv(0.2)] * 2, context="forkserver") as envs:
        envs.reset()
        with pytest.raises(KeyboardInterrupt), interrupt_after(0.05):
            envs.step([ProcessEnv.WAIT] * 2)
        assert envs.reset()[0].tolist() == [[0.0]] * 2


def test_no_interrupt_at_any_moment_loses_or_repeats_a_step() -> None:
    """Hundreds of interrupts at random moments of a step; each environment counts its steps."""
    rng = np.random.default_rng(0)
    with SubprocVecEnv([ProcessEnv] * 4, in_series=2, context="forkserver") as envs:
        envs.reset()
        steps = interrupts = 0
        with alarms_interrupt():
            while interrupts < 300:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(20e-6, 400e-6))
                    while True:
                        envs.step_async([0] * 4)
                        envs.step_wait()
                        steps += 1
                except KeyboardInterrupt:
                    interrupts += 1
                if envs.waiting:
                    envs.step_wait()
                steps = int(envs.buf_obs[0, 0])
                assert envs.buf_obs.tolist() == [[steps]] * 4
        assert envs.get_attr("steps") == (steps,) * 4
