"""Every environment that installs here, saved in one backend and loaded in another."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from backends import CALLER_STEPS, DUMMY, REMOTE, Backend, made
from comparing import assert_same
from saving_matrix import AFTER, BEFORE, N, actions_for, goes_on, limited, makers, played
from warm_python import run_python

from xuance_envs import StateError, SubprocVecEnv

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.timeout(600),
]

REFUSED = {"BipedalWalker", "BipedalWalkerHardcore", "CarRacing"}
SKIPPED = {"GymV21Environment", "GymV26Environment", "phys2d", "tabular"}


def ids_of_gymnasium() -> list[str]:
    """The newest and the oldest version of each of its own that can be made here."""
    versions: dict[str, list[str]] = {}
    for spec in gymnasium.registry.values():
        own = str(spec.entry_point).startswith("gymnasium.")  # others are not known to workers
        if own and spec.namespace is None and not any(name in spec.id for name in SKIPPED):
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


FOUR = Backend("four workers", SubprocVecEnv, {"context": "forkserver", "in_series": 1})
TWO = Backend("two workers", SubprocVecEnv, {"context": "forkserver", "in_series": 2})
ONE = Backend("one worker", SubprocVecEnv, {"context": "forkserver", "in_series": 4})
WHOLE = [DUMMY, ONE, TWO, FOUR, CALLER_STEPS]
NEIGHBORS = [
    pair for k, each in enumerate(WHOLE) for pair in itertools.permutations((WHOLE[k - 1], each))
]
"""Pairs that differ little: each backend saves for two others, and loads what two others saved."""


SAMPLE = ["collector", "space text", "space graph", "atari", "gym CartPole-v1"]


@pytest.mark.parametrize("name", [name for name in SAMPLE if name in makers()])
def test_a_sample(name: str) -> None:
    assert goes_on(makers()[name], DUMMY, TWO) >= 3


@pytest.mark.long
@pytest.mark.parametrize("name", makers())
@pytest.mark.parametrize(("saved_in", "loaded_in"), NEIGHBORS, ids=str)
def test_the_whole(name: str, saved_in: Backend, loaded_in: Backend) -> None:
    assert goes_on(makers()[name], saved_in, loaded_in) >= 3


@pytest.mark.long
@pytest.mark.parametrize("name", makers())
def test_on_a_server(name: str) -> None:
    for make in made(REMOTE):
        envs = make([makers()[name]] * N)
        envs.reset(seed=1)
        actions = actions_for(envs, BEFORE + AFTER)
        played(envs, actions[:BEFORE])
        state = envs.save_state()
        expected, ends = played(envs, actions[BEFORE:])
        assert ends >= 3
        envs.reset(seed=5)
        envs.load_state(state)
        assert_same(played(envs, actions[BEFORE:])[0], expected)


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
        "import saving_matrix as m\n"
        "from xuance_envs import DummyVecEnv, EnvStates\nimport numpy as np\n"
        "with DummyVecEnv([m.makers()[sys.argv[4]]] * m.N) as envs:\n"
        "    envs.reset(seed=7)\n"
        "    envs.load_state(EnvStates.load(sys.argv[3], trusted=True))\n"
        "    actions = m.actions_for(envs, m.BEFORE + m.AFTER)[m.BEFORE:]\n"
        "    print([np.sum(step[1]).item().hex() for step in m.played(envs, actions)[0]])\n"
    )
    where = [str(ROOT), str(ROOT / "tests" / "shared"), str(path), name]
    answer = run_python("-W", "ignore", "-c", script, *where)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip().splitlines()[-1] == repr(
        [value.item().hex() for value in expected]
    )
