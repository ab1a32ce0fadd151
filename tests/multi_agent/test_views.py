"""Many agents as rows, and one of many environments as one of PettingZoo's."""

from __future__ import annotations

import os
import signal
from functools import partial

import numpy as np
import pytest
from agents_envs import FOREVER, MIXED, Herd, Silent, Squad
from gymnasium import spaces

from xuance_envs import MultiAgentVecEnv, as_parallel_env, per_agent_rows
from xuance_envs.compat import from_gymnasium
from xuance_envs.transforms import (
    ClipRewards,
    EpisodeStatistics,
    NormalizeObservations,
    NormalizeRewards,
    RescaleActions,
    StackObservations,
)

COMES_AND_GOES = {"sheep_0": (1, 2), "sheep_1": (3, FOREVER), "sheep_2": (1, FOREVER)}


def herds(num_envs=2, kind=Herd, **options):
    return MultiAgentVecEnv([partial(kind, **options)] * num_envs, backend="dummy")


def test_rows_of_gymnasium_are_the_agents_of_all_environments():
    plain, rows = herds(masks="info"), per_agent_rows(herds(masks="info"))
    step, (obs, infos) = plain.reset(seed=1), rows.reset(seed=1)
    for _ in range(9):
        np.testing.assert_array_equal(obs, step.next().obs.reshape(6, 4))
        np.testing.assert_array_equal(infos["action_mask"], step.next().action_masks.reshape(6, 3))
        assert obs in rows.observation_space
        actions = np.arange(6) % 3
        step = plain.step(actions.reshape(2, 3))
        obs, rewards, terminated, truncated, infos = rows.step(actions)
        np.testing.assert_array_equal(rewards, plain.exact_rewards.reshape(6))
        np.testing.assert_array_equal(truncated, step.truncated.reshape(6))
        assert not terminated.any()
        assert infos["acted"].all()
        assert ("final_obs" in infos) == truncated.any()
        for i in np.flatnonzero(truncated):
            np.testing.assert_array_equal(infos["final_obs"][i], step.obs.reshape(6, 4)[i])
    assert len(rows.render()) == 2
    rows.close()
    plain.close()


def test_rows_of_agents_that_do_not_play_are_padded():
    rows = per_agent_rows(herds(1, plays=COMES_AND_GOES, length=4))
    obs, _ = rows.reset(seed=0)
    assert obs.any(axis=1).tolist() == [True, False, True]
    told = []
    for _ in range(5):
        obs, rewards, terminated, truncated, infos = rows.step(np.zeros(3, int))
        told.append(
            [obs.any(axis=1).tolist(), (rewards != 0).tolist()]
            + [flags.tolist() for flags in (terminated, truncated, infos["acted"])]
        )
    y, n = True, False
    assert told == [
        [[y, n, y], [y, n, y], [n, n, n], [n, n, n], [y, n, y]],
        [[n, y, y], [y, n, y], [y, y, n], [n, n, n], [y, n, y]],  # one ends, and one's padding
        [[n, y, y], [n, y, y], [n, n, n], [n, n, n], [n, y, y]],
        [[y, n, y], [n, y, y], [y, n, n], [n, y, y], [n, y, y]],  # the episode ends
        [[y, n, y], [y, n, y], [n, n, n], [n, n, n], [y, n, y]],
    ]
    rows.close()


def test_rows_of_nested_observations_are_nested():
    options = {"plays": COMES_AND_GOES, "length": 4}
    plain, nested = (per_agent_rows(herds(2, kind, **options)) for kind in (Herd, Paired))
    obs, pairs = (rows.reset(seed=0)[0] for rows in (plain, nested))
    for _ in range(6):
        assert type(pairs) is tuple
        assert pairs in nested.observation_space
        np.testing.assert_array_equal(pairs[0], obs)
        np.testing.assert_array_equal(pairs[1]["same"], obs)
        obs, pairs = (rows.step(np.zeros(6, int))[0] for rows in (plain, nested))
    plain.close()
    nested.close()


class Paired(Herd):
    """Observes a pair of what its base observes, and a dict of it."""

    def observation_space(self, agent):
        space = super().observation_space(agent)
        return spaces.Tuple((space, spaces.Dict(same=space)))

    def reset(self, **given):
        obs, infos = super().reset(**given)
        return paired(obs), infos

    def step(self, actions):
        obs, *rest = super().step(actions)
        return paired(obs), *rest


