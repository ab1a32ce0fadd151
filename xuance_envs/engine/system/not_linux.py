"""Substitutes for calls that only Linux has."""

from __future__ import annotations

from typing import Any

HAS_GUARDIANS = False
LIMITS_MEMORY = False


def count_threads(process: int | str = "self") -> int:
    return 0


def no_result(*_: object) -> Any:
    return None


def refuse(*_: object) -> Any:
    raise NotImplementedError("this operation is not available on this operating system")


cpu_affinity = set_cpu_affinity = current_cpu_function = open_counters = reopen = no_result
end_natively_after_main = kill_first_without_memory = available_memory = no_result
become_guardian = watch_together = limit_memory = refuse
