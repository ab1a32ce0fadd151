"""Infos of many agents whose form is that of the last step, or another one."""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import Enum

import numpy as np
import pytest
from gymnasium import spaces

from xuance_envs import EnvError

AGENTS = ["red_0", "red_1", "blue_0"]
ACTIONS = 4


class Talker:
    """Says what it is told to, with agents that end at random."""

    possible_agents = AGENTS

    def __init__(self, seed, keys, steady, deadly=0.1):
        self._rng = np.random.default_rng(seed)
        self._keys, self._steady, self._deadly = keys, steady, deadly
        self._form = None

    def observation_space(self, agent):
        return spaces.Box(0, 1, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(ACTIONS)

    def reset(self, seed=None, options=None):
        self.agents = list(AGENTS)
        return self._seen(), self._told()

    def step(self, actions):
        acted = self.agents
        seen, infos = self._seen(), self._told()
        ends = {agent: bool(self._rng.random() < self._deadly) for agent in acted}
        self.agents = [agent for agent in acted if not ends[agent]]
        return seen, dict.fromkeys(acted, 0.0), ends, dict.fromkeys(acted, False), infos

    def _seen(self):
        return {agent: np.zeros(1, np.float32) for agent in self.agents}

    def _told(self):
        if self._form is None or self._rng.random() > self._steady:
            order = list(self._rng.permutation(AGENTS)) if self._rng.random() < 0.3 else AGENTS
            self._form = {
                str(agent): [key for key in self._keys if self._rng.random() < 0.8]
                for agent in order
            }
        # Keys and agents that are equal to those of before, and other objects.
        infos = {
            "".join(agent): {"".join(key): self._value(key) for key in keys}
            for agent, keys in self._form.items()
            if agent in self.agents
        }
        self.said = list(self.agents), infos
        return infos

    def _value(self, key):
        if key != "action_mask":
            return [1.5, 3, True, np.float32(0.5), np.arange(2)][self._rng.integers(5)]
        mask = self._rng.random(ACTIONS) < 0.5
        return [mask, mask.astype(np.int8), mask.tolist(), None][self._rng.integers(4)]


def same(a, b):
    return type(a) is type(b) and np.array_equal(a, b)


@pytest.mark.parametrize("steady", [0.9, 0.5, 0.0])
@pytest.mark.parametrize("keys", [["score"], ["action_mask"], ["score", "action_mask", "hits"]])
def test_infos_are_what_was_said_whatever_their_form(make_here, keys, steady):
    shows_masks = False
    for seed in range(8):
        world = Talker(seed, keys, steady)
        envs = make_here([lambda world=world: world])
        steps = [(envs.reset(), world.said)]
        while len(steps) < 30:
            step = envs.step(np.zeros((1, 3), int))
            if step.first is not None:  # and has said something more, of the episode that began
                step = envs.reset()
            steps.append((step, world.said))
        for step, said in steps:
            shows_masks |= step.action_masks is not None
            check(step, *said)
    assert shows_masks == ("action_mask" in keys)


def check(step, agents, infos):
    """That a step has the infos that were told, and their masks where it has any."""
    got = step.infos[0]
    assert got.keys() == set(agents)
    for agent in agents:
        said = {k: v for k, v in infos.get(agent, {}).items() if k != "action_mask"}
        assert list(got[agent]) == list(said)
        assert all(same(got[agent][key], said[key]) for key in said)
    for i, agent in enumerate(AGENTS if step.action_masks is not None else ()):
        mask = infos.get(agent, {}).get("action_mask")
        expected = np.ones(ACTIONS, bool) if mask is None else np.array(mask, bool)
        assert step.action_masks[0, i].tolist() == expected.tolist()


class Scripted(Talker):
    """Says in each step what there is for it, and nobody ends."""

    def __init__(self, script):
        super().__init__(0, [], 1.0, deadly=0.0)
        self._script = iter(script)

    def _told(self):
        return next(self._script)


SCORE = {agent: {"score": 1.0} for agent in AGENTS}


@pytest.mark.parametrize("common", [{}, {"score": 2.0}])
@pytest.mark.parametrize("without", [SCORE, {**SCORE, "red_0": {}}])
def test_what_is_nobodys_is_not_lost(make_here, common, without):
    others = {agent: info for agent, info in without.items() if info}
    with_it = {**others, "__all__": common}
    script = [without, without, with_it, with_it, without, with_it]
    envs = make_here([lambda: Scripted(script)])
    steps = [envs.reset(), *(envs.step(np.zeros((1, 3), int)) for _ in script[1:])]
    for step, said in zip(steps, script, strict=True):
        assert step.infos[0] == {**{key: {} for key in AGENTS}, **said}


@pytest.mark.parametrize("value", [False, 0, "", None, {}, np.zeros(2)], ids=repr)
def test_what_is_nobodys_may_be_false_or_an_array(make_here, value):
    said = {**{agent: {} for agent in AGENTS}, "common": value}
    envs = make_here([lambda: Scripted([said] * 3)])
    for step in (envs.reset(), *(envs.step(np.zeros((1, 3), int)) for _ in range(2))):
        assert list(step.infos[0]) == [*AGENTS, "common"]
        assert same(step.infos[0]["common"], value)


def counters(**counts):
    return {agent: Counter(counts) for agent in AGENTS}


@pytest.mark.parametrize(
    "script",
    [
        [counters(hits=1), counters(hits=2), counters(misses=3), counters(hits=4)],
        [SCORE, SCORE, counters(misses=3), SCORE],
        [
            defaultdict(dict, {agent: {} for agent in AGENTS}),
            defaultdict(dict, {"red_0": {}, "red_1": {}, "common": {"score": 2.0}}),
        ],
    ],
)
def test_dicts_with_a_value_for_every_key_have_the_keys_they_show(make_here, script):
    envs = make_here([lambda: Scripted(script)])
    steps = [envs.reset(), *(envs.step(np.zeros((1, 3), int)) for _ in script[1:])]
    for step, said in zip(steps, script, strict=True):
        assert step.infos[0] == {**{key: {} for key in AGENTS}, **said}


@pytest.mark.parametrize("others", [{}, {"score": 1.0}])
def test_none_is_an_empty_info(make_here, others):
    some = {"red_0": None, "red_1": others, "blue_0": None}
    envs = make_here([lambda: Scripted([some] * 3)])
    for step in (envs.reset(), *(envs.step(np.zeros((1, 3), int)) for _ in range(2))):
        assert step.infos[0] == {"red_0": {}, "red_1": others, "blue_0": {}}


@pytest.mark.parametrize("wrong", [None, [1, 2, 3]])
def test_infos_that_are_no_dict_are_refused_also_after_others(make_here, wrong):
    envs = make_here([lambda: Scripted([SCORE, SCORE, wrong])])
    envs.reset()
    envs.step(np.zeros((1, 3), int))
    with pytest.raises(EnvError, match="expected a dict of infos by agent, got"):
        envs.step(np.zeros((1, 3), int))


def test_masks_that_come_late_do_not_stay(make_here):
    mask = np.array([True, False, False, False])
    masked = {agent: {"action_mask": mask} for agent in AGENTS}
    hits = {agent: {"hits": 1} for agent in AGENTS}
    late = [hits, SCORE, SCORE, masked, SCORE, SCORE]
    envs = make_here([lambda: Scripted([masked] * 6), lambda: Scripted(late)])
    steps = [envs.reset(), *(envs.step(np.zeros((2, 3), int)) for _ in range(5))]
    allowed = [step.action_masks[1].all() for step in steps]
    assert allowed == [True, True, True, False, True, True]


@pytest.mark.parametrize("steady", [1.0, 0.5])
def test_columns_of_the_next_actions_infos_are_those_of_the_dicts(make_here, steady):
    keys = ["score", "hits"]
    envs = make_here([lambda seed=seed: Talker(seed, keys, steady, 0.5) for seed in range(4)])
    envs.reset()
    starts = 0
    for _ in range(40):
        step = envs.step(np.zeros((4, 3), int))
        starts += step.first is not None and len(step.first.env_ids)
        infos = step.next().infos
        for agent in AGENTS:
            for key in keys:
                values, present = infos.column(agent, key)
                told = [info.get(agent, {}) for info in infos]
                assert present.tolist() == [key in info for info in told]
                for value, info in zip(values[present], (i for i in told if key in i), strict=True):
                    assert np.array_equal(value, info[key])
    assert starts > 20


def test_infos_for_the_next_actions_are_those_that_were_set(make_here):
    envs = make_here([lambda: Talker(0, [], 1.0, 1.0), lambda: Talker(0, [], 1.0, 0.0)])
    envs.reset()
    step = envs.step(np.zeros((2, 3), int))
    step.infos[0], step.infos[1] = {"of": "the end"}, {"of": "the user"}
    assert step.first.env_ids.tolist() == [0]
    assert list(step.next().infos) == [step.first.infos[0], {"of": "the user"}]


@pytest.mark.parametrize("key", [5, ("a", 1), None])
def test_keys_that_are_no_strings_have_columns_too(make_here, key):
    infos = {**{agent: {key: place} for place, agent in enumerate(AGENTS)}, key: 7}
    envs = make_here([lambda: Scripted([SCORE, infos]), lambda: Scripted([SCORE, SCORE])])
    envs.reset()
    infos = envs.step(np.zeros((2, 3), int)).infos
    assert (infos[0]["blue_0"][key], infos[0][key]) == (2, 7)
    values, present = infos.columns(key)
    assert present.tolist() == [[True] * 3, [False] * 3]
    assert values[0].tolist() == [0, 1, 2]
    values, present = infos.column((key,) if isinstance(key, tuple) else key)
    assert present.tolist() == [True, False]
    assert values[0] == 7


@pytest.mark.parametrize("keys", [(1, True, 1.0), (0.0, False, 0)])
def test_equal_keys_of_several_types_keep_their_types(make_here, keys):
    for key in keys:
        envs = make_here([lambda key=key: Scripted([{agent: {key: 5} for agent in AGENTS}])])
        assert [repr(got) for got in envs.reset().infos[0]["red_0"]] == [repr(key)]


class Key(str, Enum):
    RED = "red"


def test_keys_that_are_enums_are_their_strings(make_here):
    infos = {**{agent: {Key.RED: place} for place, agent in enumerate(AGENTS)}, Key.RED: 7}
    envs = make_here([lambda: Scripted([infos])])
    infos = envs.reset().infos
    assert infos[0] == {"red_0": {"red": 0}, "red_1": {"red": 1}, "blue_0": {"red": 2}, "red": 7}
    assert infos.columns(Key.RED)[0].tolist() == [[0, 1, 2]]
    assert infos.column("red")[0].tolist() == [7]


@pytest.mark.parametrize("value", [2**60 + 1, np.arange(3), True, "far"])
def test_columns_keep_the_values_of_an_agent_if_others_have_none(make_here, value):
    told = {"red_0": {"key": value}, "red_1": {}, "blue_0": {}}
    envs = make_here([lambda: Scripted([told]), lambda: Scripted([SCORE])])
    values, present = envs.reset().infos.columns("key")
    assert present.tolist() == [[True, False, False], [False] * 3]
    assert type(values[0, 0]) in (type(value), np.int64, np.bool_)
    assert np.array_equal(values[0, 0], value)


def test_columns_of_arrays_of_several_shapes_have_objects(make_here):
    told = {agent: {"key": np.arange(place)} for place, agent in enumerate(AGENTS, start=2)}
    envs = make_here([lambda: Scripted([told])] * 2)
    values, present = envs.reset().infos.columns("key")
    assert present.all()
    assert [each.tolist() for each in values[1]] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
