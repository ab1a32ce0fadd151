"""What a step, a reset and the rest of the interface take and return."""

from __future__ import annotations

import copy
import operator
import os
import pickle
import signal
from functools import partial

import numpy as np
import pytest
from agents_envs import (
    ALL_END,
    FOREVER,
    MIXED,
    AllAtOnce,
    ArrayAgents,
    Crowd,
    Herd,
    Silent,
    Squad,
    Stateless,
    Uneven,
)
from bare_agents import assert_like_bare_loops
from gymnasium import spaces

from xuance_envs import DummyVecEnv, MultiAgentStep, MultiAgentVecEnv
from xuance_envs.errors import ClosedVecEnvError, EnvError, NotSteppingError, WorkerDiedError
from xuance_envs.multi_agent.adapters import agents_env


@pytest.mark.everywhere
def test_shapes_and_dtypes(make):
    envs = make([partial(Herd, masks="info")] * 2)
    step = envs.reset(seed=0)
    assert isinstance(step, MultiAgentStep)
    step = envs.step(np.zeros((2, 3), int))
    kinds = {name: (v.shape, v.dtype) for name, v in step._asdict().items() if hasattr(v, "dtype")}
    assert kinds == {
        "obs": ((2, 3, 4), np.float32),
        "rewards": ((2, 3), np.float32),
        **dict.fromkeys(("terminated", "truncated", "acted", "alive"), ((2, 3), np.bool_)),
        "episode_over": ((2,), np.bool_),
        "state": ((2, 2), np.float64),
        "action_masks": ((2, 3, 3), np.bool_),
        "env_ids": ((2,), np.intp),
    }
    assert step.first is None


def test_what_is_said_of_the_agents(make_here):
    envs = make_here([partial(Herd, plays=MIXED, kinds=2)] * 2)
    assert envs.agents == ("wolf_0", "sheep_0", "sheep_1", "sheep_2")
    assert envs.num_agents == 4
    assert envs.groups == {"wolf": ("wolf_0", "sheep_1"), "sheep": ("sheep_0", "sheep_2")}
    assert envs.observation_space["sheep_0"].shape == (5,)
    assert envs.action_space["sheep_1"].n == 3
    assert envs.state_space.shape == (2,)
    assert repr(envs) == "MultiAgentVecEnv(num_envs=2, num_agents=4)"
    envs.close()
    assert repr(envs) == "MultiAgentVecEnv(num_envs=2, num_agents=4, closed)"


def test_agents_have_spaces_of_their_own(make):
    envs = make([Herd] * 2)
    for i, space in enumerate(envs.action_space.values()):
        space.seed(i)
    alone = [Herd().action_space("sheep_0") for _ in range(3)]
    for i, space in enumerate(alone):
        space.seed(i)
    drawn = [[space.sample() for _ in range(20)] for space in envs.action_space.values()]
    assert drawn == [[space.sample() for _ in range(20)] for space in alone]


@pytest.mark.everywhere
def test_an_agents_end(make):
    envs = make([partial(Herd, plays=ALL_END)])
    envs.reset(seed=0)
    actions = np.zeros((1, 2), int)
    rows = [
        [step.acted, step.terminated, step.alive, step.episode_over[:, None]]
        for step in (envs.step(actions) for _ in range(5))
    ]
    yes, no = True, False
    assert [np.concatenate(row, 1).tolist()[0] for row in rows] == [
        [yes, yes, no, no, yes, yes, no],
        [yes, yes, yes, no, no, yes, no],  # the first ends: its flag, and its last observation
        [no, yes, no, no, no, yes, no],
        [no, yes, no, yes, no, no, yes],  # the other one, and with it the episode
        [yes, yes, no, no, yes, yes, no],  # the next episode has begun
    ]


