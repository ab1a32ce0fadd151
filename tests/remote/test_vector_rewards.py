"""Vector rewards behind HTTP: in JSON, and for both clients."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from serving import Asking, ServerMaker
from vector_reward_envs import GoalsEnv, Summing, UndeclaredEnv, reward_box

from xuance_envs import DummyVecEnv, EnvError, RemoteVecEnv, create_student_gym_env_vectorized
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.spaces import reward_space_from_wire

GOALS = {"Goals": partial(GoalsEnv, 3, 4)}


def test_a_session_in_json(serve: ServerMaker) -> None:
    asking = Asking(serve(GOALS))
    created = asking.ask("create", env_id="Goals", num_envs=2, auto_reset=True).json()
    assert created["reward_space"]["shape"] == [3]
    asking.ask("vectorized_reset", seed=[0, 1])
    step = asking.ask("vectorized_step", actions=[3, 4]).json()
    with DummyVecEnv([GOALS["Goals"]] * 2) as envs:
        envs.reset(seed=0)
        envs.step([3, 4])
        assert step["rewards"] == envs.exact_rewards.tolist()
    asking.close()
    asking.client.close()


def test_numbers_have_no_reward_space_in_json(serve: ServerMaker) -> None:
    asking = Asking(serve({"Sums": lambda: Summing(GoalsEnv())}))
    created = asking.ask("create", env_id="Sums", num_envs=2).json()
    assert "reward_space" not in created
    asking.close()
    asking.client.close()


def test_repeated_actions_add_vectors_up(serve: ServerMaker) -> None:
    server = serve(GOALS)
    with create_student_gym_env_vectorized(2, 3, None, base_url=server.url) as env:
        assert env.reward_space == reward_box(3)
        env.reset(seed=0)
        by_hand = [GOALS["Goals"]() for _ in range(2)]
        for i, each in enumerate(by_hand):
            each.reset(seed=i)
        for count in (3, 1, 0):  # the episode ends with the fourth step
            _, rewards, terminated, *_ = env.step([3, 4])
            expected = np.zeros((2, 3))
            for i, each in enumerate(by_hand):
                for _ in range(count):
                    expected[i] += each.step(3 + i)[1]
            assert_same(rewards, expected.astype(np.float32))
        assert terminated.all()


def test_repeated_actions_need_the_declaration(serve: ServerMaker) -> None:
    server = serve({"Undeclared": UndeclaredEnv})
    with create_student_gym_env_vectorized(2, 3, None, base_url=server.url) as env:
        assert env.reward_space is None
        env.reset()
        with pytest.raises(EnvError, match=r"got shape \(3,\).*reward_space"):
            env.step([3, 4])


def test_the_vectorized_client_and_its_states(serve: ServerMaker) -> None:
    server = serve(GOALS)
    with (
        RemoteVecEnv(server.url, "Goals", 2) as envs,
        DummyVecEnv([GOALS["Goals"]] * 2) as here,
    ):
        envs.reset(seed=0)
        here.reset(seed=0)
        for action in range(6):
            assert_same(envs.step([action, 3])[1], here.step([action, 3])[1])
        state, rewards = envs.save_state(), envs.buf_rews
        expected = envs.step([1, 1])[1]
        envs.load_state(state)
        assert_same(envs.buf_rews, rewards)
        assert_same(envs.step([1, 1])[1], expected)


@pytest.mark.parametrize(
    "node",
    [
        {"type": "Discrete", "n": 3, "start": 0, "dtype": "int64"},
        {"type": "MultiBinary", "n": 3},
    ],
)
def test_a_reply_with_another_space_is_refused(node: Any) -> None:
    with pytest.raises(WireError, match="reward_space of shape"):
        reward_space_from_wire({"reward_space": node})
    assert reward_space_from_wire({}) is None
