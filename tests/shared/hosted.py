"""The contract suite's environments behind HTTP: a server that makes what a test made functions for.

The functions stay in this process, where the server runs as well; observations, actions, infos and
errors go through HTTP.
"""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server import Server
from xuance_envs.remote.settings import Catalogue, Settings
from xuance_envs.vector_envs.arguments import checked_functions

BEYOND_THE_WIRE: dict[str, str] = {}


class _Functions(Catalogue):
    """Makes environments with whatever functions a test has."""

    def __init__(self) -> None:
        super().__init__({"first": object})
        self._numbers = itertools.count()
        self._given: dict[str, Sequence[Callable[..., Any]]] = {}

    def register(self, functions: Sequence[Callable[..., Any]]) -> str:
        env_id = f"test-{next(self._numbers)}"
        self._given[env_id] = functions
        return env_id

    def functions(
        self, env_id: str | None, num_envs: int, kwargs: Mapping[str, Any]
    ) -> list[Callable[..., Any]]:
        return list(self._given.pop(env_id or ""))


class _AnyName(frozenset[str]):
    """Allows every name to be reached."""

    def __contains__(self, name: object) -> bool:
        return True


@cache
def _server() -> tuple[Server, _Functions]:
    functions = _Functions()
    settings = Settings(functions, allowed_calls=_AnyName(), access_log=False)
    server = Server(settings, port=0)
    server.start()
    atexit.register(server.close)
    return server, functions


def remote_vec_env(
    env_fns: Iterable[Callable[..., Any]], env_seed: int | None = None, **options: Any
) -> RemoteVecEnv:
    """A vector environment over HTTP whose environments these functions make."""
    functions, _ = checked_functions(env_fns, None)
    server, registered = _server()
    env_id = registered.register(functions)
    return RemoteVecEnv(server.url, env_id, len(functions), seed=env_seed, **options)