def test_agents_that_end_without_flags_are_terminated(make):
    envs, silent = make([partial(Herd, plays=MIXED)] * 2), make([partial(Silent, plays=MIXED)] * 2)
    envs.reset(seed=0), silent.reset(seed=0)
    for _ in range(16):
        step, same = envs.step(np.zeros((2, 4), int)), silent.step(np.zeros((2, 4), int))
        np.testing.assert_array_equal(step.ends(), (step.terminated, step.truncated))
        assert not (same.terminated | same.truncated).any()
        terminated, truncated = same.ends()
        np.testing.assert_array_equal(terminated, step.terminated | step.truncated)
        assert not truncated.any()
        np.testing.assert_array_equal(same.episode_over, step.episode_over)
        assert terminated[same.acted & same.episode_over[:, None]].all()


@pytest.mark.parametrize("kind", [partial(Crowd, plays=MIXED), Squad])
def test_every_agent_that_acted_ends_with_the_episode(make_here, kind):
    envs = make_here([kind] * 3)
    envs.reset()
    overs = 0
    for _ in range(99):
        step = envs.step([dict.fromkeys(envs.agents, 1)] * 3)
        assert np.logical_or(*step.ends())[step.acted & ~step.alive].all()
        assert not step.alive[step.episode_over].any()
        overs += step.episode_over.sum()
    assert overs > 3


@pytest.mark.parametrize(
    ("flags", "own", "terminated", "truncated"),
    [
        ({"terminated": True}, {}, [1, 1, 1], [0, 0, 0]),
        ({"truncated": np.True_}, {}, [0, 0, 0], [1, 1, 1]),
        ({"terminated": True, "truncated": True}, {}, [1, 1, 1], [1, 1, 1]),
        ({"terminated": True}, {"truncated": "sheep_1"}, [1, 0, 1], [0, 1, 0]),
        ({"truncated": True}, {"terminated": "sheep_2"}, [0, 0, 1], [1, 1, 0]),
        ({"terminated": True}, None, [1, 1, 1], [0, 0, 0]),
        ({"truncated": True}, None, [0, 0, 0], [1, 1, 1]),
    ],
)
def test_a_flag_of_all_ends_all(make_here, flags, own, terminated, truncated):
    envs = make_here([partial(AllAtOnce, flags, own, length=length) for length in (3, 4)])
    envs.reset(seed=0)
    for t in range(1, 13):
        step = envs.step(np.zeros((2, 3), int))
        over = [t % 3 == 0, t % 4 == 0]
        assert step.episode_over.tolist() == over
        for i in range(2):
            assert step.terminated[i].tolist() == [over[i] and bool(flag) for flag in terminated]
            assert step.truncated[i].tolist() == [over[i] and bool(flag) for flag in truncated]
            assert step.alive[i].tolist() == [not over[i]] * 3


def test_a_flag_of_all_ends_xuances_environments(make):
    class Together(Squad):
        def step(self, actions):
            seen, rewards, _, truncated, info = super().step(actions)
            return (
                seen,
                rewards,
                {**dict.fromkeys(actions, False), "__all__": True},
                truncated,
                info,
            )

    envs = make([Together])
    envs.reset()
    step = envs.step([[0, 0, 0]])
    assert step.terminated.all()
    assert step.episode_over.all()


@pytest.mark.parametrize("plays", [MIXED, {3: (1, 2), 1: (1, FOREVER), 2: (2, FOREVER)}])
def test_agents_may_be_an_array(make, plays):
    env_fns = [partial(Herd, plays=plays, masks="info")] * 2
    envs = make([partial(array_agents, fn) for fn in env_fns])
    assert_like_bare_loops(envs, env_fns, steps=20)
    assert [type(agent) for agent in envs.agents] == [type(agent) for agent in plays]


def test_xuances_agents_may_be_an_array(make):
    envs, plain = make([partial(array_agents, Squad)], env_seed=1), make([Squad], env_seed=1)
    np.testing.assert_array_equal(envs.reset().obs, plain.reset().obs)
    actions = [dict.fromkeys(envs.agents, 1)]
    np.testing.assert_array_equal(envs.step(actions).obs, plain.step(actions).obs)


