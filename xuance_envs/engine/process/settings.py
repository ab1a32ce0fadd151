"""Startup arguments of a worker process. Import nothing heavy here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xuance_envs.engine.system.current import system


class PassedFd:
    """File descriptor that is duplicated when it is pickled for a new process."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _receive_fd, (system.pass_descriptor(self.fd),)


def _receive_fd(passed: Any) -> PassedFd:
    return PassedFd(passed.detach())


@dataclass(frozen=True)
class CommonSettings:
    """Counters and codes of the common wake-up."""

    counters: tuple[PassedFd, ...]
    workers: int
    start: int


@dataclass(frozen=True)
class WorkerArguments:
    requests: PassedFd
    replies: PassedFd
    memory: PassedFd
    reserved: int
    index: int
    threads: int | None
    spin: float
    guarded: bool = False
    common: CommonSettings | None = None
    env_fns: Sequence[Callable[..., Any]] | None = None
