"""The contract suite's environments behind HTTP: a server that makes what a test has functions for.

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

_OWN_CLASS = "an exception of a class of somebody's own stays with the server: its text arrives"
_INFOS = "infos are numbers of up to 64 bits, strings, and collections and arrays of them"

BEYOND_THE_WIRE = {
    ("test_so_it_has_from_workers_that_were_spawned", None): _OWN_CLASS,
    ("test_an_exception_of_an_own_class_keeps_its_class_and_state", None): _OWN_CLASS,
    ("test_an_exception_in_the_constructor_names_the_environment", None): _OWN_CLASS,
    ("test_an_info_arrives_as_the_environment_gave_it", "numpy floats"): _INFOS,
    ("test_an_info_arrives_as_the_environment_gave_it", "other numpy scalars"): _INFOS,
    ("test_an_info_arrives_as_the_environment_gave_it", "arrays"): _INFOS,
    ("test_an_info_arrives_as_the_environment_gave_it", "sorts of int"): _INFOS,
    ("test_the_info_of_a_reset_arrives_as_the_environment_gave_it", "arrays"): _INFOS,
    ("test_reset_info_is_the_info_of_the_automatic_reset", "arrays"): _INFOS,
    ("test_set_attr_of_a_new_attribute_sets_it_on_the_environment_itself", None): (
        "what is read of an environment is a value, and not the environment itself"
    ),
    ("test_a_step_that_is_replaced_is_the_one_that_is_called", None): "functions do not travel",
    ("test_a_space_gymnasium_does_not_know_is_held_as_objects", None): (
        "both sides have to know a space"
    ),
}
"""What the wire cannot carry: tests of the contract, some with a case, and why not."""


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
