"""Copies of steps: comparison with a replay in other environments, and restored observations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.host import make_group
from xuance_envs.engine.group.outcome import Outcome, StepExtras
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.single_env import spaces_of
from xuance_envs.engine.replay_log import LastSnapshot, ReplayLog
from xuance_envs.engine.serialization import copy_of
from xuance_envs.vector_envs.arguments import checked_recipe

LEAVES = ("large", "larger", "small", "text")


class Mixed(gymnasium.Env[Any, Any]):
    """Shows its number of calls in each leaf, plus one in the leaf ``changed`` of a call."""

    observation_space = spaces.Dict(
        large=spaces.Box(0, 999, (3000,), np.int32),
        larger=spaces.Box(0, 999, (6001,), np.int16),
        small=spaces.Box(0, 999, (3,), np.int64),
        text=spaces.Text(9),
    )
    action_space = spaces.Discrete(3)

    def __init__(self, length: int, changed: tuple[int, str] | None = None) -> None:
        self.length, self.changed = length, changed
        self.calls = self.steps = 0

    def observation(self) -> dict[str, Any]:
        self.calls += 1
        shown = {name: self.calls + (self.changed == (self.calls, name)) for name in LEAVES}
        parts = self.observation_space.spaces.items()
        return {
            name: str(shown[name]) if name == "text" else np.full(part.shape, shown[name])
            for name, part in parts
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.observation(), {"calls": self.calls}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation(), 0.0, False, self.steps == self.length, {"calls": self.calls}


def group_of(envs: Sequence[Any]) -> ResumableGroup:
    group = make_group(checked_recipe(envs, None), copy_of)
    group.attach(StepArrays.allocate(spaces_of(group.envs[0]), len(envs), digests=True))
    return group


def reset(group: ResumableGroup) -> Outcome:
    return group.reset([(i, None, None) for i in range(len(group.envs))])


@pytest.fixture(scope="module")
def log() -> Iterator[ReplayLog]:
    """Log of seven steps in two environments, which end episodes of three and four steps."""
    group = group_of([partial(Mixed, 3), partial(Mixed, 4)])
    log = ReplayLog(group.arrays)
    snapshot = LastSnapshot(group.arrays, log.actions)
    snapshot.record_reset(reset(group), range(2))
    for _ in range(7):
        snapshot.record_step(group.step(), range(2))
        log.count = log.record(snapshot.last_step)
    yield log
    group.close()


def test_equal_steps_do_not_differ(log: ReplayLog) -> None:
    twin = group_of([partial(Mixed, 3), partial(Mixed, 4)])
    reset(twin)
    assert twin.replay(log.copies()) == ""


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize(
    ("call", "found"),
    [
        (3, "step 2 of 7 .*: the observation of environment {}"),
        (5, "step [34] of 7 .*: the (reset )?observation of environment {}"),
        (6, "step [45] of 7 .*: the (reset )?observation of environment {}"),
        (9, "step [67] of 7 .*: the (reset )?observation of environment {}"),
    ],
)
@pytest.mark.parametrize("env", [0, 1])
def test_every_leaf_of_every_environment_is_compared(
    log: ReplayLog, leaf: str, call: int, found: str, env: int
) -> None:
    changed = [(call, leaf) if i == env else None for i in range(2)]
    fns = [partial(Mixed, 3 + i, each) for i, each in enumerate(changed)]
    twin = group_of(fns)
    reset(twin)
    difference = twin.replay(log.copies())
    assert re.search(found.format(env), difference), difference


def shown(arrays: StepArrays, outcome: Outcome) -> list[list[int]]:
    """Return the numbers that each leaf shows, by environment."""
    assert outcome.rest is not None
    numbers = [part[:, 0].tolist() for part in arrays.observations.arrays]
    return [*numbers, *([*map(int, texts)] for texts in outcome.rest.observations)]


def test_restored_observations_and_infos_are_the_latest() -> None:
    group = group_of([partial(Mixed, 2), partial(Mixed, 3)])
    arrays, everything = group.arrays, range(2)
    snapshot = LastSnapshot(arrays)
    snapshot.record_reset(reset(group), everything)
    snapshot.record_step(group.step(), everything)

    def restored() -> list[list[int]]:
        for part in arrays.observations.arrays:
            part[...] = 0
        lost = StepExtras(observations=[[None, None]])
        found = shown(arrays, snapshot.restore(Outcome(rest=lost)))
        return [*found, [info["calls"] for info in snapshot.infos()]]

    assert restored() == [[2, 2]] * 5
    snapshot.record_step(group.step(), everything)  # the end of environment 0, which is reset
    assert restored() == [[4, 3]] * 5
    snapshot.record_reset(group.reset([(1, None, None)]), [1])
    assert restored() == [[4, 4]] * 5
    snapshot.record_step(group.step(), everything)
    snapshot.record_reset(group.reset([(0, None, None)]), [0])
    assert restored() == restored() == [[6, 5]] * 5
    snapshot.record_step(group.step(), everything)
    assert restored() == [[7, 6]] * 5
