"""Checked options of workers, with their default values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.recovery import RestartPolicy
from xuance_envs.errors import counted
from xuance_envs.vector_envs.arguments import (
    checked_count,
    checked_number,
    checked_timeout,
    is_int,
)
from xuance_envs.vector_envs.options import SPLIT_OPTIONS, ActorLayout, InSeries, StartMethod


@dataclass(kw_only=True)
class WorkerSettings:
    in_series: InSeries = "auto"
    num_workers: int | None = None
    envs_per_worker: int | None = None
    step_timeout: float | None = None
    start_timeout: float | None = 120.0
    on_worker_failure: Literal["raise", "restart", "resume"] = "raise"
    max_restarts: int | None = 100
    restart_on_exception: bool = False
    worker_threads: int | None = 1
    info_bytes: int = INFO_BYTES

    failure_modes: ClassVar[tuple[str, ...]] = ("raise", "restart", "resume")

    def __post_init__(self) -> None:
        self.step_timeout = checked_timeout("step_timeout", self.step_timeout)
        self.start_timeout = checked_timeout("start_timeout", self.start_timeout)
        if self.worker_threads is not None and not is_count(self.worker_threads):
            expected = "None or an int of at least 1"
            raise ValueError(f"worker_threads: expected {expected}, got {self.worker_threads!r}")
        self.info_bytes = checked_count("info_bytes", self.info_bytes, 0)
        check_choice("on_worker_failure", self.on_worker_failure, self.failure_modes)
        if self.max_restarts is not None:
            self.max_restarts = checked_count("max_restarts", self.max_restarts, 0)
        if self.restart_on_exception and self.on_worker_failure == "raise":
            modes = " or ".join(map(repr, self.failure_modes[1:]))
            raise ValueError(
                f"on_worker_failure: expected {modes} with restart_on_exception=True, got 'raise'"
            )
        values, defaults = vars(self), vars(WorkerSettings)
        given = {k: values[k] for k in SPLIT_OPTIONS if values[k] != defaults[k]}
        if len(given) > 1:
            got = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ValueError(f"expected at most one of {', '.join(SPLIT_OPTIONS)}, got {got}")
        self.is_split_automatically = not given

    @property
    def restarts(self) -> RestartPolicy | None:
        """Settings of worker restarts; None if worker failures raise."""
        if self.on_worker_failure == "raise":
            return None
        resumes = self.on_worker_failure == "resume"
        return RestartPolicy(self.max_restarts, self.restart_on_exception, resumes)

    def split(self, num_envs: int, cpus: int, own_share: bool = False) -> list[tuple[int, int]]:
        """Split the environments by worker; the last range may be this process's own share."""
        if self.num_workers is not None:
            most = num_envs - own_share
            if not is_count(self.num_workers) or self.num_workers > most:
                why = " with caller_steps=True, since the main process steps at least one"
                own = why if own_share else ""
                expected = {0: "None", 1: "1"}.get(most, f"an int from 1 to {most}")
                raise ValueError(
                    f"num_workers: expected {expected}, for "
                    f"{counted(num_envs, 'environment')}{own}, got {self.num_workers!r}"
                )
            return split_evenly(num_envs, int(self.num_workers) + own_share)
        if self.is_split_automatically:
            return split_evenly(num_envs, min(num_envs, cpus))
        name = "in_series" if self.envs_per_worker is None else "envs_per_worker"
        size = getattr(self, name)
        if not is_count(size):
            otherwise = "'auto' or " if name == "in_series" else ""
            raise ValueError(f"{name}: expected {otherwise}an int of at least 1, got {size!r}")
        return [(lo, min(lo + int(size), num_envs)) for lo in range(0, num_envs, int(size))]


@dataclass(kw_only=True)
class ProcessSettings(WorkerSettings):
    context: StartMethod = "spawn"
    caller_steps: bool = False
    pin_workers: bool = True
    record_failures: str | Path | None = None


@dataclass(kw_only=True)
class ThreadSettings(WorkerSettings):
    caller_steps: bool = False
    worker_threads: int | None = None

    def __post_init__(self) -> None:
        for name, expected in (("on_worker_failure", "raise"), ("restart_on_exception", False)):
            if (value := getattr(self, name)) != expected:
                raise ValueError(
                    f"{name}: expected {expected!r} for threads, because a thread cannot be "
                    f"killed and restarted, got {value!r}; use SubprocVecEnv"
                )
        if self.worker_threads is not None:
            raise ValueError(
                f"worker_threads: expected None, got {self.worker_threads!r}: all threads share "
                "the library threads of this process; to limit those per worker, use SubprocVecEnv"
            )
        super().__post_init__()


@dataclass(kw_only=True)
class RaySettings(WorkerSettings):
    on_worker_failure: Literal["raise", "restart"] = "raise"
    actors: ActorLayout = "auto"
    num_cpus_per_worker: float = 1.0
    resources: Mapping[str, float] | None = None
    runtime_env: Mapping[str, Any] | None = None
    scheduling_strategy: Any = "SPREAD"
    address: str | None = None

    failure_modes = ("raise", "restart")

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_number(
            "num_cpus_per_worker", self.num_cpus_per_worker, lambda cpus: cpus >= 0, "at least 0"
        )
        check_choice("actors", self.actors, ("auto", "machine", "core"))


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name}: expected {', '.join(others)} or {last}, got {value!r}")


def split_evenly(num_envs: int, count: int) -> list[tuple[int, int]]:
    return list(pairwise(num_envs * k // count for k in range(count + 1)))


def is_count(value: Any) -> bool:
    return is_int(value) and bool(value >= 1)
