"""The contract: whose the returned arrays are, and what ``buf_obs`` and its like hold."""

from __future__ import annotations

from functools import partial
from itertools import chain, pairwise

import numpy as np
import pytest
from comparing import assert_same
from example_envs import EchoEnv, GraphReusingEnv, ReusingEnv, UncopyableEnv
from gymnasium import spaces

from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

NESTED = spaces.Dict(
    box=spaces.Box(-1, 1, (2,)),
    pair=spaces.Tuple((spaces.Discrete(5), spaces.Box(0, 255, (3,), np.uint8))),
)
IMAGES = spaces.Dict(image=spaces.Box(0, 255, (48, 48, 3), np.uint8), lives=spaces.Discrete(5))
"""Of which five take more memory than what is copied plainly."""

GRAPH = GraphReusingEnv.observation_space


def arrays_in(value):
    """Every array in a value, however deep."""
    if isinstance(value, np.ndarray):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    branches = isinstance(value, dict | list | tuple)
    return list(chain.from_iterable(map(arrays_in, inner))) if branches else []


def shares_memory(one, other):
    pairs = [(a, b) for a in arrays_in(one) for b in arrays_in(other)]
    assert pairs, "there is nothing to compare"
    return any(np.shares_memory(a, b) for a, b in pairs)


SPACES = {
    "box": spaces.Box(-1, 1, (3,)),
    "nested": NESTED,
    "image": IMAGES["image"],
    "images": IMAGES,
}


@pytest.fixture(params=SPACES.values(), ids=SPACES)
def make_envs(request, make):
    """Makes five environments whose episodes end at different times, some at the first step."""
    space = request.param
    return partial(make, [partial(EchoEnv, space, length=length) for length in (1, 2, 3, 1, 9)])


def bits(value):
    return [array.tobytes() for array in arrays_in(value)]


def test_returned_arrays_are_the_callers_own_to_write_to(make_envs):
    envs = make_envs()
    first, _ = envs.reset(seed=0)
    some, _ = envs.reset(seed=0, env_ids=[2, 1])
    obs, rewards, terminated, truncated, infos = envs.step([0] * 5)
    for array in arrays_in([first, some, obs, rewards, terminated, truncated]):
        assert array.flags.writeable
        array[...] = 0
    assert infos[4] == {"steps": 1}


@pytest.mark.everywhere("nested")
def test_returned_arrays_are_never_overwritten(make_envs):
    envs = make_envs()
    held, seen = [], []

    def hold(result):
        assert list(map(bits, held)) == seen
        held.append(result)
        seen.append(bits(result))

    hold(envs.reset(seed=0)[0])
    for _ in range(7):
        hold(envs.step([0] * 5)[:4])
        hold(envs.reset(env_ids=[1])[0])
    hold(envs.reset(seed=3)[0])
    envs.close()
    assert list(map(bits, held)) == seen


def test_writing_to_returned_arrays_changes_nothing_for_the_environments(make_envs):
    envs, undisturbed = make_envs(), make_envs()
    undisturbed.reset(seed=0)
    first, _ = envs.reset(seed=0)
    for _ in range(5):
        for array in arrays_in([first, envs.buf_obs]):
            array[...] = 0
        result, expected = envs.step([0] * 5), undisturbed.step([0] * 5)
        assert_same(list(result[:4]), list(expected[:4]))
        assert_same(list(result[4]), list(expected[4]))
        first = result[:4]


def test_without_copying_returned_arrays_are_read_only(make_envs):
    envs = make_envs(copy=False)
    first, _ = envs.reset(seed=0)
    result = envs.step([0] * 5)
    for array in arrays_in([first, *result[:4]]):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_without_copying_every_step_returns_views_of_the_same_memory(make_envs):
    envs = make_envs(copy=False)
    first, _ = envs.reset(seed=0)
    results = [envs.step([0] * 5)[:4] for _ in range(3)]
    for earlier, later in zip(arrays_in(results[0]), arrays_in(results[2]), strict=True):
        assert np.shares_memory(earlier, later)
    assert bits(results[0]) == bits(results[2]), "an old view shows the last step"
    assert bits(first) == bits(results[2][0])


