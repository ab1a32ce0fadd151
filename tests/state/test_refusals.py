"""What cannot be saved, and what cannot be loaded: each says why."""

from __future__ import annotations

import functools
import importlib
import socket
import types
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from stateful_envs import Collector

from xuance_envs import Atari_Env, DummyVecEnv, EnvStates, Gym_Env, StateError, StateMismatchError
from xuance_envs.state import ale
from xuance_envs.state.fingerprint import Fingerprint

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def refusal(make: Callable[[], Any]) -> str:
    """Why an environment cannot be saved."""
    with DummyVecEnv([make]) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateError) as caught:
            envs.save_state()
    return str(caught.value)


class Connected(Collector):
    def __init__(self) -> None:
        super().__init__()
        self.socket, self.peer = socket.socketpair()

    def close(self) -> None:
        self.socket.close()
        self.peer.close()


class WithOptions(Collector):
    def __init__(self) -> None:
        super().__init__()
        self.options = importlib.import_module("mujoco").MjvOption()


def test_sockets_and_objects_of_native_libraries() -> None:
    expected = "Connected.socket: a socket.socket cannot be saved: it is connected"
    assert expected in refusal(Connected)
    pytest.importorskip("mujoco")
    assert "its library hides its state from Python" in refusal(WithOptions)


class HoldsWorld(Collector):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [importlib.import_module("Box2D").b2World().this]


def test_objects_of_classes_without_a_module() -> None:
    pytest.importorskip("Box2D")
    assert "HoldsWorld.parts[0]: a SwigPyObject cannot be saved" in refusal(HoldsWorld)


bullet = types.ModuleType("pybullet")


class Physics:
    def advance(self) -> None:
        bullet.stepSimulation()


class HoldsPhysics(Collector):
    def __init__(self) -> None:
        super().__init__()
        self.physics = [Physics()]


class IsPhysics(Collector):
    advance = Physics.advance


class RestoresPhysics(HoldsPhysics):
    def __env_state__(self) -> Any:
        return self.steps

    def __set_env_state__(self, value: Any) -> None:
        self.steps = value


@pytest.mark.parametrize("kind", [HoldsPhysics, IsPhysics])
def test_libraries_that_hold_the_state_themselves(kind: Any) -> None:
    assert "Physics keeps its state in pybullet" in refusal(kind)
    with DummyVecEnv([RestoresPhysics]) as envs:
        envs.reset(seed=1)
        envs.load_state(envs.save_state())


class Streaming(Collector):
    def __init__(self) -> None:
        super().__init__()
        self.stream = self.read()

    async def read(self) -> Any:
        yield 0


def test_types_have_the_right_article() -> None:
    assert "Streaming.stream: an async_generator cannot be saved" in refusal(Streaming)


class ChangedDict(Collector):
    """Iterates over a dict that loses a key, before or after the iterator, and gets another one."""

    def __init__(self, lost: str, begin: Callable[[Any], Any]) -> None:
        super().__init__()
        self.speeds = {"a": 1, "b": 2, "c": 3, "d": 4}
        self.iterator = begin(self.speeds.items())
        next(self.iterator)
        del self.speeds[lost]
        self.speeds["e"] = 5


@pytest.mark.parametrize(("lost", "begin"), [("a", iter), ("b", reversed)])
def test_iterators_over_dicts_that_lost_and_got_keys(lost: str, begin: Any) -> None:
    said = refusal(functools.partial(ChangedDict, lost, begin))
    assert "ChangedDict.iterator: a dict" in said
    assert "keys were both deleted from and added to the iterated dict" in said


@pytest.mark.parametrize(("lost", "begin"), [("b", iter), ("d", reversed)])
def test_iterators_that_still_visit_the_right_keys(lost: str, begin: Any) -> None:
    with DummyVecEnv([functools.partial(ChangedDict, lost, begin)]) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        rest = list(envs.envs[0].unwrapped.iterator)
        envs.load_state(state)
        assert list(envs.envs[0].unwrapped.iterator) == rest


@pytest.mark.parametrize(
    ("env_id", "library"),
    [("BipedalWalker-v3", "gymnasium"), ("CarRacing-v3", "gymnasium"), ("LunarLander-v2", "gym")],
)
def test_worlds_of_box2d_that_are_used_again(env_id: str, library: str) -> None:
    for each in ("Box2D", "pygame", library):
        pytest.importorskip(each)
    make = functools.partial(Gym_Env, env_id, library=library)
    assert "its Box2D world is reused across resets" in refusal(make)


def breakout(**how: Any) -> Atari_Env:
    return Atari_Env("Breakout", image_size=84, **how)


def test_games_whose_actions_stick_too_often() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    said = refusal(functools.partial(breakout, repeat_action_probability=0.95))
    assert "at most 0.9 (here 0.95)" in said


def mismatch(make: Callable[[], Any], state: EnvStates) -> StateMismatchError:
    with DummyVecEnv([make]) as envs:
        envs.reset(seed=1)
        with pytest.raises(StateMismatchError) as caught:
            envs.load_state(state)
        envs.step([envs.action_space.sample()])
    return caught.value


def saved(make: Callable[[], Any]) -> EnvStates:
    with DummyVecEnv([make]) as envs:
        envs.reset(seed=1)
        return envs.save_state()


def test_another_rom(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    state = saved(breakout)
    monkeypatch.setattr(ale, "_rom_digest", lambda game: "another")
    found = mismatch(breakout, state)
    assert (found.what, found.here) == ("ROM", "breakout, another")


SIMULATED = {
    "ale_py": breakout,
    "mujoco": functools.partial(gymnasium.make, "HalfCheetah-v5"),
    "Box2D": functools.partial(gymnasium.make, "LunarLander-v3"),
}


@pytest.mark.parametrize("library", SIMULATED)
def test_another_version_of_a_simulator(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip(library)
    pytest.importorskip("cv2")
    state = saved(SIMULATED[library])
    then = module.__version__
    monkeypatch.setattr(module, "__version__", "0.0.1")
    found = mismatch(SIMULATED[library], state)
    assert (found.what, found.saved, found.here) == (f"version of {library}", then, "0.0.1")


def test_a_state_without_the_version_of_box2d_is_a_warning() -> None:
    now = Fingerprint({}, {"Box2D": "2.3.10"})
    warnings = now.check({}, {})
    expected = "the state was saved with Box2D of an unknown version, and this process has 2.3.10"
    assert warnings[-1] == expected


def test_another_version_of_another_library_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    state = saved(Collector)
    monkeypatch.setattr(np, "__version__", "0.0.1")
    with DummyVecEnv([Collector]) as envs:
        envs.reset(seed=1)
        with pytest.warns(UserWarning, match=r"may continue differently.* process has 0\.0\.1"):
            envs.load_state(state)


class Hoarding(Collector):
    def __init__(self) -> None:
        super().__init__()
        self.frames = np.zeros(17 << 20, np.uint8)


def test_a_large_state_is_a_warning() -> None:
    with DummyVecEnv([Hoarding]) as envs:
        envs.reset(seed=1)
        with pytest.warns(RuntimeWarning, match="takes 17 MiB"):
            envs.save_state()
