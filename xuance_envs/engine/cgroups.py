"""The control groups this process is in, which limit what it may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["control_groups", "limits"]

_MEMBERSHIP = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def control_groups(
    controller: str, membership: Path = _MEMBERSHIP, root: Path = _ROOT
) -> Iterator[tuple[int, Path]]:
    """The folders of the control groups above this process that may limit it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, top = 2, root
        elif controller in controllers.split(","):
            version, top = 1, root / controllers
        else:
            continue
        # A container often sees its own group as the root, so the path may not exist under it.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == top or top in folder.parents:
                yield version, folder


def limits(
    controller: str,
    read: dict[int, Callable[[Path], float | None]],
    membership: Path = _MEMBERSHIP,
    root: Path = _ROOT,
) -> list[float]:
    """What ``read`` makes of each group's folder, by version, where there is a limit."""
    found = []
    for version, folder in control_groups(controller, membership, root):
        try:
            limit = read[version](folder)
        except (OSError, ValueError):
            continue
        if limit is not None:
            found.append(limit)
    return found
