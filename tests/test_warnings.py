"""A warning is about the caller's own line, whatever lies between that and what warns."""

from __future__ import annotations

import ast
import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stateful_envs import Collector

import xuance_envs
from xuance_envs import DummyVecEnv, EnvStates, Gym_Env, ScaleRewards, SubprocVecEnv
from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv

PACKAGE = Path(xuance_envs.__file__).parent


def warning_calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call in the package that warns, and where it is."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "warnings.warn",
                "warn",
                "logger.warn",
            ):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_every_warning_of_the_package_asks_for_its_callers_line() -> None:
    found = dict(warning_calls())
    levels = {
        where: [ast.unparse(k.value) for k in call.keywords if k.arg == "stacklevel"]
        for where, call in found.items()
    }
    assert len(levels) >= 6
    assert {where for where, level in levels.items() if level != ["caller_stacklevel()"]} == set()


class Hoarding(Collector):
    def __init__(self) -> None:
        super().__init__()
        self.frames = np.zeros(17 << 20, np.uint8)


def sb3(name: str) -> Any:
    pytest.importorskip("stable_baselines3")
    return getattr(importlib.import_module("xuance_envs.compat.sb3"), name)


MAKERS: dict[str, Callable[[], Any]] = {
    "ours": lambda: DummyVecEnv([Hoarding]),
    "transforms": lambda: ScaleRewards(ScaleRewards(DummyVecEnv([Hoarding]), 2.0), 2.0),
    "Gymnasium's": lambda: SyncVectorEnv([Hoarding]),
    "a wrapper of Gymnasium's": lambda: (
        gymnasium.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([Hoarding])).env
    ),
    "Stable-Baselines3's": lambda: sb3("DummyVecEnv")([Hoarding]),
}


@pytest.mark.parametrize("how", MAKERS)
def test_of_states(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    envs = MAKERS[how]()
    try:
        envs.reset()
        with pytest.warns(RuntimeWarning, match="takes 17 MiB") as warned:
            state: EnvStates = envs.save_state()
        monkeypatch.setattr(np, "__version__", "0.0.1")
        other = MAKERS[how]()
        other.reset()
        with pytest.warns(UserWarning, match="may continue differently") as also:
            other.load_state(state)
        other.close()
    finally:
        envs.close()
    assert {one.filename for one in [*warned, *also]} == {__file__}


@pytest.mark.parametrize(
    "make",
    [
        lambda: SubprocVecEnv([Collector], context="fork"),
        lambda: ScaleRewards(SubprocVecEnv([Collector], context="fork"), 2.0),
        lambda: AsyncVectorEnv([Collector], context="fork"),
    ],
)
def test_of_a_fork_beside_threads(make: Callable[[], Any]) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.warns(RuntimeWarning, match="copies this process") as warned:
            envs = make()
        envs.close()
    finally:
        done.set()
        thread.join()
    ours = [one for one in warned if "copies this process" in str(one.message)]
    assert [one.filename for one in ours] == [__file__]


def test_of_a_window_that_is_not_there() -> None:
    env = Gym_Env("CartPole-v1", render_mode="rgb_array")
    env.reset()
    with pytest.warns(UserWarning, match="frames are returned instead") as warned:
        env.render("human")
    env.close()
    assert [one.filename for one in warned] == [__file__]


def test_of_what_stays_pending_when_it_is_closed() -> None:
    envs = AsyncVectorEnv([Collector] * 2)
    envs.reset_async()
    with pytest.warns(UserWarning, match="pending call to `reset`") as warned:
        envs.close()  # Gymnasium's own, which calls ours
    assert [one.filename for one in warned] == [__file__]


def test_of_images_that_are_not_rendered() -> None:
    envs = sb3("SubprocVecEnv")([Collector])
    with pytest.warns(UserWarning, match="render mode is") as warned:
        envs.get_images()
    envs.close()
    assert [one.filename for one in warned] == [__file__]


RENAMED = {
    ("state.checking", "difference"): "describe_difference",
    ("state.handlers", "take_registered"): "merge_registered",
    ("transforms.observations", "ObservationState"): "ObservationTransformState",
    ("vector_envs.subproc_vec_env", "danger_of_fork"): "fork_hazard",
    ("vector_envs.wrapper", "AroundVecEnv"): "VecEnvDelegate",
}


@pytest.mark.parametrize(("module", "old"), RENAMED)
def test_an_old_name_warns_and_is_the_new_one(module: str, old: str) -> None:
    loaded = importlib.import_module(f"xuance_envs.{module}")
    new = RENAMED[module, old]
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated .*; use {new}") as caught:
        assert getattr(loaded, old) is getattr(loaded, new)
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = loaded.nothing
