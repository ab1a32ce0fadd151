"""The contract: what a step and a reset return, and what happens where an episode ends."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from comparing import HandSteps, assert_same, assert_same_reset, assert_same_step
from example_envs import EchoEnv, Lazy, LazyOfOld, ReusingEnv, ScriptedEnv, plain_step
from gymnasium import spaces

ACTIONS = [10, 11, 12, 13, 14]
"""One for each of five environments, by which it is known."""


def of_lengths(*lengths):
    """Functions that make one environment each, whose episodes take so many steps."""
    return [partial(ReusingEnv, lengths=(length,)) for length in lengths]


@pytest.mark.everywhere
def test_a_step_returns_these_shapes_and_dtypes(make_on_all):
    envs = make_on_all([ReusingEnv] * 5)
    envs.reset()
    obs, rewards, terminated, truncated, infos = envs.step(ACTIONS)
    assert (obs.shape, obs.dtype) == ((5, 3), np.float32)
    assert (rewards.shape, rewards.dtype) == ((5,), np.float32)
    assert (terminated.shape, terminated.dtype) == ((5,), np.bool_)
    assert (truncated.shape, truncated.dtype) == ((5,), np.bool_)
    assert len(infos) == 5
    assert all(type(info) is dict for info in infos)


@pytest.mark.everywhere
def test_a_reset_returns_the_first_observations_and_infos(make_on_all):
    envs = make_on_all([ReusingEnv] * 5)
    obs, infos = envs.reset()
    assert_same(obs, np.array([[1, 0, -1]] * 5, np.float32))
    assert len(infos) == 5
    for info in infos:
        assert_same(info, {"trail": np.array([1, 0, -1], np.float32), "step": 0})


@pytest.mark.parametrize("copy", [True, False])
def test_a_reward_beyond_float32_is_infinite(make, copy):
    steps = [plain_step(reward=reward) for reward in (1e300, -1e39, 3.4e38)]
    envs = make([partial(ScriptedEnv, steps)] * 2, copy=copy)
    envs.reset()
    assert envs.step([0, 0])[1].tolist() == [np.inf, np.inf]
    assert envs.exact_rewards.tolist() == [1e300, 1e300]
    assert envs.step([0, 0])[1].tolist() == [-np.inf, -np.inf]
    assert envs.step([0, 0])[1].tolist() == [np.float32(3.4e38)] * 2
    envs.async_reset()
    envs.recv(2)
    envs.send([0, 0], [0, 1])
    assert envs.recv(2).rewards.tolist() == [np.inf, np.inf]


@pytest.mark.everywhere
def test_at_an_end_the_observation_is_the_last_one_of_the_finished_episode(make_on_all):
    envs = make_on_all(of_lengths(3, 2, 3, 2, 3))
    envs.reset()
    envs.step(ACTIONS)
    obs, rewards, terminated, truncated, _ = envs.step(ACTIONS)
    assert (terminated | truncated).tolist() == [False, True, False, True, False]
    assert obs.tolist() == [[1, 2, action] for action in ACTIONS]
    assert rewards.tolist() == [2] * 5


@pytest.mark.everywhere
def test_at_an_end_the_info_has_the_first_observation_and_info_of_the_next_episode(make_on_all):
    envs = make_on_all(of_lengths(3, 2, 3, 2, 3))
    envs.reset()
    envs.step(ACTIONS)
    infos = envs.step(ACTIONS)[4]
    first = np.array([2, 0, -1], np.float32)
    for i in (1, 3):
        assert_same(infos[i]["reset_obs"], first)
        assert_same(infos[i]["reset_info"], {"trail": first, "step": 0})
        last = np.array([1, 2, ACTIONS[i]], np.float32)
        assert_same({key: infos[i][key] for key in ("trail", "step")}, {"trail": last, "step": 2})


@pytest.mark.everywhere
def test_after_an_end_the_next_action_belongs_to_the_new_episode(make):
    envs = make(of_lengths(2, 2, 2, 2, 2))
    envs.reset()
    envs.step(ACTIONS)
    envs.step(ACTIONS)
    obs, rewards, terminated, truncated, _ = envs.step([20, 21, 22, 23, 24])
    assert obs.tolist() == [[2, 1, 20], [2, 1, 21], [2, 1, 22], [2, 1, 23], [2, 1, 24]]
    assert rewards.tolist() == [1] * 5
    assert not (terminated | truncated).any()


@pytest.mark.everywhere
def test_an_episode_may_end_at_its_first_step_and_every_step(make):
    envs = make(of_lengths(1, 1, 1, 1, 1))
    envs.reset()
    for episode in range(1, 6):
        obs, _, terminated, truncated, infos = envs.step(ACTIONS)
        assert (terminated | truncated).all()
        assert obs[:, 0].tolist() == [episode] * 5
        assert [info["reset_obs"][0] for info in infos] == [episode + 1] * 5


@pytest.mark.everywhere
def test_termination_and_truncation_are_told_apart(make):
    endings = [("terminated",), ("truncated",), ("both",), ("terminated",), ("neither",)]
    envs = make([partial(ReusingEnv, (1,), ending) for ending in endings])
    envs.reset()
    _, _, terminated, truncated, infos = envs.step(ACTIONS)
    assert terminated.tolist() == [True, False, True, True, False]
    assert truncated.tolist() == [False, True, True, False, False]
    assert ["reset_obs" in info for info in infos] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (spaces.Box(-1, 1, (2, 3), np.float64), (2, 3)),
        (spaces.Box(0, 255, (4,), np.uint8), (4,)),
        (spaces.Discrete(7), ()),
        (spaces.MultiBinary(3), (3,)),
    ],
    ids=["matrix", "bytes", "number", "bits"],
)
def test_reset_obs_has_one_observations_own_shape_and_dtype(make, space, shape):
    envs = make([partial(EchoEnv, space, length=1)] * 5)
    envs.reset(seed=0)
    infos = envs.step([0] * 5)[4]
    for info in infos:
        assert info["reset_obs"].shape == shape
        assert info["reset_obs"].dtype == space.dtype


@pytest.mark.everywhere
def test_reset_obs_of_nested_spaces_is_nested(make):
    inner = spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,))))
    space = spaces.Dict(both=inner, name=spaces.Text(5))
    envs = make([partial(EchoEnv, space, length=1)] * 5)
    envs.reset(seed=0)
    reset_obs = envs.step([0] * 5)[4][3]["reset_obs"]
    assert reset_obs.keys() == {"both", "name"}
    number, box = reset_obs["both"]
    assert (number.shape, number.dtype) == ((), np.int64)
    assert (box.shape, box.dtype) == ((2,), np.float32)
    assert type(reset_obs["name"]) is str


def test_writing_to_one_reset_obs_leaves_the_others_alone(make):
    envs = make(of_lengths(1, 1, 1, 1, 1))
    envs.reset()
    infos = envs.step(ACTIONS)[4]
    infos[0]["reset_obs"][:] = 99
    assert infos[1]["reset_obs"].tolist() == [2, 0, -1]
    assert envs.buf_obs[:, 0].tolist() == [1] * 5


REWARDS = [1, 2.5, True, np.float64(0.1), np.float32(0.5), np.int8(-3), np.array(7), -0.0, np.inf]


@pytest.mark.parametrize("reward", REWARDS, ids=lambda value: f"{type(value).__name__}-{value}")
def test_a_reward_may_be_any_kind_of_number(make_either, reward):
    envs = make_either([partial(ScriptedEnv, [plain_step(reward=reward)])] * 5)
    envs.reset()
    assert_same(envs.step([0] * 5)[1], np.full(5, reward, np.float32))


@pytest.mark.parametrize("true", [True, np.True_, 1, np.array(True)], ids=repr)
def test_a_flag_may_be_any_kind_of_truth(make_either, true):
    envs = make_either(
        [partial(ScriptedEnv, [plain_step(terminated=true, truncated=np.False_)])] * 5
    )
    envs.reset()
    _, _, terminated, truncated, infos = envs.step([0] * 5)
    assert terminated.all()
    assert not truncated.any()
    assert all("reset_obs" in info for info in infos)


CASTS = [
    (np.float32, np.array([0.1, 1e-3]), np.array([0.1, 1e-3], np.float32)),
    (np.float32, Lazy([3, 4]), np.array([3, 4], np.float32)),
    (np.float32, LazyOfOld([3, 4]), np.array([3, 4], np.float32)),
    (np.float32, [0.5, 1], np.array([0.5, 1], np.float32)),
    (np.float16, np.array([0.1, 2], np.float32), np.array([0.1, 2], np.float16)),
    (np.uint8, np.array([0, 255]), np.array([0, 255], np.uint8)),
    (np.int64, np.array([-1, 3], np.int8), np.array([-1, 3], np.int64)),
    (np.float64, np.array([np.nan, np.inf], np.float32), np.array([np.nan, np.inf])),
    (np.float32, np.arange(8, dtype=np.float32)[1:6:4], np.array([1, 5], np.float32)),
]


@pytest.mark.parametrize(("dtype", "given", "shown"), CASTS)
def test_observations_are_cast_to_the_spaces_dtype_where_they_fit(make_either, dtype, given, shown):
    space = spaces.Box(0, 100, (2,), dtype)
    step = plain_step(given)
    reset = (given, {})
    envs = make_either([partial(ScriptedEnv, [step], [reset], observation_space=space)] * 5)
    assert_same(envs.reset()[0], np.stack([shown] * 5))
    assert_same(envs.step([0] * 5)[0], np.stack([shown] * 5))


@pytest.mark.everywhere
def test_a_step_in_two_halves_is_the_same(make):
    space = spaces.Box(-1, 1, (3,))
    envs = make([partial(EchoEnv, space, length=length) for length in (1, 2, 3, 4, 5)])
    by_hand = [HandSteps(EchoEnv(space, length=length), 4 + length) for length in (1, 2, 3, 4, 5)]
    assert_same_reset(space, envs.reset(seed=5), by_hand)
    for step in range(10):
        assert not envs.waiting
        envs.step_async(np.full(5, step % 2))
        assert envs.waiting
        result = envs.step_wait()
        assert_same_step(space, result, [hand.step(np.int64(step % 2)) for hand in by_hand])
    assert not envs.waiting


def test_actions_may_be_changed_as_soon_as_the_step_has_begun(make):
    envs = make([ReusingEnv] * 5)
    envs.reset()
    actions = np.array(ACTIONS)
    envs.step_async(actions)
    actions[:] = 0
    assert envs.step_wait()[0][:, 2].tolist() == ACTIONS


@pytest.mark.everywhere
def test_a_reset_waits_for_a_pending_step_and_throws_its_result_away(make_on_all):
    envs = make_on_all(of_lengths(9, 9, 9, 9, 9))
    envs.reset()
    envs.step(ACTIONS)
    envs.step_async(ACTIONS)
    obs, infos = envs.reset()
    assert not envs.waiting
    assert obs.tolist() == [[2, 0, -1]] * 5
    assert [info["step"] for info in infos] == [0] * 5
    assert envs.get_attr("steps_ever") == (2,) * 5, "the pending step should have been taken"
    assert envs.step(ACTIONS)[0].tolist() == [[2, 1, action] for action in ACTIONS]


def test_a_partial_reset_too_waits_for_a_pending_step(make):
    envs = make(of_lengths(9, 9, 9, 9, 9))
    envs.reset()
    envs.step_async(ACTIONS)
    obs, _ = envs.reset(env_ids=[3])
    assert obs.tolist() == [[2, 0, -1]]
    assert envs.buf_obs[2].tolist() == [1, 1, 12], "it was stepped, and not reset"
    assert envs.step(ACTIONS)[0][:, 1].tolist() == [2, 2, 2, 1, 2]


@pytest.mark.everywhere
def test_one_environment_alone_is_a_batch_of_one(make_on_all):
    envs = make_on_all([partial(ReusingEnv, lengths=(1,))])
    obs, infos = envs.reset()
    assert obs.shape == (1, 3)
    obs, rewards, terminated, truncated, infos = envs.step([42])
    assert obs.tolist() == [[1, 1, 42]]
    assert (rewards.shape, terminated.shape, truncated.shape) == ((1,), (1,), (1,))
    assert infos[0]["reset_obs"].shape == (3,)
