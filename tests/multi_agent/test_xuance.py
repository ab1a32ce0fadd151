"""XuanCe's names: lists and dicts, new ones at each step, and what a step means there."""

from __future__ import annotations

import copy
import os
import signal
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from agents_envs import FOREVER, MIXED, Herd, Silent, Squad
from comparing import assert_same
from gymnasium import spaces

import xuance_envs
from xuance_envs import (
    DummyVecEnv_Football,
    DummyVecEnv_StarCraft2,
    DummyVecMultiAgentEnv,
    MPE_Env,
    MultiAgentEnv,
    MultiAgentVecEnv,
    RawMultiAgentEnv,
    SubprocVecEnv_Football,
    SubprocVecEnv_StarCraft2,
    SubprocVecMultiAgentEnv,
    XuanCeMultiAgentEnvWrapper,
)

SUBPROC = {"context": "forkserver", "in_series": 2}
CLASSES = [DummyVecMultiAgentEnv, partial(SubprocVecMultiAgentEnv, **SUBPROC)]


@pytest.fixture(params=CLASSES, ids=["dummy", "subproc"])
def make(request):
    made = []

    def make(*args, **options):
        made.append(request.param(*args, **options))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def wrapped(env_seed=None, **options):
    return XuanCeMultiAgentEnvWrapper(Squad(env_seed, **options))


@pytest.mark.parametrize("fn", [Squad, wrapped], ids=["raw", "wrapped"])
def test_steps_are_those_of_a_plain_loop(make, fn):
    envs = make([fn] * 3, 4)
    bare = [wrapped(env_seed=4 + i) for i in range(3)]
    obs, infos = envs.reset()
    held = [env.reset() for env in bare]
    for i in range(3):
        assert_same(obs[i], held[i][0])
        assert_same(infos[i], held[i][1])
    for t in range(1, 15):
        actions = [{agent: np.int64((t + i) % 3) for agent in envs.agents} for i in range(3)]
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        assert [type(part) for part in (obs, rewards, terminated, truncated, infos)] == [list] * 5
        for i, env in enumerate(bare):
            o, r, te, tr, info = env.step(actions[i])
            if tr or all(te.values()):
                first, told = env.reset()
                info["reset_obs"] = first
                info["reset_avail_actions"] = told["avail_actions"]
                info["reset_state"] = told["state"]
            assert_same([obs[i], rewards[i], terminated[i], truncated[i]], [o, r, te, tr])
            assert_same(infos[i], info)
            assert_same(envs.buf_obs[i], o)
            assert_same(envs.buf_state[i], info["state"])
            assert_same(envs.buf_avail_actions[i], info["avail_actions"])


def test_what_a_step_returned_stays_and_may_be_written_into(make):
    envs = make([Squad] * 2, 1)
    obs, infos = envs.reset()
    obs[0] = infos[1]["state"] = None
    obs[1]["red_0"][:] = 77
    envs.buf_obs[0] = envs.buf_state[1] = None
    held = []
    for _ in range(8):
        result = envs.step([dict.fromkeys(envs.agents, 1)] * 2)
        held.append((result, copy.deepcopy(result)))
        result[0][0] = {}
        held[-1][1][0][0] = {}
    for now, then in held:
        assert_same(list(now), list(then))


def test_without_copies_arrays_are_good_until_the_next_step(make):
    envs = make([Squad] * 2, 1, copy=False)
    obs, infos = envs.reset()
    actions = [dict.fromkeys(envs.agents, 1)] * 2
    for given in (obs[1]["red_0"], infos[1]["state"], infos[1]["avail_actions"]["red_0"]):
        assert not given.flags.writeable
    before = obs[1]["red_0"].copy()
    obs_then, infos_then, *_ = envs.step(actions)
    assert obs_then[1] is not obs[1]
    assert infos_then[1] is not infos[1]
    assert (obs[1]["red_0"] == obs_then[1]["red_0"]).all()
    assert (obs[1]["red_0"] != before).any()


