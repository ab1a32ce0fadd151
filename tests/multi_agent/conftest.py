"""What the tests of many agents share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from backends import hosted

from xuance_envs import MultiAgentVecEnv
from xuance_envs.multi_agent.adapters import agents_env

BACKENDS: dict[str, dict[str, Any]] = {
    "dummy": {"backend": "dummy"},
    "subproc": {"backend": "subproc", "context": "forkserver", "in_series": 2},
    "caller-steps": {
        "backend": "subproc",
        "context": "forkserver",
        "in_series": 2,
        "caller_steps": True,
    },
}


FAR = pytest.mark.far("everywhere")
Maker = Callable[..., MultiAgentVecEnv]


def remote(
    env_fns: Iterable[Callable[..., Any]],
    env_seed: int | None = None,
    *,
    groups: Any = None,
    state: Any = "auto",
    action_masks: Any = "auto",
    check_actions: bool = False,
    **options: Any,
) -> MultiAgentVecEnv:
    """The environments on a server."""
    functions = [partial(agents_env, fn, groups, state, action_masks) for fn in env_fns]
    vec_env = hosted().remote_vec_env(functions, env_seed, **options)
    return MultiAgentVecEnv.of(vec_env, action_masks=action_masks, check_actions=check_actions)


MAKERS: dict[str, Maker] = {
    **{name: partial(MultiAgentVecEnv, **options) for name, options in BACKENDS.items()},
    "remote": remote,
}


def rows(*names: str) -> list[Any]:
    """Return a fixture's parameters; caller-steps and remote are for tests marked everywhere."""
    near = ("dummy", "subproc")
    return [
        pytest.param(MAKERS[name], id=name, marks=() if name in near else FAR) for name in names
    ]


def _maker(kind: Maker) -> Iterator[Maker]:
    made = []

    def make(env_fns: Any, *args: Any, **given: Any) -> MultiAgentVecEnv:
        envs = kind(env_fns, *args, **given)
        made.append(envs)
        return envs

    yield make
    for envs in made:
        envs.close()


@pytest.fixture(params=rows(*MAKERS))
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Makes many agents' environments on each backend that starts in an instant."""
    yield from _maker(request.param)


@pytest.fixture(params=rows(*BACKENDS))
def make_near(request: pytest.FixtureRequest) -> Iterator[Maker]:
    """Makes them on each of this machine: for what a server keeps to itself."""
    yield from _maker(request.param)


@pytest.fixture
def make_here() -> Iterator[Maker]:
    """Makes them in this process: for what is the same wherever they are."""
    yield from _maker(MAKERS["dummy"])