@pytest.mark.everywhere("images")
def test_without_copying_the_values_are_the_same(make_envs):
    views, copies = make_envs(copy=False), make_envs()
    assert_same(views.reset(seed=0)[0], copies.reset(seed=0)[0])
    for _ in range(8):
        result, expected = views.step([0] * 5), copies.step([0] * 5)
        assert_same(list(result[:4]), list(expected[:4]))
        assert_same(list(result[4]), list(expected[4]))


@pytest.mark.parametrize("copy", [True, False])
def test_two_returned_arrays_never_share_memory(make_envs, copy):
    envs = make_envs(copy=copy)
    envs.reset(seed=0)
    arrays = arrays_in(envs.step([0] * 5)[:4])
    for i, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in arrays[:i])


# --- buf_obs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [True, False])
def test_buf_obs_holds_the_last_observations(make_envs, copy):
    envs = make_envs(copy=copy)
    assert_same(envs.reset(seed=0)[0], envs.buf_obs)
    for _ in range(4):
        assert_same(envs.step([0] * 5)[0], envs.buf_obs)


@pytest.mark.parametrize("copy", [True, False])
def test_buf_obs_may_be_written_to_and_never_shares_memory_with_what_is_returned(make_envs, copy):
    # Without copying, what is returned is the memory that the environments write to.
    envs = make_envs(copy=copy)
    returned = [envs.reset(seed=0)[0]]
    for _ in range(4):
        for array in arrays_in(envs.buf_obs):
            assert array.flags.writeable
            array[...] = 0
        assert not shares_memory(envs.buf_obs, returned)
        result = envs.step([0] * 5)
        returned.append(result[:4])
        returned.append([info["reset_obs"] for info in result[4] if "reset_obs" in info])
        assert not shares_memory(envs.buf_obs, returned)


@pytest.mark.parametrize("copy", [True, False])
def test_buf_obs_is_a_new_array_each_time_and_one_held_from_before_stays(make_envs, copy):
    envs = make_envs(copy=copy)
    held, seen = [envs.buf_obs], [bits(envs.buf_obs)]

    def hold():
        assert not shares_memory(envs.buf_obs, held)
        held.append(envs.buf_obs)
        seen.append(bits(envs.buf_obs))

    envs.reset(seed=0)
    hold()
    for _ in range(4):
        envs.step([0] * 5)
        hold()
        envs.reset(env_ids=[1, 3])
        hold()
    assert [bits(one) for one in held] == seen


WHEN = {
    "after a step": lambda envs: envs.step([0] * 5),
    "after a reset": lambda envs: envs.reset(),
    "within a step": lambda envs: (envs.step([0] * 5), envs.step_async([0] * 5))[0],
    "after closing": lambda envs: (envs.step([0] * 5), envs.close())[0],
    "after closing within a step": lambda envs: (
        envs.step([0] * 5),
        envs.step_async([0] * 5),
        envs.close(),
    )[0],
    "after a send": lambda envs: (envs.step([0] * 5), envs.send([0] * 5, range(5)))[0],
    "after a recv": lambda envs: (
        envs.step([0] * 5),
        envs.send([0] * 5, range(5)),
        envs.recv(min_envs=5),
    )[0],
}


@pytest.mark.parametrize("when", WHEN)
def test_buf_obs_holds_the_last_observations_whenever_it_is_read_first(make_envs, when):
    envs = make_envs()
    envs.reset(seed=0)
    obs = WHEN[when](envs)[0]
    assert_same(envs.buf_obs, obs)
    assert not shares_memory(envs.buf_obs, obs)


