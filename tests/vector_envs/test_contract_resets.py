"""The contract: seeds, options, and resets of some environments only."""

from __future__ import annotations

import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from comparing import HandSteps, assert_same, assert_same_reset
from example_envs import EchoEnv, NamedEnv, ReusingEnv
from gymnasium import spaces

from xuance_envs.errors import NotResetError

SPACE = spaces.Box(-1, 1, (2,))
MIXED = spaces.Dict(box=SPACE, word=spaces.Text(4))
ECHO = partial(EchoEnv, SPACE, length=100)


def first_of(seeds, space=SPACE):
    return [HandSteps(EchoEnv(space, length=100), seed) for seed in seeds]


def seeds_seen(envs):
    """The seed of the last reset of each environment, where it was given one."""
    return [resets[-1].get("seed") for resets in envs.get_attr("resets")]


@pytest.mark.everywhere("7")
@pytest.mark.parametrize("seed", [7, np.int64(7), np.uint8(7)], ids=["7", "int64", "uint8"])
def test_an_int_seed_gives_environment_i_the_seed_plus_i(make_on_all, seed):
    envs = make_on_all([ECHO] * 5)
    assert_same_reset(SPACE, envs.reset(seed=seed), first_of([7, 8, 9, 10, 11]))
    assert seeds_seen(envs) == [7, 8, 9, 10, 11]


def test_an_int_seed_does_so_too_where_only_some_are_reset(make):
    envs = make([ECHO] * 5)
    envs.reset(seed=0)
    assert_same_reset(SPACE, envs.reset(seed=7, env_ids=[3, 1]), first_of([10, 8]))


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_a_sequence_of_seeds_gives_each_its_own(make, kind):
    envs = make([ECHO] * 5)
    seeds = [5, 3, 1000, 3, 0]
    assert_same_reset(SPACE, envs.reset(seed=kind(seeds)), first_of(seeds))
    assert [type(seed) for seed in seeds_seen(envs)] == [int] * 5


def test_a_sequence_of_seeds_goes_with_env_ids(make):
    envs = make([ECHO] * 5)
    envs.reset(seed=0)
    assert_same_reset(SPACE, envs.reset(seed=[50, 10], env_ids=[4, 0]), first_of([50, 10]))


@pytest.mark.everywhere
def test_none_among_the_seeds_continues_that_environments_stream(make):
    envs = make([ECHO] * 5)
    envs.reset(seed=0)
    by_hand = first_of(range(5))
    by_hand[1].first = by_hand[1].env.reset()
    by_hand[4].first = by_hand[4].env.reset()
    expected = [*first_of([5]), by_hand[1], *first_of([6, 7]), by_hand[4]]
    assert_same_reset(SPACE, envs.reset(seed=[5, None, 6, 7, None]), expected)


@pytest.mark.parametrize("env_ids", [None, [0, 2]])
@pytest.mark.parametrize("seeds", [[], [1, 2, 3], [1, 2, 3, 4, 5, 6]])
def test_a_wrong_number_of_seeds_is_refused_and_nothing_is_reset(make_either, seeds, env_ids):
    envs = make_either([ECHO] * 5)
    envs.reset(seed=0)
    wanted = 5 if env_ids is None else 2
    with pytest.raises(ValueError, match=rf"{wanted} seeds.*got a sequence of {len(seeds)}"):
        envs.reset(seed=seeds, env_ids=env_ids)
    assert [len(resets) for resets in envs.get_attr("resets")] == [1] * 5
    assert not envs.closed


@pytest.mark.parametrize(
    "seed",
    [
        *(1.5, np.float64(1), np.bool_(True), "12", b"12", -1, np.int64(-1), np.array(2.0), {}),
        *([1, 1.5], [1, "2"], [1, -2], [1, [2]], [[1], [2]], np.ones(2), np.zeros((2, 1))),
    ],
    ids=repr,
)
@pytest.mark.parametrize("reset", ["reset", "async_reset"])
def test_what_is_no_seed_is_refused_and_nothing_is_reset(make_either, reset, seed):
    envs = make_either([ECHO] * 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"^seed.*expected .*int.*, got "):
        getattr(envs, reset)(seed=seed)
    assert [len(resets) for resets in envs.get_attr("resets")] == [1] * 2
    envs.step([0, 0])


@pytest.mark.parametrize("seed", [True, 2**31, 2**64 - 2, np.uint64(2**63), np.array(3), 2**80])
def test_any_int_is_a_seed(make, seed):
    envs = make([ECHO] * 2)
    assert_same_reset(SPACE, envs.reset(seed=seed), first_of([int(seed), int(seed) + 1]))
    assert_same_reset(SPACE, envs.reset(seed=[seed, 0]), first_of([int(seed), 0]))


