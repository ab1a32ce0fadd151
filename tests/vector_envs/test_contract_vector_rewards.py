"""The contract for vector rewards: the same in every backend, and errors that name the way out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from gymnasium.spaces import Box
from vector_reward_envs import (
    GoalsEnv,
    Plain,
    Summing,
    SummingSilently,
    UndeclaredEnv,
    reward_box,
)

from xuance_envs import (
    DummyVecEnv,
    EnvError,
    EnvStates,
    Gym_Env,
    StateMismatchError,
    check_saving,
)

N, K = 5, 3


def by_hand(fn: Any, actions: list[int], seed: int) -> list[Any]:
    """The rewards of one environment, with resets at its ends."""
    env = fn()
    env.reset(seed=seed)
    rewards = []
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            env.reset()
    return rewards


def of_lengths(*lengths: int, **options: Any) -> list[Any]:
    return [partial(GoalsEnv, K, length, **options) for length in lengths]


def assert_declared(envs: Any, k: int) -> None:
    dtype = envs.reward_space.dtype
    assert dtype in (np.float64, np.float32)  # the environment's, or that of a transform of rewards
    assert envs.reward_space == Box(-np.inf, np.inf, (k,), dtype)


@pytest.mark.parametrize("copy", [True, False])
def test_rewards_are_vectors_bitwise_through_ends_and_resets(make: Any, copy: bool) -> None:
    fns = of_lengths(2, 3, 4, 5, 6)
    envs = make(fns, copy=copy)
    assert_declared(envs, K)
    assert_same(envs.buf_rews, np.zeros((N, K), np.float32))
    actions = np.random.default_rng(0).integers(9, size=(3, 15, N))
    for run, chosen in enumerate(actions):
        envs.reset(seed=10 * run)
        expected = np.array(
            [by_hand(fn, chosen[:, i].tolist(), 10 * run + i) for i, fn in enumerate(fns)]
        )
        for t, each in enumerate(chosen):
            _, rewards, *_ = envs.step(each)
            assert_same(np.array(rewards), expected[:, t].astype(np.float32))
            assert_same(envs.exact_rewards, expected[:, t])
            assert envs.buf_rews is rewards


def test_asynchronous_steps_and_their_zeros(make: Any) -> None:
    fns = of_lengths(2, 3, 4, 5, 6)
    envs = make(fns)
    envs.async_reset(seed=3)
    batch = envs.recv(N)
    assert_same(batch.rewards, np.zeros((N, K), np.float32))
    expected = [by_hand(fn, [i] * 4, 3 + i) for i, fn in enumerate(fns)]
    for t in range(4):
        envs.send(np.arange(N), np.arange(N))
        left = N
        while left:
            batch = envs.recv()
            left -= len(batch.env_ids)
            at = batch.env_ids.tolist()
            assert_same(batch.rewards, np.array([expected[i][t] for i in at], np.float32))


def test_a_saved_state_brings_back_the_vectors(make: Any) -> None:
    envs = make(of_lengths(2, 3, 4, 5, 6))
    envs.reset(seed=0)
    envs.step([1] * N)
    _, rewards, *_ = envs.step([2] * N)
    exact = envs.exact_rewards
    state = envs.save_state()
    following = [envs.step([action] * N)[1] for action in range(6)]
    assert not np.array_equal(envs.buf_rews, rewards)
    envs.load_state(state)
    assert_same(envs.buf_rews, rewards)
    assert_same(envs.exact_rewards, exact)
    for action, expected in enumerate(following):
        assert_same(envs.step([action] * N)[1], expected)
    envs.load_state(state)
    envs.clone_state(4, 0)
    assert_same(envs.buf_rews[0], rewards[4])


def test_states_go_to_files_and_to_other_backends(make_local: Any) -> None:
    envs = make_local(of_lengths(9, 9))
    envs.reset(seed=0)
    _, rewards, *_ = envs.step([2, 3])
    state = EnvStates.from_bytes(envs.save_state().to_bytes())
    expected = envs.step([4, 5])[1]
    with DummyVecEnv(of_lengths(9, 9)) as others:
        others.load_state(state)
        assert_same(others.buf_rews, rewards)
        assert_same(others.step([4, 5])[1], expected)


def test_a_state_with_rewards_of_another_shape_is_refused() -> None:
    with DummyVecEnv(of_lengths(9)) as envs, DummyVecEnv([lambda: Summing(GoalsEnv())]) as sums:
        sums.reset()
        envs.reset()
        with pytest.raises(StateMismatchError, match=r"rewards? of shape \(3,\), got \(\)"):
            envs.load_state(sums.save_state())
        envs.step([0])


def test_saving_is_checked_with_vectors() -> None:
    check_saving(GoalsEnv)


FORMS = {
    "float32": lambda reward: reward.astype(np.float32),
    "ints": lambda reward: np.array([1, 2, 3]),
    "bools": lambda reward: np.array([True, False, True]),
    "a list": lambda reward: reward.tolist(),
    "a tuple of NumPy numbers": tuple,
    "strided": lambda reward: np.repeat(reward, 2)[::2],
    "reversed": lambda reward: reward[::-1],
    "big-endian": lambda reward: reward.astype(">f8"),
    "read-only": lambda reward: np.frombuffer(reward.tobytes()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_vector_is_stored(make_local: Any, form: str) -> None:
    envs = make_local([partial(GoalsEnv, form=FORMS[form])] * 2)
    envs.reset(seed=0)
    envs.step([3, 4])
    expected = [by_hand(partial(GoalsEnv, form=FORMS[form]), [3 + i], i)[0] for i in range(2)]
    assert_same(envs.exact_rewards, np.array(expected, np.float64))


WRONG = {
    "a number": (lambda reward: 1.0, r"expected shape \(3,\).*got a number"),
    "one component": (lambda reward: reward[:1], r"expected shape \(3,\).*got shape \(1,\)"),
    "two axes": (lambda reward: reward[None], r"expected shape \(3,\).*got shape \(1, 3\)"),
    "too many": (lambda reward: np.ones(4), r"expected shape \(3,\).*got shape \(4,\)"),
    "ragged": (lambda reward: [[1], [1, 2], 3], "invalid reward: .*cannot convert"),
    "None": (lambda reward: None, "invalid reward: expected shape"),
    "strings": (lambda reward: ["a", "b", "c"], "invalid reward: expected dtype float64"),
    "complex": (lambda reward: reward + 1j, "invalid reward: expected dtype float64"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_reward_of_the_wrong_shape_fails_the_step(make_local: Any, wrong: str) -> None:
    form, reason = WRONG[wrong]
    envs = make_local([GoalsEnv, GoalsEnv, partial(GoalsEnv, form=form)])
    envs.reset()
    with pytest.raises(EnvError, match=reason) as raised:
        envs.step([0, 0, 0])
    assert (raised.value.env_index, raised.value.command) == (2, "step")
    assert envs.closed


@pytest.mark.parametrize(
    "fn",
    [
        UndeclaredEnv,
        lambda: Plain(Plain(UndeclaredEnv())),
        partial(Gym_Env, "vector_reward_envs:UndeclaredGoals-v0", disable_env_checker=True),
        lambda: Plain(Gym_Env("vector_reward_envs:UndeclaredGoals-v0", disable_env_checker=True)),
    ],
)
def test_without_a_reward_space_the_error_names_it(make: Any, fn: Any) -> None:
    envs = make([fn] * 2)
    assert envs.reward_space is None
    envs.reset()
    with pytest.raises(EnvError, match=r"reward: .*got shape \(3,\).*reward_space.*LinearReward"):
        envs.step([0, 0])


def test_a_wrapper_may_make_numbers_of_vectors(make: Any) -> None:
    envs = make([lambda: Plain(Summing(GoalsEnv()))] * 2)
    assert envs.reward_space is None
    envs.reset(seed=0)
    assert envs.step([3, 4])[1].shape == (2,)


def test_a_wrapper_that_does_not_say_so_is_named_as_the_reason(make: Any) -> None:
    envs = make([lambda: SummingSilently(GoalsEnv())] * 2)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"got a number; a wrapper .* reward_space = None"):
        envs.step([3, 4])


def test_reward_spaces_that_differ_name_the_environment(make: Any) -> None:
    for other in (partial(GoalsEnv, 2), partial(GoalsEnv, high=1.0), lambda: Summing(GoalsEnv())):
        with pytest.raises(RuntimeError, match="environment 3 has a different reward_space") as it:
            make([GoalsEnv, GoalsEnv, GoalsEnv, other, GoalsEnv])
        assert "environment 0" in str(it.value)


def test_other_attributes_of_that_name_declare_nothing(make_local: Any) -> None:
    class Named(GoalsEnv):
        def __init__(self) -> None:
            super().__init__()
            self.reward_space = "any"

        def reward(self, action: Any) -> Any:
            return 2.0

    envs = make_local([Named] * 2)
    assert envs.reward_space is None
    envs.reset()
    assert_same(envs.step([0, 0])[1], np.full(2, 2, np.float32))


def test_one_component_is_a_vector_too(make: Any) -> None:
    envs = make([partial(GoalsEnv, 1)] * 2)
    envs.reset()
    assert_same(envs.step([0, 0])[1], np.ones((2, 1), np.float32))


def test_gym_env_counts_a_vector_as_its_score(make: Any) -> None:
    for k in (1, 3):
        fn = partial(
            Gym_Env, "vector_reward_envs:VectorGoals-v0", disable_env_checker=True, k=k, length=3
        )
        envs = make([fn] * 2)
        assert_declared(envs, k)
        envs.reset(seed=0)
        total = np.zeros((2, k))
        for _ in range(3):
            *_, terminated, _, infos = envs.step([2, 3])
            total = total + envs.exact_rewards
            for i in range(2):
                assert_same(infos[i]["episode_score"], total[i])
        assert terminated.all()
        assert_same(infos.column("episode_score")[0], total)
        *_, infos = envs.step([2, 3])
        assert_same(infos[0]["episode_score"], envs.exact_rewards[0])


def test_a_single_gym_env_needs_the_declaration() -> None:
    env = Gym_Env("vector_reward_envs:UndeclaredGoals-v0", disable_env_checker=True)
    env.reset()
    with pytest.raises(ValueError, match=r"got shape \(3,\).*reward_space"):
        env.step(0)
    declared = Gym_Env("vector_reward_envs:VectorGoals-v0", disable_env_checker=True)
    assert declared.reward_space == reward_box(3)
    assert Gym_Env("CartPole-v1").reward_space is None