def paired(obs):
    return {agent: (one, {"same": one}) for agent, one in obs.items()}


def test_masked_actions_of_rows_are_refused():
    rows = per_agent_rows(herds())
    rows.reset(seed=1)
    with pytest.raises(ValueError, match="expected no masked values, got 8"):
        rows.step(np.ma.masked_less(np.zeros(8, int), 1))


@pytest.mark.parametrize("library", ["gymnasium", "sb3"])
def test_rows_end_without_flags_of_the_environment(library):
    if library == "sb3":
        pytest.importorskip("stable_baselines3")
    options = {"plays": MIXED, "length": 5}
    rows = per_agent_rows(herds(kind=Silent, **options), library)
    plain = herds(**options)
    rows.seed(1) if library == "sb3" else None
    rows.reset(**({} if library == "sb3" else {"seed": 1}))
    step, returns, ended = plain.reset(seed=1), np.zeros(8), 0
    for _ in range(12):
        step = plain.step(np.zeros((2, 4), int))
        _, _, *flags, infos = rows.step(np.zeros(8, int))
        acted, obs = step.acted.reshape(8), step.obs.reshape(8, 4)
        expected = acted & (step.terminated | step.truncated).reshape(8)
        padding = ~acted & step.next().alive.reshape(8)
        np.testing.assert_array_equal(flags[0], expected | padding)  # terminated, or done
        if library == "gymnasium":
            assert not flags[1].any()
        returns += step.rewards.reshape(8)
        for row in np.flatnonzero(expected):
            if library == "gymnasium":
                last = infos["final_obs"][row]
            else:
                last = infos[row]["terminal_observation"]
                assert infos[row]["TimeLimit.truncated"] is False
                assert infos[row]["episode"]["r"] == pytest.approx(returns[row])
            np.testing.assert_array_equal(last, obs[row])
            returns[row], ended = 0, ended + 1
    assert ended > 8
    rows.close(), plain.close()


def test_padding_of_xuances_agents_has_no_flags_and_no_reward():
    rows = per_agent_rows(MultiAgentVecEnv([Squad], backend="dummy"))
    rows.reset()
    told = [rows.step(np.ones(3, int)) for _ in range(6)]
    acted = [infos["acted"].tolist() for *_, infos in told]
    assert acted == [[True] * 3] * 3 + [[True, True, False]] * 3
    assert [rewards[2] > 0 for _, rewards, *_ in told] == [True] * 3 + [False] * 3
    # It ends in step 3, and its padding with the episode.
    assert [te[2] for _, _, te, *_ in told] == [False, False, True, False, False, True]
    assert [tr.tolist() for _, _, _, tr, _ in told] == [[False] * 3] * 5 + [[True, True, False]]
    rows.close()


@pytest.mark.parametrize("library", ["gymnasium", "sb3"])
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_a_lost_worker_are_truncated(library, workers):
    if library == "sb3":
        pytest.importorskip("stable_baselines3")
    plays = {"gone": (1, 2), "stays": (1, FOREVER), "comes": (5, FOREVER)}
    options = {"context": "forkserver", "in_series": 1, "on_worker_failure": "restart"}
    make_one = partial(Herd, plays=plays, length=20)
    envs = MultiAgentVecEnv([make_one] * workers, backend="subproc", **options)
    rows = per_agent_rows(envs, library)
    rows.reset()
    for _ in range(3):
        obs, *_ = rows.step(np.zeros(3 * workers, int))
    os.kill(envs.vec_env.pids[0], signal.SIGKILL)
    _, rewards, *flags, infos = rows.step(np.zeros(3 * workers, int))
    assert not rewards[:3].any()
    # The padding of "gone" ends with the episode. In the other environment, "comes" enters.
    ended = [True, True, False, False, False, True][: 3 * workers]
    if library == "gymnasium":
        terminated, truncated = flags
        assert truncated.tolist() == [False, True, False, False, False, False][: 3 * workers]
        assert (terminated | truncated).tolist() == ended
        assert not (terminated & truncated).any()
        np.testing.assert_array_equal(infos["final_obs"][1], obs[1])
    else:
        (dones,) = flags
        assert dones.tolist() == ended
        assert [info.get("TimeLimit.truncated") for info in infos[:3]] == [False, True, None]
        np.testing.assert_array_equal(infos[1]["terminal_observation"], obs[1])
        assert infos[1]["episode"]["l"] == 3
        assert "episode" not in infos[0]
    *_, infos = rows.step(np.zeros(3 * workers, int))
    acted = infos["acted"] if library == "gymnasium" else [info["acted"] for info in infos]
    assert list(acted) == [True, True, False, False, True, True][: 3 * workers]
    rows.close()


