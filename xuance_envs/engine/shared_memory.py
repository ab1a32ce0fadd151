"""Anonymous memory that processes share by a descriptor, and that vanishes with them."""

from __future__ import annotations

import mmap
import os
import tempfile

__all__ = ["SharedMemory"]


class SharedMemory:
    """A file without a name, whose size may be set after other processes got its descriptor.

    Args:
        fd: the descriptor another process passed; None makes a new file.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _anonymous_file() if fd is None else fd

    def resize(self, nbytes: int) -> None:
        """Gives the file its size and reserves the memory, so that using it cannot fail.

        Raises:
            MemoryError: there is not enough; says how much is needed.
        """
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.fd, 0, nbytes)
            else:
                os.ftruncate(self.fd, nbytes)
        except OSError as error:
            raise MemoryError(
                f"the arrays shared with the workers need {nbytes:,} bytes of shared memory, "
                f"which are not to be had: {error.strerror}. Fewer environments, or smaller "
                "observations, need less"
            ) from error

    def map(self) -> mmap.mmap:
        """Maps the whole file; the map stays valid when the descriptor is closed."""
        return mmap.mmap(self.fd, os.fstat(self.fd).st_size)

    def close(self) -> None:
        """Closes the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _anonymous_file() -> int:
    try:
        return os.memfd_create("xuance_envs")
    except (AttributeError, OSError):  # not Linux, or not let
        pass
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