def array_agents(fn, **given):
    return ArrayAgents(fn(**given))


@pytest.mark.parametrize("fails", ["raises", None, np.zeros(0)])
def test_the_last_state_stays_where_there_is_none_at_the_end(make, fails):
    make_one = partial(Stateless, fails, plays=ALL_END)
    envs, plain = make([make_one] * 2), make([partial(Herd, plays=ALL_END)] * 2)
    before, same = envs.reset(seed=0), plain.reset(seed=0)
    for t in range(1, 9):
        if t == 4:  # in which the last agent ends, after the set of agents has changed
            state = envs.save_state()
            envs.step(np.zeros((2, 2), int)), envs.reset(seed=8)
            envs.load_state(state)
        step, same = envs.step(np.zeros((2, 2), int)), plain.step(np.zeros((2, 2), int))
        over = step.episode_over[:, np.newaxis]
        np.testing.assert_array_equal(step.state, np.where(over, before.state, same.state))
        before = step.next()
        np.testing.assert_array_equal(before.state, same.next().state)
    assert over.all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_multiwalker_needs_no_options(make_here):
    pytest.importorskip("Box2D")
    module = pytest.importorskip("pettingzoo.sisl.multiwalker_v9")
    envs = make_here([partial(module.parallel_env, max_cycles=20)])
    envs.reset(seed=1)
    overs = 0
    for _ in range(45):
        step = envs.step(np.full((1, 3, 4), 0.5, np.float32))
        assert step.state.any()
        overs += step.episode_over[0]
    assert overs >= 2


@pytest.mark.parametrize("masks", [None, "info"])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 0, 2]])
def test_masks_do_not_depend_on_the_order_of_first_resets(make, masks, order):
    envs = make([Herd, Herd, partial(Herd, masks=masks)])
    for env in order:
        step = envs.reset(seed=0, env_ids=[env])
        if env != order[-1]:  # it is not known yet that no environment has masks
            assert step.action_masks.shape == (1, 3, 3)
    assert (step.action_masks is None) == (masks is None)
    step = envs.step(np.zeros((3, 3), int))
    assert (step.action_masks is None) == (masks is None)
    if masks is not None:
        assert step.action_masks[:2].all()
        assert not step.action_masks[2].all()


@pytest.mark.everywhere
def test_masks_are_settled_by_the_first_results_of_all(make):
    envs = make([Herd, partial(Uneven, masks="info"), Herd, Herd])
    envs.async_reset(seed=0)
    seen = np.zeros(4, int)
    while not seen.all():
        step = envs.recv(min_envs=1)
        assert step.action_masks is not None
        seen[step.env_ids] += 1
        envs.send(np.zeros((len(step.env_ids), 3), int), step.env_ids)


class LateMasks(Herd):
    """A herd that has masks in its steps only."""

    def told(self, agents):
        self.masks = "info" if self.t else None
        return super().told(agents)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_only_resets_settle_masks(order):
    options = {"backend": "subproc", "context": "forkserver", "in_series": 1}
    with MultiAgentVecEnv([LateMasks, Herd], **options) as envs:
        for env in order:
            envs.reset(env_ids=[env])
            envs.send(np.zeros((1, 3), int), [env])
            step = envs.recv()
            assert (step.action_masks is None) == (env == order[-1])


@pytest.mark.everywhere("2")
@pytest.mark.parametrize("kinds", [1, 2])
def test_actions_as_arrays_and_as_dicts_are_the_same(make, kinds):
    make_one = partial(Herd, plays=MIXED, kinds=kinds)
    by_array, by_dict = make([make_one] * 2), make([make_one] * 2)
    by_array.reset(seed=4), by_dict.reset(seed=4)
    draw = np.random.default_rng(0)
    for _ in range(12):
        actions = draw.integers(3, size=(2, 4))
        dicts = [dict(zip(by_dict.agents, row, strict=True)) for row in actions]
        if kinds == 1:
            given = actions
        else:
            given = {"wolf": actions[:, [0, 2]], "sheep": actions[:, [1, 3]]}
        one, other = by_array.step(given), by_dict.step(dicts)
        np.testing.assert_equal(one.rewards, other.rewards)
        np.testing.assert_equal(one.obs, other.obs)


