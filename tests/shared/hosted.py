"""The contract suite's environments behind HTTP, on a server that receives a test's functions.

The server is a separate process, which starts with the first test that needs it. Server threads in
the test process would interfere with forks. Functions reach the server through files, everything
else through HTTP.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xuance_envs.engine.serialization import dumps_for_worker, loads
from xuance_envs.remote.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.server import Server
from xuance_envs.remote.settings import Catalogue, Permissions, Settings
from xuance_envs.vector_envs.arguments import checked_recipe

_OWN_CLASS = "the server does not send exceptions of custom classes, only their text"
_INFOS = "infos contain numbers of up to 64 bits, strings, and collections and arrays of these"

BEYOND_THE_WIRE = {
    ("test_so_it_has_from_workers_that_were_spawned", None): _OWN_CLASS,
    ("test_an_exception_in_the_constructor_names_the_environment", None): _OWN_CLASS,
    ("test_an_info_arrives_as_the_environment_gave_it", "numpy floats"): _INFOS,
    ("test_an_info_arrives_as_the_environment_gave_it", "other numpy scalars"): _INFOS,
    ("test_an_info_arrives_as_the_environment_gave_it", "arrays"): _INFOS,
    ("test_an_info_arrives_as_the_environment_gave_it", "sorts of int"): _INFOS,
    **{
        ("test_an_array_arrives_as_the_environment_gave_it", case): _INFOS
        for case in (
            *("another byte order", "dates", "structured", "strings", "complex", "objects"),
            "masked",
        )
    },
    ("test_the_info_of_a_reset_arrives_as_the_environment_gave_it", "arrays"): _INFOS,
    ("test_reset_info_is_the_info_of_the_automatic_reset", "arrays"): _INFOS,
    ("test_set_attr_of_a_new_attribute_sets_it_on_the_environment_itself", None): (
        "the server returns values of attributes, but not the environment itself"
    ),
    ("test_an_environment_that_is_not_alike_is_refused", None): (
        "a server restores only states that the same session saved"
    ),
    ("test_registered_classes_are_known_in_workers", None): (
        "classes are registered in the process of the environments"
    ),
    ("test_any_int_is_a_seed", "1208925819614629174706176"): "seeds have at most 64 bits",
    ("test_a_step_that_is_replaced_is_the_one_that_is_called", None): "functions are not sent",
    ("test_whatever_does_not_fit_in_columns_is_pickled_or_copied_in_that_step_only", None): (
        "the client pickles nothing"
    ),
    ("test_a_space_gymnasium_does_not_know_is_held_as_objects", None): (
        "client and server must support the space"
    ),
}
"""Contract tests that HTTP cannot support, some for one case only, with the reason."""


class FunctionsFromFiles(Catalogue):
    """Catalogue whose environment functions are in the file named by the environment's id."""

    def __init__(self, folder: Path) -> None:
        super().__init__({"first": object})
        self._folder = folder

    def functions(
        self, env_id: str | None, num_envs: int, kwargs: Mapping[str, Any]
    ) -> list[Callable[..., Any]]:
        assert env_id is not None
        return list(loads((self._folder / env_id).read_bytes()))


class AnyName(frozenset[str]):
    """A set that contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


def serve(folder: str) -> None:
    """Run the server in this process."""
    multiprocessing.set_forkserver_preload(["tests.shared.preloaded"])
    catalogue = FunctionsFromFiles(Path(folder))
    names = AnyName()
    permissions = Permissions(names, names, names, names, tracebacks=True, any_action=True)
    settings = Settings(catalogue, permissions=permissions, access_log=False)
    server = Server(settings, port=0)
    print(server.url, flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the test process closes its end of the pipe
    server.run()


class ServerProcess:
    """The server process, and the folder for functions."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = itertools.count()
        path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
        code = f"import sys; sys.path[:0] = {path!r}; import hosted; hosted.serve(sys.argv[1])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, self._folder.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        with self._process.stdout as output:  # closed, since checks for leaks count descriptors
            self.url = output.readline().strip()

    def register(self, functions: list[Callable[..., Any]]) -> str:
        """Store functions; return the id of their environments on the server."""
        env_id = f"test-{next(self._numbers)}"
        (Path(self._folder.name) / env_id).write_bytes(dumps_for_worker(functions))
        return env_id

    def close(self) -> None:
        """Stop the server."""
        self._process.terminate()
        self._process.wait(30)
        self._folder.cleanup()


@cache
def server_process() -> ServerProcess:
    """Return the server of this test run."""
    server = ServerProcess()
    atexit.register(server.close)
    return server


def remote_vec_env(
    env_fns: Iterable[Callable[..., Any]], env_seed: int | None = None, **options: Any
) -> RemoteVecEnv:
    """Return a vectorized environment over HTTP whose environments these functions create."""
    functions = checked_recipe(env_fns, None).env_fns
    server = server_process()
    env_id = server.register(functions)
    return RemoteVecEnv(server.url, env_id, len(functions), seed=env_seed, **options)
