"""Steps that are interrupted at every instant, beside a loop that says what they should give."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import example_envs
import numpy as np
from comparing import assert_same
from example_envs import CountedEnv
from interrupts import Instant

import xuance_envs
from xuance_envs.engine.group.outcome import Autoreset

NUM_ENVS = 4
PHASES = 6
"""After so many steps lengths of 2 and 3 are through: none, some and all have ended an episode."""

ENV_FNS = [partial(CountedEnv, number, 2 + number % 2) for number in range(NUM_ENVS)]
FOLDERS = [os.path.dirname(xuance_envs.__file__), example_envs.__file__]
ACTIONS = np.zeros(NUM_ENVS, np.int64)


class Model:
    """One environment, and what each of its steps should give."""

    def __init__(self, env: CountedEnv, mode: Autoreset) -> None:
        self.env = env
        self.mode = mode
        self.pending = False
        env.reset()

    def follow(self, steps: int, resets: int, again: str) -> Any:
        """Makes a step that made it so many steps and resets, ever; what it should return.

        Args:
            steps: of the environment that is followed.
            resets: of the environment that is followed.
            again: the method that may have been called twice, because it was interrupted.
        """
        env = self.env
        if self.pending and self.mode is Autoreset.NEXT_STEP:
            observation, info = self.followed("reset", resets, again)
            row = observation, 0.0, False, False, info
            self.pending = False
        else:
            row = observation, _, terminated, truncated, info = self.followed("step", steps, again)
            self.pending = terminated or truncated
            if self.pending and self.mode is Autoreset.SAME_STEP:
                reset_obs, reset_info = self.followed("reset", resets, again)
                info = {**info, "reset_obs": reset_obs, "reset_info": reset_info}
                row = (*row[:4], info)
        assert (steps, resets) == (env.steps, env.resets), (
            f"environment {env.number} has made {steps} steps and {resets} resets, "
            f"expected {env.steps} and {env.resets}"
        )
        return row

    def followed(self, method: str, count: int, again: str) -> Any:
        """Calls a method, twice if that is how often it was called, and may have been."""
        call = partial(self.env.step, 0) if method == "step" else self.env.reset
        result = call()
        if getattr(self.env, f"{method}s") < count and again in (method, "observe"):
            result = call()
        return result


class Interrupted:
    """A vector environment whose steps are interrupted.

    Args:
        envs: the vector environment, of :data:`ENV_FNS`, or what is like one.
        mode: when it resets what has ended.
        halves: whether steps are made with ``step_async`` and ``step_wait``.
    """

    def __init__(
        self, envs: Any, mode: Autoreset = Autoreset.SAME_STEP, *, halves: bool = False
    ) -> None:
        self.envs = envs
        self.halves = halves
        self.models = [Model(env_fn(), mode) for env_fn in ENV_FNS]
        envs.reset()

    def step(self, instant: Instant) -> None:
        """Interrupts a step, goes on with it, and compares what it gives."""
        envs = self.envs
        result = None
        with instant:
            if self.halves:
                envs.step_async(ACTIONS)
            result = envs.step_wait() if self.halves else envs.step(ACTIONS)
        if envs.waiting:
            result = envs.step_wait()
        elif self.counts() == [(model.env.steps, model.env.resets) for model in self.models]:
            result = envs.step(ACTIONS)  # it had not begun
        elif result is None:
            result = self.last_result()
        self.check(result, instant)

    def last_result(self) -> Any:
        """What a step gave that was over when the interrupt came; None if that cannot be had."""
        envs = self.envs
        flags = envs.buf_dones, envs.buf_truncations
        return envs.buf_obs, envs.buf_rews, *flags, envs.buf_infos

    def check(self, result: Any, instant: Instant) -> None:
        inside, method = instant.inside or (None, "")
        rows = []
        for model, counts in zip(self.models, self.counts(), strict=True):
            mine = inside is not None and inside.number == model.env.number
            rows.append(model.follow(*counts, method if mine else ""))
        if result is None:
            return
        obs, rewards, terminated, truncated, infos = result
        for i, row in enumerate(rows):
            flags = bool(terminated[i]), bool(truncated[i])
            got = obs[i], float(rewards[i]), *flags
            assert_same(got, row[:4], f"what environment {i} returned")
            if infos is not None:
                assert_same(dict(infos[i]), row[4], f"the info of environment {i}")

    def counts(self) -> list[tuple[int, int]]:
        """The steps and resets that each environment has ever made."""
        return list(map(tuple, self.envs.call("counts")))


def assert_nothing_is_lost(make: Callable[[], Interrupted], numbers: Iterable[int]) -> int:
    """Raises if an interrupt at some instants of a step loses something, or does it again.

    Args:
        make: makes a vector environment to interrupt.
        numbers: the instants; it ends with the first that no step has.

    Returns:
        How many steps were interrupted.
    """
    failures: dict[str, list[str]] = {}
    count = 0
    interrupted = make()
    for number in numbers:
        came = 0
        for _ in range(PHASES):
            instant = Instant(number, FOLDERS)
            try:
                interrupted.step(instant)
            except Exception as error:
                told = f"instant {number}: {type(error).__name__}: {error}"
                failures.setdefault(instant.place, []).append(told)
                interrupted.envs.close()
                interrupted = make()
            came += instant.came
        if not came:
            break
        count += came
    interrupted.envs.close()
    lines = [f"{place}: {len(told)} times; {told[0]}" for place, told in failures.items()]
    assert not failures, f"of {count} interrupts, those at\n" + "\n".join(lines)
    return count
