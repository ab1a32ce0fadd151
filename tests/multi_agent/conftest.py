"""What the tests of many agents share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from backends import quick_forkserver

from xuance_envs import MultiAgentVecEnv

__all__ = ["quick_forkserver"]

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


def _maker(options: dict[str, Any]) -> Iterator[Callable[..., MultiAgentVecEnv]]:
    made = []

    def make(env_fns: Any, *args: Any, **given: Any) -> MultiAgentVecEnv:
        envs = MultiAgentVecEnv(env_fns, *args, **{**options, **given})
        made.append(envs)
        return envs

    yield make
    for envs in made:
        envs.close()


@pytest.fixture(params=BACKENDS.values(), ids=list(BACKENDS))
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., MultiAgentVecEnv]]:
    """Makes many agents' environments on each backend that starts in an instant."""
    yield from _maker(request.param)


@pytest.fixture
def make_here() -> Iterator[Callable[..., MultiAgentVecEnv]]:
    """Makes them in this process: for what is the same wherever they are."""
    yield from _maker(BACKENDS["dummy"])