@pytest.mark.everywhere
def test_groups_as_told(make):
    groups = {"flock": ["sheep_2", "sheep_0"], "rest": ["sheep_1", "wolf_0"]}
    envs = make([partial(Herd, plays=MIXED)] * 2, groups=groups)
    assert envs.groups == {"flock": ("sheep_0", "sheep_2"), "rest": ("wolf_0", "sheep_1")}
    step = envs.reset(seed=0)
    plain = make([partial(Herd, plays=MIXED)] * 2)
    obs = plain.reset(seed=0).obs
    np.testing.assert_equal(step.obs["flock"], obs[:, [1, 3]])
    np.testing.assert_equal(step.obs["rest"], obs[:, [0, 2]])
    one = make([Herd], groups={"all": ["sheep_0", "sheep_1", "sheep_2"]})
    assert list(one.reset().obs) == ["all"]


def test_every_group_has_a_name_of_its_own(make_here):
    plays = dict.fromkeys(("wolf_0", "wolf", "wolf_1"), (1, FOREVER))
    envs = make_here([partial(Herd, plays=plays, kinds=3)])
    assert envs.groups == {"wolf": ("wolf_0",), "wolf_2": ("wolf",), "wolf_1": ("wolf_1",)}
    assert [obs.shape for obs in envs.reset().obs.values()] == [(1, 1, 4), (1, 1, 5), (1, 1, 6)]


def test_what_is_not_wanted_is_not_carried(make_here):
    envs = make_here([partial(Herd, masks="info")], state=False, action_masks=False)
    step = envs.reset()
    assert envs.state_space is None
    assert step.state is None
    assert step.action_masks is None
    assert step.infos[0]["sheep_1"]["action_mask"].dtype == np.bool_
    wanted = make_here([partial(Herd, masks="info")], action_masks=True)
    assert wanted.reset().action_masks.shape == (1, 3, 3)


def test_dead_agents_actions_are_ignored(make):
    envs = make([partial(Herd, plays=ALL_END)])
    envs.reset()
    for _ in range(3):
        envs.step([[0, 0]])
    assert np.isfinite(envs.step([{"sheep_0": 77, "sheep_1": 1}]).rewards).all()
    envs.step([[1, 1]])
    (given,) = envs.get_attr("given")
    assert [list(each) for each in given] == [["sheep_0", "sheep_1"]] * 2 + [["sheep_1"]] * 2 + [
        ["sheep_0", "sheep_1"]
    ]


def test_actions_have_the_form_that_spaces_draw(make_here):
    envs = make_here([partial(Herd, kinds=3)])
    envs.reset()
    envs.step([{"sheep_0": 1, "sheep_1": 2, "sheep_2": [0.5, -0.5]}])
    ((given,),) = envs.get_attr("given")
    assert [type(action) for action in given.values()] == [np.int64, np.int64, np.ndarray]
    assert given["sheep_2"].dtype == np.float32


class Fighting(Herd):
    """Its agents' actions are dicts, whose keys are not in alphabetical order."""

    def action_space(self, agent):
        return spaces.Dict(move=spaces.Discrete(4), attack=spaces.Discrete(4))

    def step(self, actions):
        self.taken = [[int(each["move"]), int(each["attack"])] for each in actions.values()]
        return super().step(dict.fromkeys(actions, 0))


def test_batches_of_actions_that_are_dicts_go_to_their_keys(make_here):
    envs = make_here([Fighting] * 2)
    envs.reset()
    envs.step({"move": [[1, 2, 3]] * 2, "attack": [[0, 0, 1]] * 2})
    assert envs.get_attr("taken") == ([[1, 0], [2, 0], [3, 1]],) * 2


