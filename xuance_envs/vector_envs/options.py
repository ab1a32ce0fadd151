"""Options of vectorized environments: ``TypedDict`` classes, and errors for unknown options.

Constructors annotate ``**options`` with the classes, so that type checkers check names and values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypedDict

from xuance_envs.errors import EnvError

__all__ = ["BackendOptions"]

InSeries = int | Literal["auto"]
StartMethod = Literal["spawn", "forkserver", "fork"]
ActorLayout = Literal["auto", "machine", "core"]
AutoBool = bool | Literal["auto"]
VectorContext = Literal[StartMethod, "thread"]
BackendName = Literal["auto", "dummy", "thread", "subproc", "ray"]


class VecEnvOptions(TypedDict, total=False):
    """Options of every vec env of this package."""

    copy: bool
    check_actions: bool
    info_bytes: int


class DummyOptions(VecEnvOptions, total=False):
    """Options of ``DummyVecEnv``."""

    record_failures: str | Path | None


class SplitOptions(TypedDict, total=False):
    """Options of workers of any kind, in other processes or in threads."""

    num_workers: int | None
    envs_per_worker: int | None
    step_timeout: float | None
    start_timeout: float | None
    info_bytes: int


class ThreadArguments(SplitOptions, total=False):
    """Options of threads, and the process options for which threads accept only one value."""

    caller_steps: bool
    on_worker_failure: Literal["raise"]
    worker_threads: None


class WorkerOptions(SplitOptions, total=False):
    """Options of workers in other processes."""

    max_restarts: int | None
    restart_on_exception: bool
    worker_threads: int | None


class ProcessOptions(WorkerOptions, total=False):
    """Options of worker processes."""

    caller_steps: bool
    on_worker_failure: Literal["raise", "restart", "resume"]
    pin_workers: bool
    record_failures: str | Path | None


class RayPlacement(TypedDict, total=False):
    """Placement options of Ray actors."""

    actors: ActorLayout
    resources: Mapping[str, float] | None
    runtime_env: Mapping[str, Any] | None
    scheduling_strategy: Any
    address: str | None


class RayActorOptions(WorkerOptions, RayPlacement, total=False):
    """Options of Ray actors, without ``num_cpus_per_worker``."""

    on_worker_failure: Literal["raise", "restart"]


class RayOptions(RayActorOptions, total=False):
    """Options of Ray actors."""

    num_cpus_per_worker: float


class SubprocOptions(ProcessOptions, VecEnvOptions, total=False):
    """Options that are keyword-only in ``SubprocVecEnv`` and ``SubprocVecEnv_Gym``."""


class SubprocBackendOptions(SubprocOptions, total=False):
    """Options of ``SubprocVecEnv``."""

    context: StartMethod
    in_series: InSeries


class RecordOptions(ProcessOptions, RayPlacement, total=False):
    """Backend options that ``MultiAgentVecEnv`` passes on."""

    copy: bool
    context: StartMethod
    in_series: InSeries
    num_cpus_per_worker: float


class BackendOptions(RecordOptions, total=False):
    """Options of the backends of :func:`~xuance_envs.making.make_vec`, as a ``TypedDict``.

    It is the type of ``vector_kwargs``. The classes of the backends document the keys.

    Example:
        >>> from xuance_envs import BackendOptions, make_vec
        >>> options: BackendOptions = {"in_series": 2, "on_worker_failure": "restart"}
        >>> with make_vec("CartPole-v1", 4, vector_kwargs=options) as envs:
        ...     envs.autotuned.choice.backend
        'subproc'
    """

    check_actions: bool


_OF_WORKERS = frozenset({"in_series", *VecEnvOptions.__annotations__})

# Names of the options, by backend.
OPTIONS_OF: dict[str, frozenset[str]] = {
    "dummy": frozenset(DummyOptions.__annotations__),
    "thread": _OF_WORKERS.union(ThreadArguments.__annotations__)
    - {"on_worker_failure", "worker_threads"},
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
    """Return a hint at the name that was probably meant, for the end of an error message."""
    if name in {"num_envs", "n_envs"} and "env_fns" in names:
        return "; env_fns has one function per environment: [make_env] * num_envs"
    here = OTHER_LIBRARIES_NAMES.get(name)
    close = [here] if here in names else get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
