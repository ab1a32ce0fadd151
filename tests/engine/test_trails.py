"""What led to where a group is: how often states are saved, and what is kept of actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.trails import MOST_STEPS, Trail

OBSERVATIONS = spaces.Box(-1, 1, (2,))


def trail_of(actions: spaces.Space) -> tuple[Trail, StepArrays]:
    arrays = StepArrays.allocate(OBSERVATIONS, actions, 3)
    return Trail(arrays), arrays


@pytest.mark.parametrize(
    ("cost", "duration", "period"),
    [(1e-3, 1e-3, 100), (5e-5, 1e-2, 1), (1e-3, 1e-5, MOST_STEPS), (1e-3, math.nan, 1)],
)
def test_saving_costs_a_hundredth_of_stepping(cost: float, duration: float, period: int) -> None:
    trail, _ = trail_of(spaces.Discrete(3))
    assert len(trail.steps) > trail.last  # the first time at once
    trail.begin("states")
    trail.plan(cost, duration)
    assert trail.last == period - 1
    trail.begin("others")
    assert trail.last == period - 1
    trail.begin(None)
    assert len(trail.steps) > trail.last


def test_a_single_slow_one_does_not_count() -> None:
    trail, _ = trail_of(spaces.Discrete(3))
    trail.begin("states")
    for cost in (1e-3, 1.0, 1e-3):
        trail.plan(cost, 1e-3)
        assert trail.last == 99
    for _ in range(2):
        trail.plan(2e-3, 1e-3)
    assert trail.last == 199


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-1, 1, (2, 2), np.float64),
        spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,)), c=spaces.MultiBinary(3)),
    ],
)
def test_actions_are_kept_whatever_comes_of_the_arrays(space: spaces.Space) -> None:
    trail, arrays = trail_of(space)
    expected = []
    space.seed(1)
    for _ in range(4):
        arrays.actions.put([space.sample() for _ in range(3)], slice(None), 3)
        expected.append([part.copy() for part in arrays.actions.parts])
        trail.steps.append(trail.actions())
    for part in arrays.actions.parts:
        part[...] = 0
    assert_same(trail.unpacked(trail.steps), expected)


def test_of_actions_without_a_fixed_shape_none_are_kept() -> None:
    assert not trail_of(spaces.Text(3))[0].is_kept