class Nested(Fighting):
    """Its agents' actions are tuples with a dict."""

    def action_space(self, agent):
        return spaces.Tuple([super().action_space(agent), spaces.Discrete(2)])

    def step(self, actions):
        return super().step({agent: action for agent, (action, _) in actions.items()})


def test_batches_of_tuples_with_dicts_are_no_dicts_of_agents(make_here):
    envs = make_here([Nested] * 2)
    envs.reset()
    envs.step(({"move": [[1, 2, 3]] * 2, "attack": [[0, 0, 1]] * 2}, [[0, 1, 0]] * 2))
    assert envs.get_attr("taken") == ([[1, 0], [2, 0], [3, 1]],) * 2


def test_actions_may_be_empty(make_here):
    class Idle(Herd):
        def action_space(self, agent):
            return spaces.Box(0, 1, (0,), np.float32)

    envs = make_here([Idle] * 2)
    envs.reset()
    assert envs.step(np.zeros((2, 3, 0), np.float32)).acted.all()
    assert envs.get_attr("given")[1][0]["sheep_2"].shape == (0,)


def test_numbers_beyond_those_that_are_kept_are_what_they_are(make_here):
    envs = make_here([Herd])
    envs.reset()
    envs.step(np.array([[-1, 64, 2**40]]))
    ((given,),) = envs.get_attr("given")
    assert list(given.values()) == [-1, 64, 2**40]
    assert {type(action) for action in given.values()} == {np.int64}


@pytest.mark.everywhere
def test_partial_resets(make):
    envs = make([Herd] * 4)
    envs.reset(seed=0)
    before = envs.step(np.zeros((4, 3), int))
    step = envs.reset(seed=40, env_ids=[3, 1])
    assert step.env_ids.tolist() == [3, 1]
    assert step.obs.shape == (2, 3, 4)
    alone = make([Herd])
    np.testing.assert_equal(step.obs[:1], alone.reset(seed=43).obs)
    after = envs.step(np.zeros((4, 3), int))
    assert after.infos.column("sheep_0", "t")[0].tolist() == [2, 1, 2, 1]
    assert before.obs.shape == after.obs.shape


def test_a_partial_reset_during_a_step_knows_who_acts_in_the_other_environments(make):
    envs = make([partial(Herd, plays={"sheep_0": (1, FOREVER), "late": (2, FOREVER)})] * 2)
    envs.reset()
    envs.step_async([{"sheep_0": 0}] * 2)
    envs.reset(env_ids=[0])
    assert envs.agent_mask.tolist() == [[True, False], [True, False]]  # who acted in the step
    with pytest.raises(ValueError, match=r"environment 1: expected an action for .* 'late'"):
        envs.step([{"sheep_0": 0}] * 2)
    assert envs.step([{"sheep_0": 0}, {"sheep_0": 0, "late": 1}]).acted[1].all()


@pytest.mark.everywhere
def test_options_reach_the_environments(make):
    envs = make([Herd] * 2)
    assert envs.reset(options={"total": 5}).state[:, 1].tolist() == [5, 5]


@pytest.mark.everywhere
def test_infos_in_columns(make):
    envs = make([partial(Herd, plays=MIXED)] * 3)
    envs.reset(seed=0)
    for _ in range(4):
        step = envs.step(np.zeros((3, 4), int))
    values, mask = step.infos.column("sheep_0", "t")
    assert (values.tolist(), mask.tolist()) == ([4] * 3, [True] * 3)
    np.testing.assert_array_equal(step.infos.column(("sheep_0", "t")), (values, mask))
    values, mask = step.infos.columns("luck")
    assert mask.tolist() == [[False, True, True, True]] * 3
    assert values[1, 3] == step.infos[1]["sheep_2"]["luck"]
    with pytest.raises(KeyError, match="no agent 'goat'"):
        step.infos.column("goat", "t")