@pytest.mark.everywhere
def test_seed_and_options_are_passed_only_when_given(make):
    envs = make([ECHO] * 5)
    envs.reset()
    envs.reset(seed=1)
    envs.reset(options={"level": 3})
    envs.reset(seed=1, options={})
    received = envs.get_attr("resets")[4]
    assert received == [{}, {"seed": 5}, {"options": {"level": 3}}, {"seed": 5, "options": {}}]


@pytest.mark.everywhere
def test_an_automatic_reset_passes_nothing(make):
    envs = make([partial(EchoEnv, SPACE, length=1)] * 5)
    envs.reset(seed=1, options={"level": 3})
    envs.step([0] * 5)
    assert [resets[1:] for resets in envs.get_attr("resets")] == [[{}]] * 5


ARGUMENTS = [lambda **given: NamedEnv(given)] * 5
"""Functions that make environments named by the arguments they were called with."""


@pytest.mark.everywhere
@pytest.mark.spawned
def test_env_seed_calls_function_i_with_the_seed_plus_i(make_on_all):
    envs = make_on_all(ARGUMENTS, env_seed=30)
    assert envs.get_attr("name") == tuple({"env_seed": 30 + i} for i in range(5))


def test_env_seed_may_come_second_and_may_be_zero(make):
    envs = make(ARGUMENTS, 0)
    assert envs.get_attr("name") == tuple({"env_seed": i} for i in range(5))


def test_without_env_seed_functions_are_called_without_arguments(make):
    assert make(ARGUMENTS).get_attr("name") == ({},) * 5


# --- some environments only ---------------------------------------------------------------------


@pytest.mark.everywhere
def test_a_partial_reset_returns_only_those_in_the_order_asked_for(make_on_all):
    envs = make_on_all([partial(ReusingEnv, lengths=(9,))] * 5)
    envs.reset()
    for count in range(4):
        envs.reset(env_ids=[count])
    obs, infos = envs.reset(env_ids=[4, 0, 2])
    assert_same(obs, np.array([[2, 0, -1], [3, 0, -1], [3, 0, -1]], np.float32))
    assert len(infos) == 3
    assert [info["trail"][0] for info in infos] == [2, 3, 3]


@pytest.mark.parametrize("env_ids", [(3, 1), np.array([3, 1]), np.array([3, 1], np.uint8)])
def test_env_ids_may_be_any_sequence_of_ints(make, env_ids):
    envs = make([ECHO] * 5)
    assert_same_reset(SPACE, envs.reset(seed=0, env_ids=env_ids), first_of([3, 1]))


@pytest.mark.everywhere
def test_a_partial_reset_leaves_the_others_where_they_are(make):
    envs = make([partial(ReusingEnv, lengths=(9,))] * 5)
    envs.reset()
    envs.step([0] * 5)
    envs.step([0] * 5)
    envs.reset(env_ids=[3, 0])
    obs, rewards, *_ = envs.step([7] * 5)
    assert obs[:, 1].tolist() == [1, 3, 3, 1, 3]
    assert rewards.tolist() == [1, 3, 3, 1, 3]


def test_a_partial_reset_sets_only_its_rows_of_buf_obs(make):
    envs = make([partial(EchoEnv, MIXED, length=100)] * 5)
    envs.reset(seed=0)
    obs, *_ = envs.step([0] * 5)
    before = envs.buf_obs
    mine = envs.buf_obs["box"][2] = [0.25, 0.75]
    reset_obs, _ = envs.reset(env_ids=[3, 0])
    assert envs.buf_obs is not before
    assert before["box"][3].tolist() == obs["box"][3].tolist(), "held from before, it stays"
    for place, env in enumerate([3, 0]):
        assert_same(envs.buf_obs["box"][env], reset_obs["box"][place])
        assert envs.buf_obs["word"][env] == reset_obs["word"][place]
    assert envs.buf_obs["box"][2].tolist() == mine
    for env in (1, 4):
        assert_same(envs.buf_obs["box"][env], obs["box"][env])
        assert envs.buf_obs["word"][env] == obs["word"][env]


def test_a_partial_reset_of_none_resets_none(make):
    envs = make([ECHO] * 5)
    envs.reset(seed=0)
    obs, infos = envs.reset(env_ids=[])
    assert obs.shape == (0, 2)
    assert list(infos) == []
    assert [len(resets) for resets in envs.get_attr("resets")] == [1] * 5


