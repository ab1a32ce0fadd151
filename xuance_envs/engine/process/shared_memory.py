"""Anonymous shared memory, freed by the system when its processes end."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from xuance_envs.engine.data.memory_layout import round_up
from xuance_envs.engine.system.current import system
from xuance_envs.engine.system.interrupts import deferred_interrupt

ALIGNMENT = 1 << 16  # alignment of parts in bytes: a multiple of every page size
_COPY_BYTES = 1 << 20  # bytes copied between buffers at a time

_ARRAYS_ERROR = (
    "the arrays shared with the workers need {:,} bytes of shared memory, {}. "
    "Use fewer environments or smaller observations"
)


class SharedMemory:
    """Anonymous file in memory, which may grow after other processes received its descriptor."""

    def __init__(self, fd: int | None = None, reserved: int = 0) -> None:
        self.fd = -1  # for close(), if opening fails
        with deferred_interrupt():
            self.fd = fd if fd is not None else system.open_anonymous_file()
        self.reserved = reserved
        self._extra_users = 0
        self._sizes: dict[int, int] = {}  # sizes of the parts, by offset
        self._free: set[int] = set()
        if fd is None:
            try:
                os.ftruncate(self.fd, reserved)
            except OSError as error:
                self.close()
                raise MemoryError(
                    f"starting workers needs {reserved:,} bytes of shared memory, which could not "
                    f"be allocated: {error.strerror}"
                ) from error

    def allocate(
        self,
        nbytes: int,
        taken: list[int],
        error_template: str = _ARRAYS_ERROR,
        unchecked: int = 0,
    ) -> int:
        """Allocate a zeroed part, for which the system has reserved memory; return its offset.

        The offset is in ``taken`` before the part is taken, so that an interrupt does not lose it.
        """
        if fitting := [(self._sizes[at], at) for at in self._free if self._sizes[at] >= nbytes]:
            size, start = min(fitting)
            taken.append(start)
            self._free.remove(start)
            for at in range(start, start + size, ALIGNMENT):
                system.pwrite(self.fd, bytes(min(ALIGNMENT, start + size - at)), at)
            return start
        available = system.available_memory() if nbytes > unchecked else None
        if available is not None and nbytes > available:
            reason = f"but only {available:,} are available"
            raise MemoryError(error_template.format(nbytes, reason))
        end = max([at + size for at, size in self._sizes.items()], default=self.reserved)
        start = round_up(end, ALIGNMENT)
        new = start if self._sizes else 0  # the first call also reserves the initial range
        taken.append(start)
        self._sizes[start] = nbytes
        try:
            system.reserve(self.fd, new, start + nbytes - new)
        except OSError as error:
            del self._sizes[taken.pop()]
            reason = f"which could not be allocated: {error.strerror}"
            raise MemoryError(error_template.format(nbytes, reason)) from error
        return start

    def recycle(self, start: int) -> None:
        """Make an unused part available for reuse."""
        self._free.add(start)

    def free(self, start: int) -> None:
        """Return an unmapped part to the system if it is the last one; else recycle it."""
        if start not in self._sizes:
            return  # freed before an interrupt
        if start == max(self._sizes):
            system.truncate(self.fd, start)
            self._free.discard(start)
            del self._sizes[start]
        else:
            self.recycle(start)

    def map(self, start: int, nbytes: int) -> mmap.mmap:
        """Map a part; the map stays valid when the descriptor is closed."""
        with deferred_interrupt():
            taken = [os.open(os.devnull, os.O_RDWR)]  # the map has its own descriptor, above 2
            while taken[-1] < 2:
                taken.append(os.open(os.devnull, os.O_RDWR))
            try:
                return mmap.mmap(self.fd, nbytes, offset=start)
            finally:
                for fd in taken:
                    os.close(fd)

    def add_user(self) -> None:
        """Register a further user, which must also call :meth:`close`."""
        self._extra_users += 1

    def __del__(self) -> None:
        self._extra_users = 0
        self.close()

    def close(self) -> None:
        """Close the descriptor when called by the last user."""
        if self._extra_users:
            self._extra_users -= 1
        elif self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


@dataclass(frozen=True)
class SharedBuffer:
    fd: int
    start: int
    nbytes: int

    def read(self) -> bytes:
        parts: list[bytes] = []
        at = self.start
        while (remaining := self.start + self.nbytes - at) and (
            read := system.pread(self.fd, remaining, at)
        ):
            parts.append(read)
            at += len(read)
        return b"".join(parts)  # not a copy if there is only one

    def write(self, data: bytes) -> None:
        """Overwrite the buffer with data of the same size."""
        rest, written = memoryview(data), 0
        while written < len(rest):
            written += system.pwrite(self.fd, rest[written:], self.start + written)

    def copy_from(self, other: SharedBuffer) -> None:
        """Copy another buffer of the same size, in pieces."""
        for at in range(0, self.nbytes, _COPY_BYTES):
            size = min(_COPY_BYTES, self.nbytes - at)
            piece = SharedBuffer(other.fd, other.start + at, size).read()
            SharedBuffer(self.fd, self.start + at, size).write(piece)


_PART = struct.Struct("<qq")


def pack_buffers(parts: Iterable[SharedBuffer]) -> bytes:
    """Serialize the positions of buffers for a process that shares the memory."""
    return b"".join(_PART.pack(part.start, part.nbytes) for part in parts)


def unpack_buffers(fd: int, packed: bytes) -> list[SharedBuffer]:
    """Return the buffers; ``fd`` is this process's descriptor of the shared memory."""
    return [SharedBuffer(fd, start, nbytes) for start, nbytes in _PART.iter_unpack(packed)]
