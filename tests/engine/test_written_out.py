"""Loops that are written out do what loops do."""

from __future__ import annotations

from contextlib import suppress
from struct import Struct

import numpy as np
import pytest

from xuance_envs.engine.data.unrolled_loops import (
    make_dict_builder,
    make_dict_reader,
    make_nested_reader,
)

COUNTS = (0, 1, 2, 8, 64, 65, 300)
KNOWN = {number: np.int64(number) for number in range(5)}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("order", ["in the team's order", "reversed"])
def test_actions_are_taken_by_agent(count, order):
    places = list(range(count)) if order != "reversed" else list(range(count))[::-1]
    agents = [f"agent {place}" for place in places]
    numbers = np.random.default_rng(0).integers(5, size=count)
    take = make_dict_builder(agents, places, Struct(f"{count}q").unpack_from, KNOWN, np.int64)
    taken = take(numbers.tobytes())
    assert list(taken.items()) == [
        (agent, numbers[i]) for agent, i in zip(agents, places, strict=True)
    ]
    assert all(type(action) is np.int64 for action in taken.values())


@pytest.mark.parametrize("count", COUNTS[1:])
def test_actions_that_are_not_known_are_made(count):
    numbers = np.arange(count) - 1
    numbers[-1] = 2**40
    agents = list(range(count))
    take = make_dict_builder(agents, agents, Struct(f"{count}q").unpack_from, KNOWN, np.int64)
    assert take(numbers.tobytes()) == dict(enumerate(numbers))


@pytest.mark.parametrize("count", COUNTS)
def test_observations_and_rewards_are_put(count):
    given = np.random.default_rng(0).random((count, 3), np.float32)
    rows, rewards = np.zeros_like(given), np.zeros(count)
    agents = [("agent", i) for i in range(count)]  # any that can be keys
    pack = Struct(f"{count}d").pack_into
    put = make_dict_reader(agents, [memoryview(row) for row in rows], pack, memoryview(rewards))
    put(dict(zip(agents, given, strict=True)), {agent: i for i, agent in enumerate(agents)})
    assert np.array_equal(rows, given)
    assert np.array_equal(rewards, np.arange(count))


@pytest.mark.parametrize("count", COUNTS[1:])
@pytest.mark.parametrize("missing", ["observation", "reward"])
def test_an_agent_that_is_missing_is_a_lookup_error(count, missing):
    rows, rewards = np.zeros((count, 3)), np.zeros(count)
    pack = Struct(f"{count}d").pack_into
    put = make_dict_reader(
        range(count), [memoryview(row) for row in rows], pack, memoryview(rewards)
    )
    observations, given = dict(enumerate(rows)), dict.fromkeys(range(count), 1.0)
    del (observations if missing == "observation" else given)[count - 1]
    with pytest.raises(LookupError):
        put(observations, given)


@pytest.mark.parametrize("counts", [(), (0,), (1,), (2, 0, 3), (1,) * 200])
def test_infos_are_joined(counts):
    joined = {}
    infos = {i: {f"key {k}": 10 * i + k for k in range(n)} for i, n in enumerate(counts)}
    store = make_nested_reader({i: [(key, joined, (i, key)) for key in infos[i]] for i in infos})
    assert store(infos)
    assert joined == {(i, key): value for i, info in infos.items() for key, value in info.items()}


@pytest.mark.parametrize(
    "others",
    [
        {"a": {"x": 1}},
        {"a": {"x": 1}, "b": {"x": 1, "y": 2}, "c": {}},
        {"a": {}, "b": {"x": 1, "y": 2}},
        {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}},
        {"a": {"x": 1}, "b": {"x": 1, "z": 2}},
        {"a": {"x": 1}, "c": {"x": 1, "y": 2}},
    ],
)
def test_infos_of_another_form_are_told(others):
    joined = {}
    keys = {"a": ["x"], "b": ["x", "y"]}
    store = make_nested_reader(
        {agent: [(key, joined, key) for key in keys[agent]] for agent in keys}
    )
    told = False
    with suppress(LookupError):  # which tells it as well
        told = store(others)
    assert not told


def test_too_many_values_are_not_written_out():
    assert make_nested_reader({0: [(key, {}, key) for key in range(5000)]}) is None