def test_infos_are_a_sequence(make_here):
    envs = make_here([Herd] * 2)
    infos = envs.reset(seed=0).infos
    assert len(infos) == 2
    assert infos[0] is infos[0]
    assert infos[-1] is infos[1]
    assert infos[:] == [infos[0], infos[1]] == list(infos)
    assert pickle.loads(pickle.dumps(infos)) == infos
    assert repr(infos) == repr(list(infos))
    assert operator.add(infos, [{}]) == [*infos, {}]
    assert infos.copy() == list(infos)
    infos[0] = {"other": 1}
    assert infos[0] == {"other": 1}
    with pytest.raises(IndexError):
        infos[2]


@pytest.mark.everywhere
def test_first_ready(make):
    make_one = partial(Herd, plays=MIXED)
    envs, plain = make([make_one] * 4), make([make_one] * 4)
    whole = plain.reset(seed=3)
    envs.async_reset(seed=3)
    step = envs.recv(min_envs=4)
    np.testing.assert_equal(step.obs, whole.obs)
    rng, order = np.random.default_rng(0), np.array([2, 3, 1, 0])
    for turn in range(9):
        actions = rng.integers(3, size=(4, 4))
        whole = plain.step(actions)
        given = actions[order]
        by_agent = [dict(zip(envs.agents, row, strict=True)) for row in given.tolist()]
        envs.send([given, by_agent, given.tolist()][turn % 3], order)
        step = envs.recv(min_envs=4)
        for name in ("obs", "rewards", "acted", "alive", "episode_over", "state", "env_ids"):
            np.testing.assert_equal(getattr(step, name), getattr(whole, name))
        assert list(step.infos) == list(whole.infos)
        assert (step.first is None) == (whole.first is None)
        if step.first is not None:
            np.testing.assert_equal(step.first.obs, whole.first.obs)
    envs.send(np.ones((4, 4), int), range(4))
    part = envs.recv(min_envs=1)
    assert part.rewards.shape == (len(part.env_ids), 4)
    envs.send(np.ones(part.rewards.shape, int), part.env_ids)


@pytest.mark.everywhere
def test_two_halves_of_a_step(make):
    envs = make([Herd] * 2)
    envs.reset()
    with pytest.raises(NotSteppingError):
        envs.step_wait()
    envs.step_async(np.zeros((2, 3), int))
    assert envs.waiting
    assert envs.step_wait().acted.all()
    assert not envs.waiting


@pytest.mark.everywhere
def test_calls_attributes_and_pictures_reach_the_environments(make):
    envs = make([Herd] * 2)
    envs.reset()
    envs.step(np.zeros((2, 3), int))
    assert [frame.tolist() for frame in envs.render(env_ids=[1])] == [[[[1] * 3] * 2] * 2]
    assert envs.get_attr("length") == (7, 7)
    envs.set_attr("length", [2, 9])
    assert envs.get_attr("length") == (2, 9)
    assert envs.step(np.zeros((2, 3), int)).episode_over.tolist() == [True, False]
    assert envs.call("actions_of", "sheep_0", env_ids=[0]) == (3,)
    assert len(envs.statistics()) >= 1
    assert envs.render_mode == "rgb_array"
    assert envs.metadata == {"name": "herd"}
    assert envs.max_episode_steps == 1000
    envs.close()
    with pytest.raises(ClosedVecEnvError):
        envs.step(np.zeros((2, 3), int))


def test_an_environment_may_have_an_attribute_team(make_here):
    class Colored(Herd):
        team = "red"

    envs = make_here([Colored] * 2)
    assert envs.get_attr("team") == ("red", "red")
    envs.set_attr("team", ["blue", "red"])
    assert [env.team for env in envs.environments] == ["blue", "red"]
    assert envs.reset().alive.all()


def test_attributes_reach_turn_based_environments(make):
    rps = pytest.importorskip("pettingzoo.classic.rps_v2")
    envs = make([rps.env] * 2)
    envs.reset()
    assert envs.get_attr("max_cycles") == (15, 15)
    envs.set_attr("max_cycles", [1, 2])
    assert envs.step([[0, 1]] * 2).episode_over.tolist() == [True, False]


