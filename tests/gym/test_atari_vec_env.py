"""Many Atari games: XuanCe's calling forms, ends of lives and games, memory."""

from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from xuance_envs import Atari_Env, DummyVecEnv_Atari, LazyFrames, SubprocVecEnv_Atari

FIRE = 1
breakout = partial(Atari_Env, "Breakout", image_size=84)


def seeded(env_seed: int) -> Atari_Env:
    return breakout(seed=env_seed)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (DummyVecEnv_Atari, {}),
        (SubprocVecEnv_Atari, {"in_series": 2}),
        (SubprocVecEnv_Atari, {"caller_steps": True, "context": "forkserver", "copy": False}),
    ],
    ids=["dummy", "workers", "caller-steps"],
)
def test_lives_and_games_end_in_every_backend(backend: Any, options: dict[str, Any]) -> None:
    with backend([breakout] * 3, **options) as envs:
        obs, infos = envs.reset(seed=0)
        assert (obs.shape, obs.dtype) == ((3, 84, 84, 4), np.uint8)
        assert envs.max_episode_steps == 27_000
        lives = {0: [5], 1: [5], 2: [5]}
        for _ in range(1500):
            obs, _, terminated, truncated, infos = envs.step(np.full(3, FIRE))
            for i in np.flatnonzero(terminated):
                info = infos[i]
                lives[i].append(info["lives"])
                after = info["reset_info"]
                assert info["reset_obs"].shape == (84, 84, 4)
                if info["game_over"]:
                    assert truncated[i]
                    assert (after["lives"], after["episode_step"]) == (5, 0)
                else:
                    assert not truncated[i]
                    assert after["lives"] == info["lives"]
                    assert after["episode_step"] == info["episode_step"]
                np.testing.assert_array_equal(
                    info["reset_obs"], info["reset_obs"][..., :1].repeat(4, axis=-1)
                )
            if all(0 in ended for ended in lives.values()):
                break
    assert all(ended[:6] == [5, 4, 3, 2, 1, 0] for ended in lives.values())


def test_as_xuance_of_any_version_calls_them() -> None:
    assert DummyVecEnv_Atari([seeded] * 2, 3).num_envs == 2
    with SubprocVecEnv_Atari([seeded] * 2, 3) as envs, DummyVecEnv_Atari([seeded] * 2, 3) as here:
        obs, _ = envs.reset()
        np.testing.assert_array_equal(obs, here.reset()[0])
        assert not np.array_equal(obs[0], obs[1])
    with SubprocVecEnv_Atari([breakout] * 2, env_seed=None, context="spawn", in_series=1) as envs:
        assert envs.reset()[0].dtype == np.uint8


def test_options_of_the_gym_form_are_options_of_this_one() -> None:
    with SubprocVecEnv_Atari([breakout] * 2, copy=False, check_actions=True) as envs:
        obs, _ = envs.reset(seed=0)
        assert not obs.flags.writeable
        with pytest.raises(ValueError, match="expected one in Discrete"):
            envs.step([0, 4])
    with pytest.raises(TypeError, match="no_such_option"):
        SubprocVecEnv_Atari([breakout], no_such_option=1)


def test_opencv_has_one_thread_in_a_worker() -> None:
    class Told(Atari_Env):
        def threads(self) -> int:
            import cv2

            return int(cv2.getNumThreads())

    with SubprocVecEnv_Atari([lambda: Told("Breakout", image_size=84)]) as envs:
        envs.reset()
        assert envs.call("threads") == (1,)


def test_rendering_in_workers() -> None:
    with SubprocVecEnv_Atari([breakout] * 2) as envs:
        envs.reset(seed=0)
        (image,) = envs.render("rgb_array", env_ids=[1])
        assert (image.shape, image.dtype) == ((210, 160, 3), np.uint8)


# --- memory -------------------------------------------------------------------------------------


def traced(build: Any) -> tuple[list[Any], int]:
    gc.collect()
    tracemalloc.start()
    try:
        built = build()
        return built, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_thousands_of_observations_share_their_frames() -> None:
    env = Atari_Env("Pong", 0, image_size=84, frame_skip=2)
    count = 800

    def play() -> list[LazyFrames]:
        kept = [env.reset()[0]]
        for number in range(count - 1):
            observation, _, terminated, truncated, _ = env.step(number % 6)
            kept.append(env.reset()[0] if terminated or truncated else observation)
            np.asarray(kept[-1])
        return kept

    kept, used = traced(play)
    assert used <= 0.3 * count * 84 * 84 * 4
    assert len({np.asarray(observation).tobytes() for observation in kept[::8]}) > 90