def test_what_is_said_of_the_environments(make):
    envs = make([Squad] * 2)
    assert envs.env_info["num_enemies"] == 2
    assert envs.groups_info["num_agents_groups"] == [3]
    assert envs.agents == ["red_0", "red_1", "red_2"]
    assert (envs.num_envs, envs.num_agents, envs.max_episode_steps) == (2, 3, 6)
    assert envs.observation_space["red_1"].shape == (4,)
    assert envs.action_space["red_1"].n == 3
    assert envs.state_space.shape == (3,)
    assert not envs.waiting
    envs.reset()
    assert len(envs.render("rgb_array")) == 2
    envs.close()
    assert envs.closed
    envs.close()


def test_the_environments_of_this_process_can_be_had():
    with DummyVecMultiAgentEnv([Squad] * 2) as envs:
        assert [type(env) for env in envs.envs] == [Squad] * 2
    assert envs.envs == []


def test_one_environment_takes_its_actions_bare(make):
    envs = make([Squad])
    envs.reset()
    assert envs.step(dict.fromkeys(envs.agents, 1))[3] == [False]


def test_a_dead_agent_has_its_mask_and_no_key_is_missing(make):
    envs = make([partial(Squad, lives=(9, 2, 9))])
    envs.reset()
    masks = [envs.step([dict.fromkeys(envs.agents, 0)])[4][0]["agent_mask"] for _ in range(6)]
    assert [mask["red_1"] for mask in masks] == [True] + [False] * 5
    assert all(mask["red_0"] for mask in masks)


def test_pettingzoos_environments_have_xuances_form(make):
    plays = {"sheep_0": (1, 2), "sheep_1": (1, 4)}
    envs = make([partial(Herd, plays=plays, masks="info")] * 2)
    _, infos = envs.reset(seed=0)
    assert infos[0]["agent_mask"] == {"sheep_0": True, "sheep_1": True}
    ends = []
    for _ in range(4):
        _, rewards, terminated, truncated, infos = envs.step([dict.fromkeys(envs.agents, 1)] * 2)
        ends.append((*terminated[0].values(), truncated[0], *infos[0]["agent_mask"].values()))
    assert ends == [
        (False, False, False, True, True),
        (True, False, False, True, True),
        (True, False, False, False, True),
        (True, True, False, False, True),
    ]
    assert rewards[0]["sheep_0"] == 0
    assert infos[0]["episode_step"] == 4
    assert infos[0]["reset_avail_actions"]["sheep_1"].dtype == np.bool_
    assert infos[0]["reset_state"].tolist() == [0, 0]


def test_the_limit_of_pettingzoos_environments_is_truncation(make):
    plays = {"sheep_0": (1, 1), "sheep_1": (1, FOREVER)}
    envs = make([partial(Herd, plays=plays, length=2)])
    envs.reset()
    actions = [dict.fromkeys(envs.agents, 1)]
    assert envs.step(actions)[3] == [False]
    assert envs.step(actions)[3] == [True]


def test_pettingzoos_episodes_that_end_without_flags_are_terminated(make):
    envs = make([partial(Silent, length=2)])
    envs.reset()
    ends = [envs.step([dict.fromkeys(envs.agents, 1)])[2:4] for _ in range(2)]
    flags = [(list(terminated[0].values()), truncated) for terminated, truncated in ends]
    assert flags == [([False] * 3, [False]), ([True] * 3, [False])]


def test_groups_of_agents_are_dicts_of_all(make):
    envs = make([partial(Herd, plays=MIXED, kinds=2, masks="observation")] * 2)
    obs, _ = envs.reset(seed=0)
    assert list(obs[0]) == list(envs.agents)
    assert obs[1]["sheep_0"]["observation"].shape == (5,)
    assert obs[1]["sheep_1"]["action_mask"].dtype == np.int8
    assert envs.env_info["num_agents"] == 4
    assert envs.groups_info["num_groups"] == 2


class Blind(Herd):
    """Two of its agents observe nothing, and the third observes nothing in one part."""

    def observation_space(self, agent):
        nothing = spaces.Dict()
        return spaces.Tuple((nothing, spaces.Discrete(2))) if agent == "sheep_1" else nothing

    def seen(self, agents):
        return {agent: ({}, 1) if agent == "sheep_1" else {} for agent in agents}


