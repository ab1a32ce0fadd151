"""Substitutes, on other systems, for calls that only Linux has."""

from __future__ import annotations

from typing import Any

HAS_GUARDIANS = False
LIMITS_MEMORY = False


def count_threads(process: int | str = "self") -> int:
    return 0


def _no_result(*_: object) -> Any:
    return None


cpu_affinity = set_cpu_affinity = current_cpu_function = open_counters = reopen = _no_result
end_natively_after_main = kill_first_without_memory = available_memory = _no_result