def test_padding_can_be_an_error():
    rows = per_agent_rows(herds(2, plays={"sheep_0": (1, 2), "sheep_1": (1, 9)}), on_death="raise")
    rows.reset(seed=0)
    rows.step(np.zeros(4, int))
    with pytest.raises(RuntimeError, match="environment 0: agent 'sheep_0' is inactive"):
        rows.step(np.zeros(4, int))
    rows.close()


@pytest.mark.parametrize(
    ("options", "given", "told"),
    [
        ({"kinds": 2}, {}, "agents with equal spaces"),
        ({}, {"library": "rllib"}, "library: expected one of"),
        ({}, {"on_death": "ignore"}, "on_death: expected 'pad' or 'raise'"),
    ],
)
def test_rows_that_cannot_be(options, given, told):
    with herds(**options) as envs, pytest.raises(ValueError, match=told):
        per_agent_rows(envs, **given)


def test_rows_of_observations_that_are_dicts():
    rows = per_agent_rows(herds(2, masks="observation", length=2))
    obs, infos = rows.reset(seed=0)
    assert obs["observation"].shape == (6, 4)
    rows.step(np.zeros(6, int))
    final = rows.step(np.zeros(6, int))[4]["final_obs"]
    assert final[5]["observation"].shape == (4,)
    assert infos["action_mask"].shape == (6, 3)
    rows.close()


def test_rows_of_observations_may_be_empty():
    class Blind(Herd):
        def observation_space(self, agent):
            return spaces.Box(0, 1, (0,), np.float32)

        def look(self, agent):
            return np.zeros(0, np.float32)

    rows = per_agent_rows(herds(kind=Blind))
    assert rows.reset()[0].shape == (6, 0)
    rows.close()


def test_rows_are_a_vector_environment_of_agents():
    rows = per_agent_rows(herds(plays=COMES_AND_GOES, length=4))
    envs = from_gymnasium(per_agent_rows(herds(plays=COMES_AND_GOES, length=4)))
    first, _ = rows.reset(seed=3)
    np.testing.assert_array_equal(envs.reset(seed=3)[0], first)
    for _ in range(9):
        obs, rewards, terminated, truncated, infos = envs.step(np.ones(6, int))
        following, r, te, tr, told = rows.step(np.ones(6, int))
        np.testing.assert_array_equal(envs.exact_rewards, r)
        np.testing.assert_array_equal(rewards, r.astype(np.float32))
        np.testing.assert_array_equal(terminated, te)
        np.testing.assert_array_equal(truncated, tr)
        np.testing.assert_array_equal(infos.column("acted")[0], told["acted"])
        for i, ended in enumerate(te | tr):
            np.testing.assert_array_equal(obs[i], told["final_obs"][i] if ended else following[i])
            assert ("reset_obs" in infos[i]) == ended
            if ended:
                np.testing.assert_array_equal(infos[i]["reset_obs"], following[i])
    rows.close(), envs.close()


def test_transforms_of_rows_are_per_agent():
    plain = from_gymnasium(per_agent_rows(herds()))
    envs = from_gymnasium(per_agent_rows(herds()))
    envs = EpisodeStatistics(NormalizeRewards(StackObservations(NormalizeObservations(envs), 2)))
    seen = [plain.reset(seed=1)[0]]
    assert envs.reset(seed=1)[0].shape == (6, 8)
    for _ in range(7):
        obs, rewards, _, _, infos = envs.step(np.ones(6, int))
        seen.append(plain.step(np.ones(6, int))[0])
    every = np.concatenate(seen)
    expected = (seen[-1] - every.mean(0)) / every.std(0)
    np.testing.assert_allclose(obs[:, 4:], expected, atol=0.2)
    assert rewards.shape == (6,)
    assert [info["episode"]["l"] for info in infos] == [7] * 6
    plain.close(), envs.close()


