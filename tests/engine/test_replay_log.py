"""What led to where a group is: how often states are saved, and what is kept of actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from gymnasium import spaces

from xuance_envs.engine.data.info_batch import InfoColumns
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.step_results import StepCopier, digest_writer
from xuance_envs.engine.replay_log import MAX_STEPS, ReplayLog

OBSERVATIONS = spaces.Box(-1, 1, (2,))


def log_of(actions: spaces.Space) -> tuple[ReplayLog, StepArrays]:
    arrays = StepArrays.allocate(StepSpaces(OBSERVATIONS, actions), 3)
    return ReplayLog(arrays), arrays


def steps_until_due(log: ReplayLog, tag: int, requests: int = 1) -> int:
    """How many steps there are from a request to the next one that states are saved with."""
    steps = 1
    while tag + requests * steps < log.next_save:
        steps += 1
    return steps


@pytest.mark.parametrize(
    ("cost", "duration", "period"),
    [
        (1e-3, 1e-3, 512),
        (2.5e-5, 1e-2, 1),
        (1e-3, 1e-5, MAX_STEPS),
        (1e-3, math.nan, 1),
        (2.0, 0.1, 512),  # which are repeated in a minute; the start of a worker ends sometime
        (2.0, 500.0, 1),
    ],
)
def test_saving_costs_a_quarter_of_a_hundredth_of_stepping(
    cost: float, duration: float, period: int
) -> None:
    log, _ = log_of(spaces.Discrete(3))
    assert log.next_save == -1  # the first time at once
    log.update_interval(cost, duration, 1)
    log.reset("states", 1)
    due = 1 + steps_until_due(log, 1)
    log.reset("others", due)
    assert steps_until_due(log, due) == period
    log.reset(None)
    assert log.next_save == -1


def test_a_single_slow_one_does_not_count() -> None:
    log, _ = log_of(spaces.Discrete(3))
    for tag, cost in enumerate((1e-3, 1.0, 1e-3)):
        log.update_interval(cost, 1e-3, tag)
        log.reset("states", tag)
        assert log.interval_log2 == 9
    for _ in range(2):
        log.update_interval(2e-3, 1e-3, 3)
    assert log.interval_log2 == 10


def test_groups_save_in_the_same_steps() -> None:
    logs = [log_of(spaces.Discrete(3))[0] for _ in range(3)]
    saved: list[list[int]] = [[], [], []]
    for tag in range(1, 10_000):
        for k, log in enumerate(logs):
            if tag == 700 + 10 * k:  # a reset of some
                log.reset("states", tag)
            elif tag >= log.next_save:
                log.update_interval((1 + k) * 1e-3, 1e-3, tag)
                log.reset("states", tag)
                saved[k].append(tag)
            else:
                log.count = log.record()
    assert len(saved[0]) > len(saved[1]) > len(saved[2]) > 3  # as often as each has to
    assert set(saved[0]) >= set(saved[1]) >= set(saved[2])


def test_groups_that_are_stepped_one_by_one_save_as_often() -> None:
    log, _ = log_of(spaces.Discrete(3))
    groups, tag, kept = 6, 0, []
    for _ in range(6000):
        tag += groups
        if tag >= log.next_save:
            kept.append(log.count)
            log.update_interval(1e-3, 1e-3, tag)
            log.reset("states", tag)
        else:
            log.count = log.record()
    assert 400 < np.mean(kept[3:]) < 1040
    log.reset(None)  # such as after a loss
    log.update_interval(1e-3, 1e-3, tag)
    log.reset("states", tag)
    assert steps_until_due(log, tag, groups) <= 1040


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-1, 1, (2, 2), np.float64),
        spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,)), c=spaces.MultiBinary(3)),
    ],
)
def test_actions_are_kept_whatever_comes_of_the_arrays(space: spaces.Space) -> None:
    log, arrays = log_of(space)
    expected = []
    space.seed(1)
    for _ in range(4):
        arrays.actions.put([space.sample() for _ in range(3)], slice(None), 3)
        expected.append([part.copy() for part in arrays.actions.parts])
        log.record()  # interrupted
        log.count = log.record()
    for part in arrays.actions.parts:
        part[...] = 0
    assert_same(log.steps(), expected)


def test_no_more_steps_are_kept_than_there_is_room_for() -> None:
    """Where each request was taken for a fraction of a step, and is one."""
    log, _ = log_of(spaces.Discrete(3))
    log.interval_log2 = 20
    log.reset("states", 1)
    tag = 2
    while tag < log.next_save:
        log.count = log.record()
        tag += 1
    assert log.count == MAX_STEPS
    assert log.has_capacity  # for the step that states are saved after
    while log.has_capacity:
        log.count = log.record()
        tag += 1
    assert len(log.steps()) == log.count < MAX_STEPS + 20


def test_of_actions_without_a_fixed_shape_none_are_kept() -> None:
    assert log_of(spaces.Text(3))[0].disabled


@pytest.mark.parametrize(("size", "recorded"), [(6553, 6553), (6554, 8)])
def test_an_observation_is_recorded_as_a_copy_or_a_digest(size: int, recorded: int) -> None:
    observations = spaces.Box(0, 255, (size,), np.uint8)
    step_spaces = StepSpaces(observations, spaces.Discrete(3))
    arrays = StepArrays.allocate(step_spaces, 1, digests=True)
    copier = StepCopier(arrays, with_digests=True)
    infos = InfoColumns(arrays.infos, np.zeros(1, np.intp)).snapshot()
    result = copier.result(copier.copy(infos, None, None))
    assert [rows.shape for rows in result.observations] == [(1, recorded)]


@pytest.mark.parametrize(
    ("shape", "dtype"), [((600,), np.float32), ((601,), np.float32), ((2403,), np.uint8)]
)
def test_digests_differ_in_every_bit(shape: tuple[int, ...], dtype: Any) -> None:
    part = np.zeros((80, *shape), dtype)
    values = np.zeros(len(part), np.uint64)
    write, rows = digest_writer(part, values), part.view(np.uint8)
    rows[:] = np.random.default_rng(1).integers(256, size=rows.shape)
    seen = set[int]()

    def add() -> None:
        write()
        seen.add(int(values[70]))

    add()
    # Each bit, and each two upper bits: sums of 32-bit words would not show two changed signs.
    upper = range(3, 200, 4)
    changes = [[(at, 1 << bit)] for at in range(200) for bit in range(8)]
    changes += [[(one, 128), (other, 128)] for one in upper for other in upper if one < other]
    for change in changes:
        for at, mask in change:
            rows[70, at] ^= mask
        add()
        for at, mask in change:
            rows[70, at] ^= mask
    assert len(seen) == 1 + len(changes)