def test_the_backend_is_chosen_by_a_measurement():
    with MultiAgentVecEnv([Herd] * 2, env_seed=0) as envs:
        assert envs.autotuned.num_envs == 2
        assert envs.reset().alive.all()
    with MultiAgentVecEnv([Herd], backend="dummy") as envs:
        assert envs.autotuned is None


class Strict(Herd):
    """A herd that refuses what its masks do not allow."""

    def step(self, actions):
        assert all(action == 0 for action in actions.values()), "not allowed now"
        return super().step(actions)


def test_a_backend_is_chosen_for_environments_that_refuse_actions():
    with MultiAgentVecEnv([Strict]) as envs:
        assert envs.autotuned.choice.name == "dummy"
        envs.reset()
        assert envs.step(np.zeros((1, 3), int)).acted.all()
        with pytest.raises(EnvError, match="not allowed now"):
            envs.step(np.ones((1, 3), int))


def test_actions_can_be_checked(make):
    envs = make([partial(Herd, plays=ALL_END)] * 2, check_actions=True)
    envs.reset()
    with pytest.raises(
        ValueError, match=r"environment 1, agent 'sheep_0': expected one in Discrete\(3\), got .*7"
    ):
        envs.step([[0, 1], [7, 1]])
    for _ in range(2):
        envs.step([[0, 1], [2, 1]])
    envs.step([[9, 1], [9, 1]])  # those of agents that do not live


def test_a_lost_worker_cuts_its_agents_off():
    make_one = partial(Herd, plays=MIXED, length=20)
    options = {"context": "forkserver", "in_series": 2, "on_worker_failure": "restart"}
    with MultiAgentVecEnv([make_one] * 4, backend="subproc", **options) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            before = envs.step(np.zeros((4, 4), int))
        kill(envs)
        step = envs.step(np.zeros((4, 4), int))
        np.testing.assert_equal(step.truncated[:2], before.alive[:2])
        assert not step.truncated[2:].any()
        assert not step.acted[:2].any()
        assert step.acted[2:].any()
        assert not step.alive[:2].any()
        assert not step.rewards[:2].any()
        assert not step.terminated[:2].any()
        assert step.episode_over.tolist() == [True, True, False, False]
        np.testing.assert_equal(step.obs[:2], before.obs[:2])
        assert step.first.env_ids.tolist() == [0, 1]
        assert step.first.alive.tolist() == [[True, True, False, True]] * 2
        assert step.infos[0]["worker_restarted"] is True
        assert step.infos.column("worker_restarted")[1].tolist() == [True, True, False, False]
        assert envs.step(np.zeros((4, 4), int)).acted.any(axis=1).all()


def test_a_lost_worker_is_an_error_where_it_is_not_to_be_replaced():
    envs = MultiAgentVecEnv([Herd] * 2, backend="subproc", context="forkserver")
    envs.reset()
    kill(envs)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        envs.step(np.zeros((2, 3), int))
    assert envs.closed


def kill(envs):
    os.kill(envs.vec_env.pids[0], signal.SIGKILL)


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("fn", [partial(Herd, plays=MIXED, masks="info"), Squad])
def test_an_environment_can_be_copied_in_the_middle_of_an_episode(make_copy, fn):
    env = agents_env(fn)
    env.reset()
    action = np.zeros(env.action_space.shape, np.uint8)
    for _ in range(3):
        env.step(action)
    other = make_copy(env)
    for _ in range(3):
        mine, its = env.step(action), other.step(action)
        assert mine[0].tobytes() == its[0].tobytes()
        assert mine[2:] == its[2:]


