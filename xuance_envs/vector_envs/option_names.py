"""The names of options, by backend, and errors for unknown and misplaced ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from xuance_envs.errors import EnvError
from xuance_envs.vector_envs.options import (
    BackendOptions,
    DummyOptions,
    RayOptions,
    SubprocBackendOptions,
    ThreadOptions,
    VecEnvOptions,
)

_OF_WORKERS = frozenset({"in_series", *VecEnvOptions.__annotations__})

# Names of the options, by backend.
OPTIONS_OF: dict[str, frozenset[str]] = {
    "dummy": frozenset(DummyOptions.__annotations__),
    "thread": _OF_WORKERS.union(ThreadOptions.__annotations__),
    "subproc": frozenset(SubprocBackendOptions.__annotations__),
    "ray": _OF_WORKERS.union(RayOptions.__annotations__),
}

SPLIT_OPTIONS = ("in_series", "num_workers", "envs_per_worker")

# Names of options and backends in other libraries, and the names here.
OTHER_LIBRARIES_NAMES = {
    "async": "subproc",
    "multiprocessing": "subproc",
    "process": "subproc",
    "processes": "subproc",
    "sync": "dummy",
    "n_workers": "num_workers",
    "num_threads": "num_workers",
    "num_processes": "num_workers",
    "start_method": "context",
    "timeout": "step_timeout",
}


def backends_with(options: Mapping[str, Any], with_threads: bool = False) -> list[str]:
    """Return the backends that have all these options; include threads only if requested."""
    for name in options:
        if name not in BackendOptions.__annotations__:
            raise TypeError(
                f"unknown option {name!r} of a vectorized environment"
                + did_you_mean(name, BackendOptions.__annotations__)
            )
    found = [backend for backend, names in OPTIONS_OF.items() if names.issuperset(options)]
    if not found:
        having = ", ".join(
            f"{name} ({', '.join(b for b, names in OPTIONS_OF.items() if name in names)})"
            for name in options
        )
        raise ValueError(f"no backend has all of these options together: {having}")
    return [name for name in found if with_threads or name != "thread"]


@contextmanager
def naming_misplaced_options(env_kwargs: Mapping[str, Any]) -> Iterator[None]:
    """If an environment rejects an option of its backend, raise an error that names the option."""
    try:
        yield
    except (EnvError, TypeError) as error:
        misplaced = {
            name: value
            for name, value in env_kwargs.items()
            if name in BackendOptions.__annotations__ and f"argument '{name}'" in str(error)
        }
        if not misplaced:
            raise
        raise TypeError(
            f"{', '.join(misplaced)}: the environment has no such argument; to pass it to the "
            f"vectorized environment, use vector_kwargs={misplaced!r}"
        ) from error


def did_you_mean(name: str, names: Collection[str]) -> str:
    if name in {"num_envs", "n_envs"} and "env_fns" in names:
        return "; env_fns has one function per environment: [make_env] * num_envs"
    here = OTHER_LIBRARIES_NAMES.get(name)
    close = [here] if here in names else get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
