"""States that are lent to worker processes in the memory that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xuance_envs.engine.driver import Lender
from xuance_envs.engine.process.shared_memory import SharedMemory, SharedPart

__all__ = ["LARGE", "UNCHECKED", "MemoryLender"]

LARGE = 1 << 16
"""States of more bytes for one group, or from one, are lent. So many a pipe holds on Linux: more go
through it in turns, for which two processes wait for each other."""

UNCHECKED = 1 << 24
"""Up to so many bytes are lent without a look at how much memory there is, which takes as long as
copying one or two of these MiB."""

_STATES = (
    "the states that environments are cloned from, saved in or loaded from need {:,} bytes of "
    "shared memory, {}. Fewer at a time need less"
)


class MemoryLender(Lender):
    """Lends worker processes parts of their memory.

    A part goes back to the system as soon as it is taken back, and with the memory at the latest,
    which vanishes with the processes.

    Args:
        memory: what they share.
    """

    most = LARGE

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._starts: list[int] = []
        # By its identity, a state that has been lent, and where it is.
        self._lent: dict[int, tuple[bytes, SharedPart]] = {}

    def lends(self, states: Sequence[bytes | SharedPart]) -> bool:
        """See :class:`~xuance_envs.engine.driver.Lender`."""
        nbytes = 0
        for state in states:
            if isinstance(state, SharedPart):
                return True
            nbytes += len(state)
        return nbytes > LARGE

    def lend(self, states: Sequence[bytes | SharedPart]) -> list[SharedPart]:
        """See :class:`~xuance_envs.engine.driver.Lender`; each is written there once."""
        new = [s for s in states if isinstance(s, bytes) and id(s) not in self._lent]
        for state, part in zip(new, self.lend_room([len(state) for state in new]), strict=True):
            part.write(state)
            self._lent[id(state)] = state, part
        return [s if isinstance(s, SharedPart) else self._lent[id(s)][1] for s in states]

    def lend_room(self, sizes: Sequence[int]) -> list[SharedPart]:
        """See :class:`~xuance_envs.engine.driver.Lender`."""
        parts: list[SharedPart] = []
        if sizes:
            start = self._memory.extend(sum(sizes), _STATES, UNCHECKED)
            self._starts.append(start)
            for size in sizes:
                parts.append(SharedPart(self._memory.fd, start, size))
                start += size
        return parts

    def read(self, state: Any) -> bytes:
        """See :class:`~xuance_envs.engine.driver.Lender`."""
        return state.read() if isinstance(state, SharedPart) else bytes(state)

    def take_back(self) -> None:
        """See :class:`~xuance_envs.engine.driver.Lender`."""
        self._lent = {}
        while self._starts:
            self._memory.remove(self._starts[-1])
            self._starts.pop()
