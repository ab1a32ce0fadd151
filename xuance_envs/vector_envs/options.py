"""Options of vectorized environments, as ``TypedDict`` classes.

Constructors annotate ``**options`` with them, so that type checkers check names and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

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


class ThreadOptions(SplitOptions, total=False):
    """Options of threads."""

    caller_steps: bool


class ThreadArguments(ThreadOptions, total=False):
    """Options of threads, and the process options for which threads accept only one value."""

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