def test_observations_without_values_are_returned(make):
    envs = make([Blind] * 2)
    obs, _ = envs.reset(seed=0)
    assert obs == [{"sheep_0": {}, "sheep_1": ({}, 1), "sheep_2": {}}] * 2
    assert envs.step([dict.fromkeys(envs.agents, 0)] * 2)[0] == obs


class Mapped(Squad):
    """Its state is a dict with a tuple."""

    def __init__(self, env_seed=None):
        super().__init__(env_seed)
        pulses = [spaces.Box(0, 1, (1,), np.float64)] * 2
        self.state_space = spaces.Dict(time=spaces.Discrete(99), pulse=spaces.Tuple(pulses))

    def state(self):
        return {"time": np.int64(self.t), "pulse": tuple(np.split(self.pulse, 2))}


def test_states_may_be_nested(make):
    envs, bare = make([Mapped] * 2, 1), [Mapped(env_seed=1 + i) for i in range(2)]
    actions = dict.fromkeys(envs.agents, 0)
    _, infos = envs.reset()
    for i, env in enumerate(bare):
        env.reset()
        assert_same(infos[i]["state"], env.state())
    for _ in range(8):
        *_, infos = envs.step([actions] * 2)
        for i, env in enumerate(bare):
            over = env.step(actions)[3]
            assert_same(infos[i]["state"], env.state())
            assert_same(envs.buf_state[i], env.state())
            if over:
                env.reset()
                assert_same(infos[i]["reset_state"], env.state())


def test_a_reset_is_that_of_all_environments(make):
    envs = make([Squad] * 2)
    with pytest.raises(TypeError, match="env_ids"):
        envs.reset(env_ids=[1])


def test_an_end_is_told_apart_from_a_lost_worker():
    options = {**SUBPROC, "on_worker_failure": "restart"}
    with SubprocVecEnv_StarCraft2([Squad] * 4, 1, **options) as envs:
        envs.reset()
        envs.step([dict.fromkeys(envs.agents, 1)] * 4)
        os.kill(envs.envs_of_agents.vec_env.pids[0], signal.SIGKILL)
        *_, terminated, truncated, infos = envs.step([dict.fromkeys(envs.agents, 1)] * 4)
        assert truncated == [True, True, False, False]
        assert not any(any(each.values()) for each in terminated)
        assert infos[0]["worker_restarted"] is True
        assert infos[0]["reset_state"].shape == (3,)
        assert envs.battles_game.tolist() == [1, 1, 0, 0]


GAMES = [DummyVecEnv_StarCraft2, partial(SubprocVecEnv_StarCraft2, **SUBPROC)]
GAMES += [DummyVecEnv_Football, partial(SubprocVecEnv_Football, **SUBPROC)]


@pytest.mark.parametrize("kind", GAMES)
def test_the_battles_of_starcraft_and_the_matches_of_football(kind):
    with kind([Squad] * 2, 1) as envs:
        envs.reset()
        for _ in range(13):
            envs.step([dict.fromkeys(envs.agents, 1)] * 2)
        assert envs.battles_game.tolist() == envs.battles_won.tolist() == [2, 2]
        if "Football" in type(envs).__name__:
            assert envs.num_adversaries == 2
            return
        assert envs.num_enemies == 2
        assert envs.dead_allies_count.tolist() == [2, 2]
        assert envs.dead_enemies_count.tolist() == [4, 4]


class Smallest(RawMultiAgentEnv):
    """What has to be defined, and nothing else."""

    def __init__(self, env_seed=None):
        super().__init__()
        squad = Squad(env_seed)
        self.agents, self.num_agents, self.max_episode_steps = squad.agents, 3, 4
        self.observation_space, self.action_space = squad.observation_space, squad.action_space

    def reset(self, **kwargs):
        return {agent: np.zeros(4, np.float32) for agent in self.agents}, {}

    def step(self, actions):
        zeros = dict.fromkeys(self.agents, 0.0)
        return self.reset()[0], zeros, dict.fromkeys(self.agents, False), False, {}


