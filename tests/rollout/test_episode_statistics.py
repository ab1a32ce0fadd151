"""What counts as an episode, and as its return."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from example_envs import ScriptedEnv, plain_step
from gymnasium import spaces
from rollout_reference import Player

from xuance_envs import DummyVecEnv, RolloutCollector
from xuance_envs.rollout.episode_statistics import EpisodeHistory


def life(score, step, *, lives, over=False, truncated=False, **more):
    """A step of a game that costs a life or ends it, as Atari_Env tells it."""
    info = {"episode_score": score, "episode_step": step, "lives": lives, "game_over": over}
    return plain_step(None, 1.0, not truncated, truncated, {**info, **more})


@pytest.mark.parametrize(
    ("steps", "returns", "lengths"),
    [
        ([life(5.0, 9, lives=1), life(8.0, 15, lives=0, over=True)], [8.0], [15]),
        ([life(5.0, 9, lives=1), life(8.0, 15, lives=1, truncated=True)], [8.0], [15]),
        ([life(5.0, 9, lives=2), life(6.0, 10, lives=1)], [], []),
        ([life(5.0, 9, lives=1, episode={"r": 3.0, "l": 4})] * 2, [3.0, 3.0], [4, 4]),
    ],
    ids=["game over", "truncated", "lives only", "recorded"],
)
def test_the_return_of_a_game_comes_when_the_game_is_over(steps, returns, lengths):
    envs = DummyVecEnv([partial(ScriptedEnv, steps)])
    with RolloutCollector(envs, Player(spaces.Discrete(2)), 2) as collector:
        collector.rollout()
        assert collector.rolling_ep_returns == [returns]
        assert collector.rolling_ep_lengths == [lengths]
        assert collector.ep_counts.tolist() == [2], "for learning, a life is an episode"


def test_an_info_of_another_meaning_is_no_game():
    envs = DummyVecEnv(
        [partial(ScriptedEnv, [plain_step(None, 2.0, True, False, {"game_over": False})])]
    )
    with RolloutCollector(envs, Player(spaces.Discrete(2)), 2) as collector:
        collector.rollout()
        assert collector.rolling_ep_returns == [[2.0, 2.0]]


@pytest.mark.parametrize("score", [3, 3.0, np.float32(3), np.array(3.0), np.array([3.0])])
def test_a_recorded_return_may_be_any_kind_of_number(score):
    statistics = EpisodeHistory(1, 10)
    statistics.add_step(np.ones(1, np.float32))
    assert statistics.add_end(0, {"episode": {"r": score}}, False)
    assert statistics.returns == [[3.0]]
    assert type(statistics.returns[0][0]) is float
    assert statistics.lengths == [[1]]


def test_the_best_return_is_remembered_when_it_has_left_the_window():
    statistics = EpisodeHistory(1, 2)
    for score in (1.0, 9.0, 2.0, 3.0):
        statistics.add_end(0, {"episode_score": score}, False)
    assert statistics.max_return == 9.0
    assert statistics.returns == [[2.0, 3.0]]


def test_sums_are_taken_in_double_precision():
    statistics = EpisodeHistory(1, 1)
    for _ in range(1000):
        statistics.add_step(np.full(1, 0.1, np.float32))
    statistics.add_end(0, {}, False)
    assert statistics.returns[0][0] == pytest.approx(1000 * float(np.float32(0.1)), rel=1e-12)
