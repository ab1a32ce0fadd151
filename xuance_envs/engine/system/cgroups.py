"""Resource limits from the control groups of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def control_groups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield the version and folder of each control group that may limit this process."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
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
                yield version, folder


def limits(controller: str, read: dict[int, Callable[[Path], float | None]]) -> list[float]:
    """Return all limits that ``read[version]`` finds in the folders of the control groups."""
    found = []
    for version, folder in control_groups(controller):
        try:
            limit = read[version](folder)
        except (OSError, ValueError):
            continue
        if limit is not None:
            found.append(limit)
    return found