def test_an_environment_of_ones_own(make):
    envs = make([Smallest] * 2, 1)
    _, infos = envs.reset()
    assert infos[0]["state"] is None
    assert infos[0]["agent_mask"] == dict.fromkeys(envs.agents, True)
    assert infos[0]["avail_actions"]["red_0"].tolist() == [True] * 3
    assert envs.env_info["max_episode_steps"] == 4
    assert envs.groups_info == {
        "num_groups": 0,
        "agent_groups": [],
        "observation_space_groups": [],
        "action_space_groups": [],
        "num_agents_groups": [],
    }
    env = MultiAgentEnv(Smallest())
    assert env.reset()[1]["episode_step"] == 0
    assert env.step({})[4]["episode_score"] == dict.fromkeys(env.agents, 0.0)
    assert env.unwrapped.num_agents == env.num_agents == 3
    with pytest.raises(NotImplementedError, match="has no state"):
        Smallest().state()
    with pytest.raises(TypeError):
        RawMultiAgentEnv()


@pytest.mark.filterwarnings("ignore:.*moved to `mpe2`:DeprecationWarning")  # PettingZoo 1.25's
@pytest.mark.parametrize("continuous", [False, True])
def test_particle_worlds(make, continuous):
    pytest.importorskip("mpe2")
    config = SimpleNamespace(
        env_id="simple_spread_v3", render_mode=None, continuous_action=continuous
    )

    def fn(env_seed):
        return MPE_Env(SimpleNamespace(**vars(config), env_seed=env_seed))

    envs = make([fn] * 2, 1)
    world = fn(1)
    obs, infos = envs.reset()
    assert_same(obs[0], world.reset()[0])
    action = np.full(5, 3, np.float32) if continuous else 2
    given = [dict.fromkeys(envs.agents, action) for _ in range(2)]
    for _ in range(25):
        obs, rewards, _, truncated, infos = envs.step(given)
        o, r, _, tr, _ = world.step(given[0])
        assert_same([obs[0], rewards[0], truncated[0]], [o, dict(r), tr])
    assert truncated == [True, True]
    assert (infos[0]["avail_actions"] is None) == continuous
    assert envs.max_episode_steps == 25
    if continuous:
        assert action.tolist() == [3] * 5  # what the caller gave is not clipped
    with pytest.raises(ImportError, match=r"no_such_world.*multi-agent"):
        MPE_Env("no_such_world")


def test_the_groups_of_worlds_are_xuances():
    pytest.importorskip("mpe2")
    assert MPE_Env("simple_push_v3").agent_groups == [["agent_0"], ["adversary_0"]]
    assert MPE_Env("simple_adversary_v3").agent_groups == [["adversary_0"], ["agent_0", "agent_1"]]
    assert MPE_Env("simple_spread_v3").agent_groups == []


def test_the_names_are_to_be_had_from_the_package():
    assert xuance_envs.MultiAgentEnv is XuanCeMultiAgentEnvWrapper


class Speaking(Smallest):
    """The first agent acts alone after one step; actions are dicts."""

    def __init__(self, env_seed=None):
        super().__init__(env_seed)
        say = spaces.Dict(word=spaces.Discrete(4))
        self.action_space = dict.fromkeys(self.agents, say)
        self.received = []

    def agent_mask(self):
        return {agent: agent == "red_0" or not self.received for agent in self.agents}

    def step(self, actions):
        self.received.append([int(actions[agent]["word"]) for agent in self.agents])
        return super().step(actions)


def test_an_inactive_agent_without_an_action_does_not_repeat_its_last_one():
    with MultiAgentVecEnv([Speaking], backend="dummy") as envs:
        envs.reset()
        envs.step([{agent: {"word": 3} for agent in ("red_0", "red_1", "red_2")}])
        envs.step([{"red_0": {"word": 2}}])
        assert envs.get_attr("received")[0] == [[3, 3, 3], [2, 0, 0]]
