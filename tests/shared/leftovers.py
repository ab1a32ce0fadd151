"""What a vector environment may leave behind: descriptors, threads, processes."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def held() -> dict[str, int]:
    """Of this process: descriptors, threads and children; and shared memory without a name."""
    descriptors = os.listdir("/proc/self/fd")
    links = []
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {
        "descriptors": len(descriptors),
        "memories": sum("memfd:xuance_envs" in link for link in links),
        "maps": Path("/proc/self/maps").read_text().count("memfd:xuance_envs"),
        "threads": threading.active_count(),
        "children": len(multiprocessing.active_children()),
    }


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Fails if more is held after the block than before it."""
    gc.collect()
    gc.freeze()  # or the second time would go through all libraries that have been loaded, too
    before = held()
    yield
    gc.collect()
    assert wait_until(lambda: has_no_new_resources(held(), before)), (
        f"{held()}, and {before} before"
    )


def has_no_new_resources(now: dict[str, int], before: dict[str, int]) -> bool:
    return all(now[name] <= before[name] for name in before)


def wait_until(done: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something is so before the time is over."""
    deadline = time.monotonic() + seconds
    while not (is_so := done()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so


def is_running(pid: int) -> bool:
    """Whether a process lives; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
