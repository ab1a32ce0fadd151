"""Checks for leaked resources: descriptors, threads, processes and shared memory."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MAPS = Path("/proc/self/maps")
DESCRIPTORS = "/proc/self/fd" if MAPS.exists() else "/dev/fd"


def held() -> dict[str, int]:
    """Count this process's descriptors, threads, children and shared memories."""
    descriptors = os.listdir(DESCRIPTORS)
    links = []
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"{DESCRIPTORS}/{descriptor}"))
    return {
        "descriptors": len(descriptors),
        "memories": sum("memfd:xuance_envs" in link for link in links),
        "maps": count_maps(),
        "threads": threading.active_count(),
        "children": len(multiprocessing.active_children()),
    }


def count_maps() -> int:
    """Count this process's maps of shared memory; 0 if the system does not list them."""
    return MAPS.read_text().count("memfd:xuance_envs") if MAPS.exists() else 0


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Raise if the block leaves more resources than before it."""
    gc.collect()
    gc.freeze()  # otherwise the second collection would traverse all imported libraries
    before = held()
    yield
    gc.collect()
    assert wait_until(lambda: has_no_new_resources(held(), before)), (
        f"{held()}, and {before} before"
    )


def has_no_new_resources(now: dict[str, int], before: dict[str, int]) -> bool:
    return all(now[name] <= before[name] for name in before)


def wait_until(done: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait until a condition is true; return False at the deadline."""
    deadline = time.monotonic() + seconds
    while not (is_so := done()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so


def is_running(pid: int) -> bool:
    """Return whether a process is running; zombies are not, once all their threads have ended."""
    try:
        if MAPS.exists():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            state, threads = fields[0], int(fields[17])
            return state != "Z" or threads > 1
        os.kill(pid, 0)
    except OSError:
        return False
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return not state.startswith("Z")
