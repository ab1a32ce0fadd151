"""Substitutes, on other systems, for calls that only Linux has."""

from __future__ import annotations

from collections.abc import Callable, Collection

HAS_GUARDIANS = False
LIMITS_MEMORY = False


def cpu_affinity(pid: int = 0) -> set[int] | None:
    return None


def set_cpu_affinity(pid: int, cpus: Collection[int]) -> None:
    pass


def current_cpu_function() -> Callable[[], int] | None:
    return None


def open_counters(*semaphores: bool) -> tuple[int, ...] | None:
    return None


def reopen(fd: int) -> int | None:
    return None


def end_natively_after_main() -> None:
    """Do nothing: the kernel sends no signal when another process ends."""


def count_threads(process: int | str = "self") -> int:
    return 0


def kill_first_without_memory() -> None:
    pass


def available_memory() -> int | None:
    return None
