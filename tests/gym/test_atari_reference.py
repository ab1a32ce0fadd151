"""Pixel for pixel beside Gymnasium's own preprocessing, in both backends."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from xuance_envs import Atari_Env, DummyVecEnv_Atari, SubprocVecEnv_Atari

GAMES = ["Pong", "Breakout", "SpaceInvaders", "MsPacman", "Seaquest"]
SEED = 11

Step = tuple[bytes, float, bool, bool, int, int]


def actions_of(steps: int) -> list[int]:
    rng = np.random.default_rng(0)
    return [int(rng.integers(4)) for _ in range(steps)]


def stacked(observation: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(np.asarray(observation), 0, -1))


@functools.cache
def reference(game: str, count: int) -> tuple[list[Step], dict[int, bytes]]:
    """Every step, and by the step that ended a game the first observation of the next."""
    env: Any = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0)
    env = AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84)
    env = FrameStackObservation(env, 4)
    steps, starts = [], {-1: stacked(env.reset(seed=SEED)[0]).tobytes()}
    for number, action in enumerate(actions_of(count)):
        observation, reward, terminated, truncated, info = env.step(action)
        seen = stacked(observation)
        if terminated or truncated:
            seen = np.ascontiguousarray(seen[..., :-1])  # the last frame is a stale one
            starts[number] = stacked(env.reset()[0]).tobytes()
        flags = bool(terminated), bool(truncated)
        numbers = info["lives"], info["frame_number"]
        steps.append((seen.tobytes(), float(reward), *flags, *numbers))
    env.close()
    return steps, starts


def game_of(game: str) -> Atari_Env:
    return Atari_Env(
        game,
        image_size=84,
        noop_max=0,
        fire_on_reset=False,
        terminal_on_life_loss=False,
        clip_reward=False,
        truncate_on_game_over=False,
        repeat_action_probability=0.0,
    )


@pytest.mark.slow("plays whole games twice")
@pytest.mark.parametrize(
    ("count", "ends"), [(400, 2), pytest.param(1000, 4, marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "backend", [pytest.param(DummyVecEnv_Atari, marks=pytest.mark.long), SubprocVecEnv_Atari]
)
def test_every_pixel_reward_and_end_is_the_references(backend: Any, count: int, ends: int) -> None:
    """All five games at once, each in an environment that only takes its first four actions."""

    def make(game: str) -> Any:
        env = game_of(game)
        env.action_space = gymnasium.spaces.Discrete(4)  # a vector env has one space
        return env

    functions = [functools.partial(make, game) for game in GAMES]
    with backend(functions) as envs:
        obs, _ = envs.reset(seed=[SEED] * len(GAMES))
        assert obs.dtype == np.uint8
        for game, observation in zip(GAMES, obs, strict=True):
            assert observation.tobytes() == reference(game, count)[1][-1]
        for number, action in enumerate(actions_of(count)):
            obs, rewards, terminated, truncated, infos = envs.step([action] * len(GAMES))
            for i, game in enumerate(GAMES):
                steps, starts = reference(game, count)
                seen = obs[i]
                if terminated[i] or truncated[i]:
                    seen = np.ascontiguousarray(seen[..., :-1])
                    assert infos[i]["reset_obs"].tobytes() == starts[number]
                numbers = infos[i]["lives"], infos[i]["frame_number"]
                flags = bool(terminated[i]), bool(truncated[i])
                ours = (seen.tobytes(), float(rewards[i]), *flags, *numbers)
                assert ours == steps[number], (game, number)
    begun = sum(len(reference(game, count)[1]) for game in GAMES)
    assert begun >= len(GAMES) + ends, "too few games ended"