@pytest.mark.parametrize("when", ["after a step", "after a reset"])
def test_buf_obs_does_not_show_what_was_done_to_returned_arrays(make_envs, when):
    envs, undisturbed = make_envs(), make_envs()
    envs.reset(seed=0)
    undisturbed.reset(seed=0)
    expected = WHEN[when](undisturbed)[0]
    for array in arrays_in(WHEN[when](envs)[0]):
        array[...] = 0
    assert_same(envs.buf_obs, expected)


def test_a_partial_reset_shows_in_buf_obs_that_nobody_has_read(make_envs):
    envs = make_envs()
    envs.reset(seed=0)
    obs = envs.step([0] * 5)[0]
    some = envs.reset(env_ids=[3, 1])[0]
    for all_of, now, before in zip(*map(arrays_in, (envs.buf_obs, some, obs)), strict=True):
        assert all_of[[3, 1]].tobytes() == now.tobytes()
        assert all_of[[0, 2, 4]].tobytes() == before[[0, 2, 4]].tobytes()


@pytest.mark.parametrize("copy", [True, False])
def test_xuances_way_with_buf_obs(make, copy):
    """Store what was held before the step, then start from reset_obs where an episode ended."""
    envs = make([partial(ReusingEnv, (length,)) for length in (1, 2, 3, 1, 9)], copy=copy)
    envs.reset()
    stored = []
    for step in range(4):
        obs = envs.buf_obs
        next_obs, _, terminated, truncated, infos = envs.step([step] * 5)
        stored.append((obs.copy(), obs, np.array(next_obs)))
        for i in np.flatnonzero(terminated | truncated):
            envs.buf_obs[i] = infos[i]["reset_obs"]
    first = [[1, 0, -1]] * 5
    assert stored[0][0].tolist() == first
    for (was, held, next_obs), (later, *_) in pairwise(stored):
        assert_same(held, was)
        for i in range(5):
            if later[i, 1] == 0:  # a new episode
                assert later[i, 0] == next_obs[i, 0] + 1
            else:
                assert later[i].tolist() == next_obs[i].tolist()
    assert [int(rows[0, 0]) for rows, *_ in stored] == [1, 2, 3, 4]


def test_before_the_first_reset_there_are_buffers_of_the_right_form(make):
    envs = make([partial(EchoEnv, NESTED)] * 5)
    assert (envs.buf_obs["box"].shape, envs.buf_obs["box"].dtype) == ((5, 2), np.float32)
    number, colour = envs.buf_obs["pair"]
    assert (number.shape, number.dtype) == ((5,), np.int64)
    assert (colour.shape, colour.dtype) == ((5, 3), np.uint8)
    assert_same(envs.buf_rews, np.zeros(5, np.float32))
    assert_same(envs.buf_dones, np.zeros(5, bool))
    assert_same(envs.buf_truncations, np.zeros(5, bool))
    assert len(envs.buf_infos) == 5


@pytest.mark.parametrize("copy", [True, False])
def test_the_other_buffers_hold_what_the_last_step_returned(make_envs, copy):
    envs = make_envs(copy=copy)
    envs.reset(seed=0)
    for _ in range(4):
        _, rewards, terminated, truncated, infos = envs.step([0] * 5)
        assert_same(envs.buf_rews, rewards)
        assert_same(envs.buf_dones, terminated)
        assert_same(envs.buf_truncations, truncated)
        assert envs.buf_infos is infos


XUANCES = {
    "buf_trunctions": "buf_truncations",
    "buf_truncated": "buf_truncations",
    "buf_terminated": "buf_dones",
    "buf_rewards": "buf_rews",
    "buf_info": "buf_infos",
    "max_episode_length": "max_episode_steps",
}


@pytest.mark.parametrize(("other", "name"), XUANCES.items())
def test_names_that_xuance_has_for_the_same(make, other, name):
    envs = make([partial(EchoEnv, spaces.Discrete(3), length=1)] * 5)
    envs.reset(seed=0)
    envs.step([0] * 5)
    assert getattr(envs, other) is getattr(envs, name)
    setattr(envs, other, "written")
    assert getattr(envs, name) == getattr(envs, other) == "written"


