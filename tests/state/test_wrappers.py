"""Each wrapper of Gymnasium goes on exactly, or is known not to, and why."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import DUMMY, WORKERS
from gymnasium import wrappers as w
from gymnasium.spaces import Box
from saving_matrix import goes_on

from xuance_envs import check_saving

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

Env = gymnasium.Env[Any, Any]


def pole(**how: Any) -> Env:
    return gymnasium.make("CartPole-v1", **how)


def swing() -> Env:
    return gymnasium.make("Pendulum-v1", max_episode_steps=20)


def seen(**how: Any) -> Env:
    return w.AddRenderObservation(pole(render_mode="rgb_array"), **how)


def game() -> Env:
    gymnasium.register_envs(importlib.import_module("ale_py"))
    return gymnasium.make("ALE/Breakout-v5", frameskip=1)


def wide(env: Env) -> Box:
    return Box(-np.inf, np.inf, env.observation_space.shape, np.float32)


EXACT: dict[str, Callable[..., Env]] = {
    "AtariPreprocessing": lambda: w.AtariPreprocessing(game(), noop_max=3),
    "DelayObservation": lambda: w.DelayObservation(pole(), delay=2),
    "DtypeObservation": lambda: w.DtypeObservation(pole(), np.float64),
    "DiscretizeObservation": lambda: w.DiscretizeObservation(swing(), 5),
    "FilterObservation": lambda: w.FilterObservation(seen(render_only=False), ["state"]),
    "FlattenObservation": lambda: w.FlattenObservation(gymnasium.make("Blackjack-v1")),
    "FrameStackObservation": lambda: w.FrameStackObservation(pole(), 3),
    "GrayscaleObservation": lambda: w.GrayscaleObservation(seen()),
    "TransformObservation": lambda: w.TransformObservation(swing(), lambda o: o * 2, wide(swing())),
    "MaxAndSkipObservation": lambda: w.MaxAndSkipObservation(swing(), 3),
    "NormalizeObservation": lambda: w.NormalizeObservation(pole()),
    "AddRenderObservation": seen,
    "ResizeObservation": lambda: w.ResizeObservation(seen(), (20, 30)),
    "ReshapeObservation": lambda: w.ReshapeObservation(pole(), (2, 2)),
    "RescaleObservation": lambda: w.RescaleObservation(swing(), np.float32(0), np.float32(1)),
    "TimeAwareObservation": lambda: w.TimeAwareObservation(pole()),
    "ClipAction": lambda: w.ClipAction(swing()),
    "DiscretizeAction": lambda: w.DiscretizeAction(swing(), 5),
    "TransformAction": lambda: w.TransformAction(swing(), lambda a: a / 2, swing().action_space),
    "RescaleAction": lambda: w.RescaleAction(swing(), np.float32(0), np.float32(1)),
    "StickyAction": lambda: w.StickyAction(pole(), 0.4),
    "RepeatAction": lambda: w.RepeatAction(pole(), 2),
    "ClipReward": lambda: w.ClipReward(swing(), -1, 0),
    "TransformReward": lambda: w.TransformReward(pole(), lambda reward: reward * 3),
    "NormalizeReward": lambda: w.NormalizeReward(swing()),
    "TimeLimit": lambda: w.TimeLimit(pole(), 9),
    "Autoreset": lambda: w.Autoreset(pole()),
    "PassiveEnvChecker": lambda: w.PassiveEnvChecker(pole(disable_env_checker=True)),
    "OrderEnforcing": lambda: w.OrderEnforcing(pole()),
    "AddWhiteNoise": lambda: w.AddWhiteNoise(pole(render_mode="rgb_array"), 0.5),
    "ObstructView": lambda: w.ObstructView(pole(render_mode="rgb_array"), 0.3, 5),
    "RenderCollection": lambda: w.RenderCollection(pole(render_mode="rgb_array")),
    "RecordVideo": lambda folder: w.RecordVideo(
        pole(render_mode="rgb_array"), folder, episode_trigger=lambda _: False
    ),
    "HumanRendering": lambda: w.HumanRendering(pole(render_mode="rgb_array")),
    "NumpyToTorch": lambda: w.NumpyToTorch(pole()),
    "ArrayConversion": lambda: w.ArrayConversion(pole(), np, np),
}
RENDERED = {
    "FilterObservation",
    "GrayscaleObservation",
    "AddRenderObservation",
    "ResizeObservation",
}
RENDERED |= {"ResizeObservation", "RenderCollection", "HumanRendering"}
RENDERED |= {"AddWhiteNoise", "ObstructView", "RecordVideo"}
OTHERWISE = {
    "RecordEpisodeStatistics": "it tells the time of day",
    "JaxToNumpy": "it is for environments of JAX, whose generators are theirs",
    "JaxToTorch": "likewise",
    "vector": "wrappers of vector environments",
}
NEEDED = {
    "AtariPreprocessing": ["ale_py", "cv2"],
    "ResizeObservation": ["cv2"],
    "RecordVideo": ["moviepy"],
    "NumpyToTorch": ["torch"],
    "ArrayConversion": ["array_api_compat"],
}


def maker(name: str, folder: Path) -> Callable[[], Env]:
    """What makes one, which a worker may have been started before."""
    for library in ["pygame", *NEEDED.get(name, [])]:
        pytest.importorskip(library)
    if not hasattr(w, name):
        pytest.skip("not in this Gymnasium")
    return partial(EXACT[name], str(folder)) if name == "RecordVideo" else EXACT[name]


def test_all_of_them_are_here() -> None:
    assert EXACT.keys() | OTHERWISE.keys() >= set(w.__all__)


@pytest.mark.parametrize("name", EXACT)
def test_it_goes_on_exactly(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    check_saving(maker(name, tmp_path), steps=10 if name in RENDERED else 30)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:the state of one environment takes")  # it has the pictures
@pytest.mark.parametrize("name", EXACT)
def test_it_goes_on_in_workers_and_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    make = maker(name, tmp_path)
    goes_on(make, DUMMY, WORKERS)
    goes_on(make, WORKERS, DUMMY)


def test_statistics_go_on_but_for_the_time() -> None:
    check_saving(lambda: w.RecordEpisodeStatistics(pole()), steps=60)