@pytest.mark.everywhere
def test_xuances_environments_are_stepped_with_actions_for_all(make):
    envs = make([Squad] * 2, env_seed=4)
    bare = [Squad(env_seed=4 + i) for i in range(2)]
    step = envs.reset()
    seen = [env.reset()[0] for env in bare]
    assert step.state.tobytes() == np.stack([env.state() for env in bare]).tobytes()
    for t in range(1, 14):
        actions = [dict.fromkeys(envs.agents, t % 3)] * 2
        step = envs.step(actions)
        for i, env in enumerate(bare):
            acted = list(env.agent_mask().values())
            seen, rewards, terminated, truncated, info = env.step(actions[i])
            over = truncated or all(terminated.values())
            assert step.obs[i].tobytes() == np.stack(list(seen.values())).tobytes()
            assert envs.exact_rewards[i].tolist() == list(rewards.values())
            assert step.terminated[i].tolist() == list(terminated.values())
            assert step.truncated[i].tolist() == [truncated] * 3
            assert step.acted[i].tolist() == acted
            assert step.alive[i].tolist() == [not over and a for a in env.agent_mask().values()]
            masks = np.stack(list(env.avail_actions().values()))
            assert step.action_masks[i].tolist() == masks.tolist()
            assert step.infos[i] == info
            assert step.infos.column("dead_enemies")[0].tolist() == [2, 2]
            if over:
                first = env.reset()[0]
                assert step.first.obs[i].tobytes() == np.stack(list(first.values())).tobytes()


def test_a_vector_environment_of_records_can_be_given():
    vec_env = DummyVecEnv([partial(agents_env, Herd)] * 2)
    with MultiAgentVecEnv.of(vec_env) as envs:
        assert envs.reset().obs.shape == (2, 3, 4)
    assert vec_env.closed
    import gymnasium

    with (
        DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]) as plain,
        pytest.raises(TypeError, match="multi-agent records"),
    ):
        MultiAgentVecEnv.of(plain)


def test_a_step_shows_shapes_instead_of_values():
    with MultiAgentVecEnv([Herd] * 2, backend="dummy") as envs:
        step = envs.reset(seed=0)
        assert repr(step).startswith("MultiAgentStep(obs=float32(2, ")
        assert "infos=<2 dicts>, first=None, env_ids=int64(2,))" in repr(step)
        assert len(repr(step)) < 500
        assert repr(step.next()).startswith("MultiAgentStart(env_ids=int64(2,), obs=float32(2, ")


class BigEndian(Herd):
    """Observations and states in the other byte order."""

    def __init__(self) -> None:
        super().__init__()
        self.state_space = spaces.Box(0, 99, (2,), np.dtype(">f8"))

    def observation_space(self, agent):
        return spaces.Box(0, 1, (4,), np.dtype(">f4"))

    def look(self, agent):
        return super().look(agent).astype(">f4")


@pytest.mark.everywhere
def test_the_byte_order_of_spaces_does_not_matter(make):
    envs, plain = make([BigEndian] * 2), make([Herd] * 2)
    envs.reset(seed=0), plain.reset(seed=0)
    step, same = envs.step([[0, 1, 2]] * 2), plain.step([[0, 1, 2]] * 2)
    np.testing.assert_array_equal(step.obs, same.obs)
    np.testing.assert_array_equal(step.state, same.state)


class Whole(Herd):
    """Its agents' actions are integers of one type, up to the largest."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.last = int(np.iinfo(dtype).max)
        self.dtype = np.dtype(dtype)

    def action_space(self, agent):
        return spaces.Discrete(7, start=min(self.last, 2**62) - 6, dtype=self.dtype)


@pytest.mark.parametrize(
    "dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "longlong", ">i4", ">i8"]
)
def test_integers_of_any_type_reach_the_agents(dtype):
    with MultiAgentVecEnv([partial(Whole, dtype)], backend="dummy") as envs:
        envs.reset(seed=1)
        (env,) = envs.environments
        start = env.action_space("sheep_0").start
        envs.step(np.array([[start, start + 3, start + 6]]))
        given = list(env.given[-1].values())
        assert given == [start, start + 3, start + 6]
        assert {type(action) for action in given} == {np.dtype(dtype).type}