@pytest.mark.everywhere
def test_actions_are_the_last_that_were_given(make):
    space = spaces.Dict(push=spaces.Box(-1, 1, (2,)), key=spaces.Discrete(5))
    envs = make([partial(EchoEnv, spaces.Discrete(3), space)] * 5)
    assert_same(envs.actions, {"push": np.zeros((5, 2), np.float32), "key": np.zeros(5, np.int64)})
    envs.reset(seed=0)
    given = {"push": np.full((5, 2), 0.5, np.float32), "key": np.arange(5, dtype=np.int64)}
    envs.step(given)
    held = envs.actions
    assert_same(held, given)
    given["push"][:] = -1
    envs.step(given)
    assert held["push"].tolist() == [[0.5, 0.5]] * 5
    assert envs.actions["push"].tolist() == [[-1, -1]] * 5
    envs.async_reset(seed=0)
    envs.recv(5)
    envs.send([{"key": 4, "push": [0, 1]}] * 2, [3, 1])
    assert envs.actions["key"].tolist() == [0, 4, 2, 4, 4]


# --- observations without a fixed shape ---------------------------------------------------------


@pytest.mark.everywhere
def test_observations_without_a_fixed_shape_are_a_tuple_of_objects(make):
    envs = make([partial(EchoEnv, GRAPH, length=2)] * 5)
    obs, _ = envs.reset(seed=0)
    assert type(obs) is tuple
    assert len(obs) == 5
    assert all(GRAPH.contains(graph) for graph in obs)
    obs, *_, infos = envs.step([0] * 5)
    assert type(obs) is tuple
    *_, infos = envs.step([0] * 5)
    assert GRAPH.contains(infos[0]["reset_obs"])


def test_objects_in_buf_obs_can_be_replaced(make):
    envs = make([partial(EchoEnv, GRAPH, length=1)] * 5)
    envs.reset(seed=0)
    *_, infos = envs.step([0] * 5)
    held = envs.buf_obs
    envs.buf_obs[2] = infos[2]["reset_obs"]
    assert envs.buf_obs[2] is infos[2]["reset_obs"]
    envs.step([0] * 5)
    assert held[2] is infos[2]["reset_obs"]


def test_objects_in_buf_obs_share_no_memory_with_those_returned(make):
    envs = make([partial(EchoEnv, GRAPH, length=1)] * 5)
    obs, _ = envs.reset(seed=0)
    assert not shares_memory(envs.buf_obs, obs)
    obs, *_ = envs.step([0] * 5)
    assert not shares_memory(envs.buf_obs, obs)
    obs, _ = envs.reset(env_ids=[3])
    assert not shares_memory(envs.buf_obs, obs)


def test_objects_that_have_no_copies_are_passed_on_and_buf_obs_is_still_a_new_list():
    with DummyVecEnv([UncopyableEnv] * 2) as envs:
        first, _ = envs.reset()
        held, seen = envs.buf_obs, list(envs.buf_obs)
        obs, *_ = envs.step([0] * 2)
        assert obs == (envs.envs[0].lock, envs.envs[1].lock)
        assert envs.buf_obs is not held
        assert held == seen == list(first)
        held[0] = None
        assert envs.step([0] * 2)[0][0] is envs.envs[0].lock


@pytest.mark.everywhere
def test_objects_returned_are_not_changed_by_their_environment(make):
    envs = make([GraphReusingEnv] * 5)
    held = [envs.reset(seed=0)[0]]
    seen = bits(held)
    for _ in range(3):
        obs, *_ = envs.step([0] * 5)
        held.append(obs)
        seen += bits(obs)
    envs.step([0] * 5)
    assert bits(held) == seen
