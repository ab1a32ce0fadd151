"""Transfer of states through the workers' shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.group.protocol import StateTransfer
from xuance_envs.engine.process.shared_memory import SharedBuffer, SharedMemory

# Bytes above which a group's states are sent through shared memory: the capacity of a pipe on
# Linux. With larger messages, the processes wait for each other.
TRANSFER_THRESHOLD = 1 << 16

# Bytes up to which available memory is not checked: a check takes as long as copying a MiB or two.
UNCHECKED_BYTES = 1 << 24

_STATES_ERROR = (
    "environment states in transfer need {:,} bytes of shared memory, {}. "
    "Save, load or clone fewer environments per call"
)


class SharedMemoryTransfer(StateTransfer):
    max_inline_bytes = TRANSFER_THRESHOLD

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._starts: list[int] = []
        # Exported states and their buffers, by id of the state.
        self._exported: dict[int, tuple[bytes, SharedBuffer]] = {}

    @override
    def should_transfer(self, states: Sequence[bytes | SharedBuffer]) -> bool:
        sizes = [len(state) for state in states if not isinstance(state, SharedBuffer)]
        return len(sizes) < len(states) or sum(sizes) > TRANSFER_THRESHOLD

    def export(self, states: Sequence[bytes | SharedBuffer]) -> list[SharedBuffer]:
        new = [s for s in states if isinstance(s, bytes) and id(s) not in self._exported]
        for state, part in zip(new, self.allocate([len(state) for state in new]), strict=True):
            part.write(state)
            self._exported[id(state)] = state, part
        return [s if isinstance(s, SharedBuffer) else self._exported[id(s)][1] for s in states]

    @override
    def allocate(self, sizes: Sequence[int]) -> list[SharedBuffer]:
        parts: list[SharedBuffer] = []
        if sizes:
            start = self._memory.allocate(sum(sizes), _STATES_ERROR, UNCHECKED_BYTES)
            self._starts.append(start)
            for size in sizes:
                parts.append(SharedBuffer(self._memory.fd, start, size))
                start += size
        return parts

    @override
    def read(self, state: Any) -> bytes:
        return state.read() if isinstance(state, SharedBuffer) else bytes(state)

    @override
    def release(self) -> None:
        self._exported = {}
        while self._starts:
            self._memory.free(self._starts[-1])
            self._starts.pop()
