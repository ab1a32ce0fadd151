"""Anonymous memory that processes share by a descriptor, and that vanishes with them."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from xuance_envs.engine.cgroups import limits

__all__ = [
    "ALIGNMENT",
    "SharedBuffer",
    "SharedMemory",
    "available_memory",
    "make_private_in_forks",
    "pack_buffers",
    "unpack_buffers",
]

ALIGNMENT = 1 << 16
"""Bytes whose multiples are where parts begin: a multiple of any page's size."""

_MAP_FIXED = 0x10

_ARRAYS_ERROR = (
    "the arrays shared with the workers need {:,} bytes of shared memory, {}. "
    "Fewer environments, or smaller observations, need less"
)


class SharedMemory:
    """A file without a name, which may grow after other processes got its descriptor."""

    def __init__(self, fd: int | None = None, reserved: int = 0) -> None:
        self.fd = -1  # there is none to close, if there will be none
        self.fd = fd if fd is not None else _anonymous_file()
        self.reserved = reserved
        self._extra_users = 0
        self._sizes: dict[int, int] = {}  # of the parts, by where they begin
        self._free: set[int] = set()
        if fd is None:
            try:
                os.ftruncate(self.fd, reserved)
            except OSError as error:
                self.close()
                raise MemoryError(
                    f"{reserved:,} bytes of shared memory are needed for a start, which are not "
                    f"to be had: {error.strerror}"
                ) from error

    def allocate(self, nbytes: int, error_template: str = _ARRAYS_ERROR, unchecked: int = 0) -> int:
        """Adds a part of a size, zeros, and reserves it, so that using it cannot fail."""
        if fitting := [(self._sizes[at], at) for at in self._free if self._sizes[at] >= nbytes]:
            size, at = min(fitting)
            self._free.remove(at)
            return self._zero(at, size)
        available = available_memory() if nbytes > unchecked else None
        if available is not None and nbytes > available:
            raise MemoryError(error_template.format(nbytes, f"and {available:,} are available"))
        # Not the end of the file: an interrupt may have come before a part was noted.
        end = max([at + size for at, size in self._sizes.items()], default=self.reserved)
        start = -(-end // ALIGNMENT) * ALIGNMENT
        new = start if self._sizes else 0  # what it began with has not been reserved before
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, new, start + nbytes - new)
            else:
                os.ftruncate(self.fd, start + nbytes)
        except OSError as error:
            reason = f"which are not to be had: {error.strerror}"
            raise MemoryError(error_template.format(nbytes, reason)) from error
        self._sizes[start] = nbytes
        return start

    def recycle(self, start: int) -> None:
        """Leaves a part that nobody uses any more to who wants one."""
        self._free.add(start)

    def free(self, start: int) -> None:
        """Gives a part back that nobody has mapped, to the system unless others came behind it."""
        if start not in self._sizes:
            return  # an interrupt came when it had gone
        if start == max(self._sizes):
            os.ftruncate(self.fd, start)
            del self._sizes[start]
        else:
            self.recycle(start)

    def _zero(self, start: int, nbytes: int) -> int:
        for at in range(start, start + nbytes, ALIGNMENT):
            os.pwrite(self.fd, bytes(min(ALIGNMENT, start + nbytes - at)), at)
        return start

    def map(self, start: int, nbytes: int) -> mmap.mmap:
        """Maps a part; the map stays valid when the descriptor is closed."""
        return mmap.mmap(self.fd, nbytes, offset=start)

    def add_user(self) -> None:
        """Takes note of one more that uses it, and closes it in turn."""
        self._extra_users += 1

    def __del__(self) -> None:
        self._extra_users = 0
        self.close()

    def close(self) -> None:
        """Closes the descriptor, unless others share it."""
        if self._extra_users:
            self._extra_users -= 1
        elif self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


@dataclass(frozen=True)
class SharedBuffer:
    """Bytes in the memory that processes share."""

    fd: int
    start: int
    nbytes: int

    def read(self) -> bytes:
        """A copy of them."""
        parts: list[bytes] = []
        at = self.start
        while (left := self.start + self.nbytes - at) and (read := os.pread(self.fd, left, at)):
            parts.append(read)
            at += len(read)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, data: bytes) -> None:
        """Puts others there: as many."""
        rest, written = memoryview(data), 0
        while written < len(rest):
            written += os.pwrite(self.fd, rest[written:], self.start + written)


_PART = struct.Struct("<qq")


def pack_buffers(parts: Iterable[SharedBuffer]) -> bytes:
    """Where parts are, for another process that has the memory."""
    return b"".join(_PART.pack(part.start, part.nbytes) for part in parts)


def unpack_buffers(fd: int, packed: bytes) -> list[SharedBuffer]:
    """The parts, given this process's descriptor of the memory."""
    return [SharedBuffer(fd, start, nbytes) for start, nbytes in _PART.iter_unpack(packed)]


def make_private_in_forks(memory: mmap.mmap, fd: int, offset: int) -> None:
    """Lets a process that is forked from this one write to a copy of a map, and not to the map."""
    private = ctypes.CDLL(None).mmap
    private.restype = ctypes.c_void_p
    private.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    where = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory)
    how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    shared = [weakref.ref(memory)]

    def remap_private() -> None:
        if shared and shared.pop()() is not None:  # else its place is somebody else's
            private(*where, *how, fd, offset)

    os.register_at_fork(after_in_child=remap_private)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes this process can still be given, None where the system does not say.

    The smaller of what the machine has and what the control groups of this process allow: the
    kernel ends a process that uses more than it has.
    """
    available = limits("memory", {1: _left_v1, 2: _left_v2})
    try:
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                available.append(int(value.split()[0]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    return int(min(available)) if available else None


def _left_v2(folder: Path) -> float | None:
    limit = (folder / "memory.max").read_text().strip()
    if limit == "max":
        return None
    used = int((folder / "memory.current").read_text())
    return int(limit) - used + _reclaimable(folder, "inactive_file")


def _left_v1(folder: Path) -> float:
    limit = int((folder / "memory.limit_in_bytes").read_text())
    used = int((folder / "memory.usage_in_bytes").read_text())
    return limit - used + _reclaimable(folder, "total_inactive_file")


def _reclaimable(folder: Path, name: str) -> int:
    """Bytes a group holds of files that the kernel drops when memory is needed."""
    for line in (folder / "memory.stat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _anonymous_file() -> int:
    """A file without a name, whose descriptor is not one of the standard ones."""
    try:
        fd = os.memfd_create("xuance_envs")
    except (AttributeError, OSError):  # not Linux, or not let
        with tempfile.TemporaryFile() as file:
            return _above_stdio(os.dup(file.fileno()))
    return _above_stdio(fd)


def _above_stdio(fd: int) -> int:
    if fd > 2:
        return fd
    import fcntl  # which not every system has, that this module is imported on

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)
