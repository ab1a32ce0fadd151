"""Steps that are interrupted at every possible instant, compared with a bare loop."""

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
"""Number of steps after which all combinations of episode ends have occurred."""

ENV_FNS = [partial(CountedEnv, number, 2 + number % 2) for number in range(NUM_ENVS)]
FOLDERS = [os.path.dirname(xuance_envs.__file__), example_envs.__file__]
ACTIONS = np.zeros(NUM_ENVS, np.int64)


class Model:
    """One environment, and the expected results of its steps."""

    def __init__(self, env: CountedEnv, mode: Autoreset) -> None:
        self.env = env
        self.mode = mode
        self.pending = False
        env.reset()

    def follow(self, steps: int, resets: int, again: str) -> Any:
        """Make a step, given the total steps and resets; return the expected result."""
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
        """Call a method, or call it twice if the interrupted call was repeated."""
        call = partial(self.env.step, 0) if method == "step" else self.env.reset
        result = call()
        if getattr(self.env, f"{method}s") < count and again in (method, "observe"):
            result = call()
        return result


class Interrupted:
    """A vectorized environment whose steps are interrupted."""

    def __init__(
        self, envs: Any, mode: Autoreset = Autoreset.SAME_STEP, *, halves: bool = False
    ) -> None:
        self.envs = envs
        self.halves = halves
        self.models = [Model(env_fn(), mode) for env_fn in ENV_FNS]
        envs.reset()

    def step(self, instant: Instant) -> None:
        """Interrupt a step, complete it, and compare the results."""
        envs = self.envs
        result = None
        with instant:
            if self.halves:
                envs.step_async(ACTIONS)
            result = envs.step_wait() if self.halves else envs.step(ACTIONS)
        if envs.waiting:
            result = envs.step_wait()
        elif self.counts() == [(model.env.steps, model.env.resets) for model in self.models]:
            result = envs.step(ACTIONS)  # the step had not begun
        elif result is None:
            result = self.last_result()
        self.check(result, instant)

    def last_result(self) -> Any:
        """Return the results of a step that finished before the interrupt; None if unavailable."""
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
        """Return the total steps and resets of each environment."""
        return list(map(tuple, self.envs.call("counts")))


def assert_nothing_is_lost(make: Callable[[], Interrupted], numbers: Iterable[int]) -> int:
    """Raise if an interrupt of a step loses a result or repeats a call."""
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
