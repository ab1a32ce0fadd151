"""Resource limits from the control groups of this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def limits(controller: str, read: dict[int, Callable[[Path], float | None]]) -> list[float]:
    """Return all limits that ``read[version]`` finds in the folders of the control groups."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, top = 2, _ROOT
        elif controller in controllers.split(","):
            version, top = 1, _ROOT / controllers
        else:
            continue
        # In a container, the root often is this process's group. The path does not exist below it.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == top or top in folder.parents:
                with suppress(OSError, ValueError):
                    found.append(read[version](folder))
    return [limit for limit in found if limit is not None]