@pytest.mark.parametrize(
    "transform",
    [
        *(NormalizeObservations, NormalizeRewards, ClipRewards, EpisodeStatistics, RescaleActions),
        partial(StackObservations, n=2),
    ],
    ids=str,
)
def test_transforms_of_one_agent_are_refused_over_many(transform):
    with herds() as envs:
        for inner in (envs, envs.vec_env):
            with pytest.raises(TypeError, match=r"one agent each.*per_agent_rows"):
                transform(inner)
        assert envs.reset().obs.shape == (2, 3, 4)


def test_rows_of_stable_baselines3():
    pytest.importorskip("stable_baselines3")
    rows = per_agent_rows(herds(2, masks="info", length=3), "sb3")
    gym_rows = per_agent_rows(herds(2, masks="info", length=3))
    assert rows.seed(4) == [4, 4, 4, 5, 5, 5]  # a row's seed is its environment's
    np.testing.assert_array_equal(rows.reset(), gym_rows.reset(seed=4)[0])
    total = np.zeros(6)
    for _ in range(3):
        masks = np.stack(rows.env_method("action_masks"))
        assert masks.shape == (6, 3)
        obs, rewards, dones, infos = rows.step(np.ones(6, int))
        o, r, _, truncated, told = gym_rows.step(np.ones(6, int))
        np.testing.assert_array_equal(obs, o)
        np.testing.assert_array_equal(rewards, r.astype(np.float32))
        np.testing.assert_array_equal(dones, truncated)
        total += rewards
    for i, info in enumerate(infos):
        assert info["TimeLimit.truncated"] is True
        assert info["episode"] == {"r": pytest.approx(total[i]), "l": 3}
        np.testing.assert_array_equal(info["terminal_observation"], told["final_obs"][i])
    assert rows.get_attr("length") == [3] * 6
    rows.set_attr("length", 5, indices=[0])
    assert rows.get_attr("length", indices=[1, 5]) == [5, 3]
    rows.set_attr("bounds", [0, 1])  # a value, and not one value per environment
    assert rows.get_attr("bounds") == [[0, 1]] * 6
    assert rows.env_method("actions_of", "sheep_0", indices=[3]) == [3]
    assert rows.has_attr("action_masks")
    assert rows.has_attr("length")
    assert rows.env_is_wrapped(Herd) == [False] * 6
    assert len(rows.get_images()) == 6
    rows.close()
    gym_rows.close()


def test_stable_baselines3_learns_with_rows():
    sb3 = pytest.importorskip("stable_baselines3")
    rows = per_agent_rows(herds(2, plays=COMES_AND_GOES), "sb3")
    model = sb3.PPO("MlpPolicy", rows, n_steps=8, batch_size=24, n_epochs=1, device="cpu", seed=0)
    model.learn(96)
    assert model.num_timesteps == 96
    rows.close()


@pytest.mark.parametrize("masks", [None, "info", "observation"])
@pytest.mark.parametrize("options", [{}, {"backend": "subproc", "context": "forkserver"}])
def test_a_view_steps_its_environment_alone(masks, options):
    pytest.importorskip("pettingzoo")
    make_one = partial(Herd, plays=COMES_AND_GOES, kinds=2, masks=masks)
    with MultiAgentVecEnv([make_one] * 2, **{"backend": "dummy", **options}) as envs:
        view, bare = as_parallel_env(envs, 1), make_one()
        assert view.possible_agents == bare.possible_agents
        for _ in range(2):
            assert_same(view.reset(seed=3, options={"total": 2}), bare.reset(3, {"total": 2}))
            while bare.agents:
                assert view.agents == bare.agents
                np.testing.assert_array_equal(view.state(), bare.state())
                actions = dict.fromkeys(bare.agents, 1)
                assert_same(view.step(actions), bare.step(actions))
            assert view.agents == []
        assert view.num_agents == 0
        np.testing.assert_array_equal(view.render(), bare.render())
        view.close()
        assert envs.reset(seed=0).alive.any()
        for index in (2, 1.0, True, "0"):
            with pytest.raises(ValueError, match="index: expected an int from 0 to 1"):
                as_parallel_env(envs, index)


def assert_same(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for agent in other:
            np.testing.assert_equal(one[agent], other[agent])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["simple_spread_v3", "simple_world_comm_v3"])