@pytest.mark.parametrize("env_ids", [[5], [0, -1], [0, 99], 3, [0.5], ["0"], [None]], ids=repr)
def test_env_ids_that_are_none_are_refused_and_nothing_is_reset(make_either, env_ids):
    envs = make_either([ECHO] * 5)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"env_ids: expected .*, got"):
        envs.reset(env_ids=env_ids)
    assert [len(resets) for resets in envs.get_attr("resets")] == [1] * 5
    assert not envs.closed


def test_the_flags_of_the_last_step_are_gone_after_a_partial_reset(make):
    envs = make([partial(ReusingEnv, lengths=(1, 9, 9))] * 5)
    envs.reset()
    assert all("reset_obs" in info for info in envs.step([0] * 5)[4])
    _, infos = envs.reset(env_ids=[1, 2])
    assert not any("reset_obs" in info for info in infos)
    _, _, terminated, truncated, infos = envs.step([0] * 5)
    assert not (terminated | truncated).any()
    assert not any("reset_obs" in info for info in infos)


def test_a_mask_is_not_taken_for_indices(make):
    envs = make([ReusingEnv] * 3)
    envs.reset()
    for env_ids in ([True, False, True], iter([0])):
        with pytest.raises(ValueError, match="env_ids: expected a sequence of ints"):
            envs.reset(env_ids=env_ids)
    assert envs.step([0, 0, 0])[0][:, 1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("convert", [iter, bytes, lambda ids: (env for env in ids)])
def test_iterators_and_bytes_are_not_taken_for_indices(make, convert):
    envs = make([ECHO] * 3)
    envs.reset()
    with pytest.raises(ValueError, match="env_ids: expected a sequence of ints"):
        envs.reset(env_ids=convert([0, 1]))
    with pytest.raises(ValueError, match="src_ids: expected a sequence of ints"):
        envs.clone_state(convert([0, 1]), [1, 2])


def test_a_tensor_is_taken_for_indices_but_not_a_mask_of_torch(make):
    torch = pytest.importorskip("torch")
    envs = make([ECHO] * 2)
    envs.reset()
    envs.reset(env_ids=torch.tensor([1]))
    with pytest.raises(ValueError, match="env_ids: expected a sequence of ints"):
        envs.reset(env_ids=torch.tensor([False, True]))
    assert [len(resets) for resets in envs.get_attr("resets")] == [1, 2]


@pytest.mark.parametrize("seed", [{0: 5, 1: 7}, {5, 7}], ids=repr)
def test_seeds_without_an_order_of_environments_are_refused(make, seed):
    envs = make([ECHO] * 2)
    with pytest.raises(ValueError, match="seed: expected a non-negative int, or 2 of them"):
        envs.reset(seed=seed)


@pytest.mark.everywhere
def test_options_that_cannot_reach_the_environments_change_nothing(make):
    envs = make([ECHO] * 5)
    envs.reset(seed=0)
    if not make.backend.here:
        with pytest.raises(TypeError, match=r"'reset'.* cannot be sent"):
            envs.reset(options={"lock": threading.Lock()})
    assert len(envs.step([0] * 5)[1]) == 5


# --- before the first reset ---------------------------------------------------------------------


@pytest.mark.everywhere
def test_stepping_environments_that_were_never_reset_is_refused_and_sends_nothing(make):
    envs = make([ECHO] * 4)
    with pytest.raises(NotResetError, match="step: environments 0 to 3 have not been reset"):
        envs.step([0] * 4)
    envs.reset(seed=0, env_ids=[0, 2])
    with pytest.raises(NotResetError, match=r"step: environments 1, 3 have not been reset"):
        envs.step([0] * 4)
    with pytest.raises(gymnasium.error.ResetNeeded, match="send: environment 3 has not been reset"):
        envs.send([0, 0], [0, 3])
    assert envs.get_attr("received") == ([],) * 4
    assert not envs.closed
    envs.reset(seed=0, env_ids=[1, 3])
    assert envs.step([0] * 4)[1].shape == (4,)


@pytest.mark.everywhere
def test_a_loaded_state_counts_as_a_reset(make):
    envs = make([partial(NamedEnv, "a")] * 3)
    envs.reset(seed=0, env_ids=[0])
    state = envs.save_state([0])
    envs.load_state(state, [1])
    with pytest.raises(NotResetError, match="environment 2 has not"):
        envs.step([0] * 3)
    envs.clone_state([2], [1])  # a copy of an environment that was never reset
    with pytest.raises(NotResetError, match="environments 1, 2 have not"):
        envs.step([0] * 3)
    envs.clone_state([0], [1, 2])
    envs.step([0] * 3)
