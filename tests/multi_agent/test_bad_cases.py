"""What cannot be done is refused, by the environment's index and the agent's name."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from agents_envs import FOREVER, Broken, Herd, Squad, Staying
from gymnasium import spaces

from xuance_envs import EnvError, MultiAgentVecEnv


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("reward_array", r"agent 'sheep_1': invalid reward: .*shape \(2,\)"),
        ("reward_missing", "agent 'sheep_1': expected an entry in the rewards that step returned"),
        ("flag_array", r"agent 'sheep_1': invalid terminated: .*shape \(2,\)"),
        ("observation_shape", r"agent 'sheep_1': invalid observation: expected shape \(4,\), got"),
        ("observation_missing", "agent 'sheep_1': expected an entry in the observations that step"),
        ("stranger", "agent 'goat' is not in possible_agents"),
        ("agents_none", "expected agents to be a list of the active agents, got None"),
        ("agents_twice", r"each agent at most once in agents, got \['sheep_1', 'sheep_1'\]"),
        (
            "agents_that_stay",
            r"expected an empty list as env\.agents .* got \['sheep_0', 'sheep_1', 'sheep_2'",
        ),
        ("reset_key", "info key 'reset_obs' is reserved .*: rename it in the environment"),
        ("state_raises", r"invalid state: state\(\) raised ZeroDivisionError: .* use state=False"),
        ("info_string", "agent 'sheep_1': expected a dict as info, got 'well'"),
        ("mask_length", "agent 'sheep_1': invalid action_mask: expected 3 bools, one per action"),
        ("four_values", "step: expected a tuple"),
        ("raises", "RuntimeError: the fence broke"),
        (
            "state_shape",
            r"invalid state: expected shape \(2,\), got shape \(3,\) from state\(\); .*=False",
        ),
    ],
)
def test_what_a_step_returns_is_checked(make_here, broken, told):
    fine = partial(Herd, masks="info")
    envs = make_here([fine, fine, partial(Broken, broken, masks="info"), fine])
    envs.reset(seed=0)
    envs.step(np.zeros((4, 3), int))
    with pytest.raises(EnvError, match=told) as raised:
        envs.step(np.zeros((4, 3), int))
    assert raised.value.env_index == 2
    assert raised.value.command == "step"
    assert envs.closed


@pytest.mark.everywhere
@pytest.mark.parametrize(
    ("ends", "leaves"),
    [
        ({"sheep_0": 1, "sheep_1": 3, "sheep_2": 2}, {}),
        ({"sheep_0": 1, "sheep_1": 3}, {"sheep_2": 2}),
        ({"sheep_0": 1, "sheep_1": 2}, {"sheep_2": 3}),
    ],
)
def test_agents_that_end_one_by_one_have_to_leave(make, ends, leaves):
    envs = make([partial(Staying, ends, leaves, length=99)] * 2)
    envs.reset(seed=0)
    for _ in range(2):
        assert not envs.step(np.zeros((2, 3), int)).episode_over.any()
    with pytest.raises(EnvError, match=r"an empty list as env\.agents after all agents were term"):
        envs.step(np.zeros((2, 3), int))


def test_agents_that_have_ended_are_part_of_the_state(make_here):
    env_fns = [partial(Staying, {"sheep_0": 1, "sheep_1": 2, "sheep_2": 3}, length=99)]
    envs, others = make_here(env_fns), make_here(env_fns)
    envs.reset(), others.reset()
    for _ in range(2):
        envs.step([[0, 0, 0]])
    others.load_state(envs.save_state())
    with pytest.raises(EnvError, match=r"expected an empty list as env\.agents"):
        others.step([[0, 0, 0]])
    envs.reset()
    for _ in range(2):
        assert not envs.step([[0, 0, 0]]).episode_over.any()


class Unseen(Herd):
    """A herd whose newcomers have no observation."""

    def step(self, actions):
        observations, *rest = super().step(actions)
        return {agent: observations[agent] for agent in actions}, *rest


@pytest.mark.everywhere("observation")
@pytest.mark.parametrize("masks", [None, "observation"])
def test_a_newcomer_has_an_observation(make, masks):
    plays = {"sheep_0": (1, FOREVER), "late": (2, FOREVER)}
    envs = make([partial(Herd, plays, masks=masks), partial(Unseen, plays, masks=masks)])
    envs.reset()
    told = r"agent 'late': expected an observation from step, .* got observations of \['sheep_0'\]"
    with pytest.raises(EnvError, match=told) as raised:
        envs.step([{"sheep_0": 0}] * 2)
    assert raised.value.env_index == 1


@pytest.mark.parametrize("key", ["reset_obs", "reset_info"])
def test_xuances_infos_have_no_keys_of_the_next_episode(make_here, key):
    class Telling(Squad):
        def reset(self):
            return self.seen(), {key: 1}

    with pytest.raises(EnvError, match=f"info key '{key}' is reserved"):
        make_here([Telling]).reset()


class Vague(Herd):
    """A herd about which something is not as it should be."""

    def __init__(self, **changes):
        super().__init__()
        for name, value in changes.items():
            setattr(self, name, value)


class Turns(Herd):
    """A turn-based environment, as far as can be seen."""

    def last(self):
        pass

    def observe(self, agent):
        pass


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (partial(Vague, possible_agents=[]), "expected at least one agent in possible_agents"),
        (partial(Vague, possible_agents=["sheep_0"] * 2), "expected each agent once"),
        (partial(Vague, possible_agents=None), "without possible_agents"),
        (
            partial(Vague, observation_space=lambda agent: spaces.Text(5)),
            r"agent 'sheep_0': its observation space: expected Box, .*, got Text",
        ),
        (
            partial(
                Vague,
                action_space=lambda agent: spaces.Dict(
                    {"say": spaces.Text(3) if agent == "sheep_2" else spaces.Discrete(2)}
                ),
            ),
            r"agent 'sheep_2': its action space: .*, got Text.* at \['say'\]",
        ),
        (partial(Vague, state_space=spaces.Graph(spaces.Discrete(2), None)), "its state space"),
        (partial(Vague, observation_space=None), "expected a multi-agent environment"),
        (partial(SimpleNamespace), r"without reset\(\)"),
        (Turns, "turn-based .*is_parallelizable"),
        (partial(Squad, lives=()), "expected at least one agent"),
    ],
)
def test_environments_that_cannot_be_carried_are_refused(make_here, env, told):
    with pytest.raises(EnvError, match=told) as raised:
        make_here([Herd, Herd, env])
    assert raised.value.env_index == 2
    assert raised.value.command == "construct"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"state": "maybe"}, "state: expected True, False or 'auto', got 'maybe'"),
        ({"action_masks": 3}, "action_masks: expected True, False or 'auto', got 3"),
        ({"groups": {"one": ["sheep_0"]}}, "expected each of the agents"),
        ({"groups": {"one": ["sheep_0", "sheep_1", "sheep_2"], "none": []}}, "no empty group"),
    ],
)
def test_options_are_checked(make_here, options, told):
    with pytest.raises(EnvError, match=told):
        make_here([Herd], **options)


def test_groups_have_equal_spaces(make_here):
    with pytest.raises(EnvError, match=r"equal spaces in group 'a', got \(.*\) for 'sheep_0' and"):
        make_here([partial(Herd, kinds=2)], groups={"a": ["sheep_0", "sheep_1"], "b": ["sheep_2"]})


def test_an_environment_without_a_state_says_what_to_do(make_here):
    class Silent(Herd):
        def state(self):
            raise NotImplementedError

    with pytest.raises(
        EnvError, match=r"invalid state: state\(\) raised NotImplementedError.*state=False"
    ):
        make_here([Silent]).reset()
    assert make_here([Silent], state=False).reset().state is None


def test_a_state_that_is_wanted_has_to_be_there(make_here):
    with pytest.raises(EnvError, match="state=True: expected an environment with a state_space"):
        make_here([partial(Vague, state_space=None)], state=True)


def test_masks_that_are_wanted_have_to_be_there(make_here):
    envs = make_here([Herd], action_masks=True)
    with pytest.raises(EnvError, match="action_masks=True: expected an action mask"):
        envs.reset()
    boxes = partial(Vague, action_space=lambda agent: spaces.Box(-1, 1, (2,)))
    with pytest.raises(EnvError, match="action_masks=True: expected Discrete or"):
        make_here([boxes], action_masks=True)


@pytest.mark.everywhere
def test_a_reset_without_agents_is_refused(make):
    envs = make(
        [Herd, partial(Herd, plays={"sheep_0": (2, 3), "sheep_1": (3, 4), "sheep_2": (3, 4)})]
    )
    with pytest.raises(EnvError, match="reset: expected at least one agent") as raised:
        envs.reset()
    assert raised.value.env_index == 1


def test_agents_have_to_be_the_same_in_all_environments(make):
    with pytest.raises(RuntimeError, match="environment 1 has a different observation_space"):
        make([Herd, partial(Herd, kinds=2)])


def test_keys_have_to_be_in_the_same_order_in_all_environments(make):
    class Pair(Herd):
        def observation_space(self, agent):
            keys = ("p", "q") if self.length == 7 else ("q", "p")
            return spaces.Dict([(key, spaces.Box(0, 1, (4,), np.float32)) for key in keys])

    with pytest.raises(RuntimeError, match="environment 1 has a different observation_space"):
        make([Pair, partial(Pair, length=8)])


def test_the_same_environment_twice_is_found_out(make_here):
    env = Herd()
    with pytest.raises(ValueError, match="returned the same object"):
        make_here([lambda: env] * 2)


@pytest.mark.parametrize(
    ("actions", "told"),
    [
        (
            [{"sheep_0": 1, "sheep_1": 1}] * 2,
            "environment 0: expected an action for active agent 'sheep_2'",
        ),
        (
            [dict.fromkeys(("sheep_0", "sheep_1", "sheep_2", "goat"), 1)] * 2,
            r"unknown agents \['goat'\]",
        ),
        (
            [dict.fromkeys(("sheep_0", "sheep_1", "sheep_2"), 1)],
            "expected a list of 2 dicts, one per environment, got 1",
        ),
        (
            [dict.fromkeys(("sheep_0", "sheep_1", "sheep_2"), 0.5)] * 2,
            "environment 0, agent 'sheep_0'",
        ),
        ([{"sheep_0": 1, "sheep_1": 1, "sheep_2": 1}, 3], "environment 1: expected a dict, got 3"),
        (np.zeros((2, 4), int), r"expected shape \(2, 3\), got shape \(2, 4\)"),
        (np.full((2, 3), 0.5), "expected values that fit dtype int64"),
        (np.ma.masked_less(np.ones((2, 3), int), 2), "expected no masked values, got 6"),
        (None, "expected an array|expected shape"),
        (
            {f"sheep_{i}": np.zeros(2, int) for i in range(3)},
            r"expected an array of shape \(2, 3\), or a list with a dict \{agent: action\}",
        ),
    ],
)
def test_actions_that_do_not_fit_are_refused_and_nothing_happens(make_here, actions, told):
    envs = make_here([Herd] * 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=told):
        envs.step(actions)
    step = envs.step(np.zeros((2, 3), int))
    assert step.infos.column("sheep_0", "t")[0].tolist() == [1, 1]
    (given,) = envs.get_attr("given", env_ids=[1])
    assert list(given[0].values()) == [0, 0, 0]


def test_actions_by_group_are_refused_by_the_groups_name(make_here):
    envs = make_here([partial(Herd, kinds=2)])
    envs.reset()
    with pytest.raises(ValueError, match=r"expected a dict with the groups \['sheep', 'sheep_1'\]"):
        envs.step({"sheep": [[0, 0]]})
    with pytest.raises(ValueError, match="group 'sheep_1': expected shape"):
        envs.step({"sheep": [[0, 0]], "sheep_1": [[0, 0]]})
    with pytest.raises(ValueError, match="expected a dict with the groups"):
        envs.step(np.zeros((1, 3), int))
    assert envs.step({"sheep": [[0, 0]], "sheep_1": [[0]]}).acted.all()


def test_there_is_no_other_backend():
    with pytest.raises(ValueError, match="backend: expected one of 'auto', 'dummy'"):
        MultiAgentVecEnv([Herd], backend="threads")
    with pytest.raises(ValueError, match=r"all of these options together: caller_steps \("):
        MultiAgentVecEnv([Herd], caller_steps=True, actors="core")
    with pytest.raises(ValueError, match="at least one function"):
        MultiAgentVecEnv([], backend="dummy")


def test_turn_based_environments_that_allow_it_are_turned():
    rps = pytest.importorskip("pettingzoo.classic.rps_v2")
    with MultiAgentVecEnv([partial(rps.env, max_cycles=3)] * 2, backend="dummy") as envs:
        step = envs.reset(seed=0)
        assert step.alive.all()
        for _ in range(3):
            step = envs.step([[0, 1], [2, 1]])
        assert step.rewards[0].tolist() == [-1, 1]
        assert step.episode_over.all()
    tic = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    with pytest.raises(EnvError, match="is turn-based"):
        MultiAgentVecEnv([tic.env], backend="dummy")