def test_pettingzoos_own_tests_pass_on_a_view(name):
    api = pytest.importorskip("pettingzoo.test")
    module = pytest.importorskip(f"mpe2.{name}")
    make_one = partial(module.parallel_env, max_cycles=10)
    with MultiAgentVecEnv([make_one] * 2, backend="dummy") as envs:
        api.parallel_api_test(as_parallel_env(envs, 1), num_cycles=30)
    with MultiAgentVecEnv([make_one], backend="dummy", state=False) as envs:
        view = as_parallel_env(envs)
        with pytest.raises(NotImplementedError, match="no state"):
            view.state()
        assert view.unwrapped is view


class Starting(Herd):
    """Its episodes start with the option that its reset gets."""

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed, options)
        given = (options or {}).get("start", 0.0)
        return {agent: np.full_like(o, given) for agent, o in observations.items()}, infos


def test_rows_for_sb3_reset_once_with_the_options_that_were_set():
    pytest.importorskip("stable_baselines3")
    rows = per_agent_rows(herds(2, kind=Starting), "sb3")
    rows.set_options({"start": 0.5})
    assert (rows.reset() == 0.5).all()
    assert (rows.reset() == 0.0).all()
    rows.set_options([{"start": 0.5}] + [{}] * 5)
    with pytest.raises(ValueError, match="set_options: expected the same options for all rows"):
        rows.reset()
    rows.close()


class Joining:
    """Agent "late" joins in the third step; ``masked`` gives the steps with a mask for it."""

    possible_agents = ("always", "late")
    render_mode = None

    def __init__(self, masked):
        self.metadata, self.masked = {}, masked

    def observation_space(self, agent):
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def of(self, value, agents=None):
        return dict.fromkeys(self.agents if agents is None else agents, value)

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, ["always"]
        return self.of(np.zeros(1, np.float32)), {"always": {"action_mask": np.ones(3, bool)}}

    def step(self, actions):
        acted, self.time = list(self.agents), self.time + 1
        self.agents = ["always", "late"] if self.time >= 3 else ["always"]
        infos = {"always": {"action_mask": np.ones(3, bool)}}
        if self.time in self.masked:
            infos["late"] = {"action_mask": np.array([0, 0, 1], bool)}
        flags = self.of(False, acted)
        return self.of(np.ones(1, np.float32)), self.of(0.1, acted), flags, flags.copy(), infos


def joining(*masked):
    return MultiAgentVecEnv([partial(Joining, masked)] * 2, backend="dummy")


def test_a_mask_from_before_an_agent_joined_does_not_apply_to_it():
    envs = joining(1)
    envs.reset()
    for _ in range(3):
        step = envs.step([{"always": 0}] * 2)
    assert step.alive.all()
    assert step.action_masks.all()


def test_a_view_has_the_mask_of_an_agent_that_joins():
    view = as_parallel_env(joining(3), 0)
    view.reset()
    for _ in range(3):
        infos = view.step({"always": 0})[4]
    assert view.agents == ["always", "late"]
    assert infos["late"]["action_mask"].tolist() == [0, 0, 1]


def test_a_view_has_nested_states():
    class Pair(Joining):
        state_space = spaces.Tuple([spaces.Discrete(9), spaces.Box(0, 9, (2,), np.float32)])

        def state(self):
            return np.int64(self.time), np.full(2, self.time, np.float32)

    view = as_parallel_env(MultiAgentVecEnv([partial(Pair, ())] * 2, backend="dummy"), 1)
    view.reset()
    view.step({"always": 0})
    number, vector = view.state()
    assert number == 1
    assert vector.tolist() == [1, 1]


def test_rewards_and_active_agents_follow_partial_resets_and_loaded_states():
    envs = joining()
    envs.reset()
    for _ in range(4):
        envs.step([{"always": 0, "late": 0}] * 2)
    state = envs.save_state()
    envs.reset(env_ids=[0])
    assert envs.agent_mask.tolist() == [[True, False], [True, True]]
    assert envs.exact_rewards.tolist() == [[0, 0], [0.1, 0.1]]
    envs.reset()
    envs.load_state(state)
    assert envs.agent_mask.all()


def test_rewards_of_rows_are_not_rounded():
    rows = per_agent_rows(joining())
    rows.reset()
    assert rows.step(np.zeros(4, np.int64))[1].tolist() == [0.1, 0, 0.1, 0]


def test_rows_cannot_be_reset_one_by_one():
    rows = per_agent_rows(joining())
    with pytest.raises(NotImplementedError, match="reset_mask"):
        rows.reset(options={"reset_mask": np.array([True, False, False, False])})
