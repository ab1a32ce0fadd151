"""Every environment that installs here, saved in one backend and loaded in another."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import CALLER_STEPS, DUMMY, Backend
from comparing import assert_same
from example_envs import EchoEnv
from gymnasium import spaces
from stateful_envs import MAKERS

from xuance_envs import Atari_Env, EnvStates, Gym_Env, StateError, SubprocVecEnv

ROOT = Path(__file__).resolve().parents[2]
N, BEFORE, AFTER = 4, 23, 60

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.timeout(600),
]

_BOX = spaces.Box(-1, 1, (2,), np.float32)
SPACES: dict[str, spaces.Space[Any]] = {
    "text": spaces.Text(5),
    "graph": spaces.Graph(_BOX, None),
    "dict": spaces.Dict({"b": _BOX, "a": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.MultiBinary(3), spaces.Dict({"text": spaces.Text(3)}))),
    "sequence": spaces.Sequence(_BOX),
}

REFUSED = {"BipedalWalker", "BipedalWalkerHardcore", "CarRacing"}
SKIPPED = {"GymV21Environment", "GymV26Environment", "phys2d", "tabular"}


def ids_of_gymnasium() -> list[str]:
    """The newest and the oldest version of each that can be made here."""
    versions: dict[str, list[str]] = {}
    for spec in gymnasium.registry.values():
        if spec.namespace is None and not any(name in spec.id for name in SKIPPED):
            versions.setdefault(spec.name, []).append(spec.id)
    found = sorted(id_ for ids in versions.values() for id_ in {min(ids), max(ids)})
    return [id_ for id_ in found if _is_there(id_)]


def _is_there(env_id: str) -> bool:
    try:
        with gymnasium.make(env_id) as env:
            env.reset()
    except Exception:
        return False
    return True


def limited(env_id: str) -> Any:
    """One whose episodes end soon."""
    return gymnasium.make(env_id, max_episode_steps=17)


def game(**how: Any) -> Any:
    return Atari_Env("Breakout", max_num_frames_per_episode=120, **{"image_size": 84, **how})


def raw_game() -> Any:
    gymnasium.register_envs(importlib.import_module("ale_py"))
    return gymnasium.make("ALE/Pong-v5", max_num_frames_per_episode=120)


def with_space(name: str) -> Any:
    return EchoEnv(SPACES[name])


def makers() -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = dict(MAKERS)
    for name in SPACES:
        found[f"space {name}"] = functools.partial(with_space, name)
    if importlib.util.find_spec("ale_py") and importlib.util.find_spec("cv2"):
        found["atari"] = game
        found["atari, memory"] = functools.partial(game, obs_type="ram", image_size=None)
        found["atari, colours"] = functools.partial(game, obs_type="rgb", frame_skip=(2, 5))
        found["atari, ale-py's own"] = raw_game
    if importlib.util.find_spec("gym"):
        for env_id in ("CartPole-v1", "MountainCar-v0", "Pendulum-v1", "FrozenLake-v1"):
            found[f"gym {env_id}"] = functools.partial(
                Gym_Env, env_id, library="gym", max_episode_steps=17
            )
    return found


FOUR = Backend("four workers", SubprocVecEnv, {"context": "forkserver", "in_series": 1})
TWO = Backend("two workers", SubprocVecEnv, {"context": "forkserver", "in_series": 2})
ONE = Backend("one worker", SubprocVecEnv, {"context": "forkserver", "in_series": 4})
WHOLE = [DUMMY, ONE, TWO, FOUR, CALLER_STEPS]


def actions_for(env: Any, steps: int) -> list[list[Any]]:
    space = copy.deepcopy(env.action_space)
    space.seed(3)
    return [[space.sample() for _ in range(N)] for _ in range(steps)]


def played(envs: Any, actions: list[list[Any]]) -> tuple[list[Any], int]:
    found, ends = [], 0
    for each in actions:
        obs, rewards, terminated, truncated, infos = envs.step(each)
        found.append((obs, rewards, terminated, truncated, list(infos), envs.exact_rewards))
        ends += int((terminated | truncated).sum())
    return found, ends


def goes_on(make: Callable[[], Any], saved_in: Backend, loaded_in: Backend) -> int:
    """Raises unless it goes on the same; how many episodes ended meanwhile."""
    fns = [make] * N
    with (
        saved_in.kind(fns, **saved_in.options) as envs,
        loaded_in.kind(fns, **loaded_in.options) as others,
    ):
        envs.reset(seed=1)
        others.reset(seed=50)
        actions = actions_for(envs, BEFORE + AFTER)
        played(envs, actions[:BEFORE])
        played(others, actions[:3])
        state = EnvStates.from_bytes(envs.save_state().to_bytes(), trusted=True)
        expected, ends = played(envs, actions[BEFORE:])
        others.load_state(state)
        assert_same(played(others, actions[BEFORE:])[0], expected)
    return ends


SAMPLE = ["collector", "space text", "space graph", "atari", "gym CartPole-v1"]


@pytest.mark.parametrize("name", [name for name in SAMPLE if name in makers()])
def test_a_sample(name: str) -> None:
    assert goes_on(makers()[name], DUMMY, TWO) >= 3


@pytest.mark.long
@pytest.mark.parametrize("name", makers())
@pytest.mark.parametrize(("saved_in", "loaded_in"), list(itertools.permutations(WHOLE, 2)), ids=str)
def test_the_whole(name: str, saved_in: Backend, loaded_in: Backend) -> None:
    assert goes_on(makers()[name], saved_in, loaded_in) >= 3


@pytest.mark.long
def test_every_id_of_gymnasium() -> None:
    refused = []
    for env_id in ids_of_gymnasium():
        make = functools.partial(limited, env_id)
        try:
            assert goes_on(make, DUMMY, TWO) >= 3, env_id
            goes_on(make, TWO, DUMMY)
        except StateError:
            refused.append(env_id)
    assert {env_id.partition("-")[0] for env_id in refused} <= REFUSED


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in makers() if not name.startswith("space")])
def test_a_fresh_process(name: str, tmp_path: Path) -> None:
    fns = [makers()[name]] * N
    path = tmp_path / "state.xenvs"
    with DUMMY.kind(fns) as envs:
        envs.reset(seed=1)
        actions = actions_for(envs, BEFORE + AFTER)
        played(envs, actions[:BEFORE])
        envs.save_state().save(path)
        expected = [np.sum(step[1]) for step in played(envs, actions[BEFORE:])[0]]
    script = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "import importlib.util as u\n"
        "s = u.spec_from_file_location('matrix', sys.argv[3]); m = u.module_from_spec(s)\n"
        "sys.modules['matrix'] = m; s.loader.exec_module(m)\n"
        "from xuance_envs import EnvStates\nimport numpy as np\n"
        "with m.DUMMY.kind([m.makers()[sys.argv[5]]] * m.N) as envs:\n"
        "    envs.reset(seed=7)\n"
        "    envs.load_state(EnvStates.load(sys.argv[4], trusted=True))\n"
        "    actions = m.actions_for(envs, m.BEFORE + m.AFTER)[m.BEFORE:]\n"
        "    print([np.sum(step[1]).item().hex() for step in m.played(envs, actions)[0]])\n"
    )
    where = [str(ROOT), str(ROOT / "tests" / "shared"), __file__, str(path), name]
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *where],
        env=dict(os.environ),
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    ).stdout
    assert printed.strip().splitlines()[-1] == repr([value.item().hex() for value in expected])
