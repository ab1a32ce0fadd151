"""States that a worker process keeps until they are dropped, for an HTTP session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xuance_envs.engine.group.group_states import GroupStates
from xuance_envs.engine.group.protocol import StateBuffer

Facts = tuple[bytes, bytes]  # digest of the environment's fingerprint, and the packed fingerprint


class StoredStates(GroupStates):
    _stored: ClassVar[dict[int, tuple[bytes, Facts]]] = {}  # shared by all groups of the process

    def store_states(
        self,
        places: Sequence[int],
        numbers: Sequence[int],
        registry: bytes | None,
        max_bytes: float,
    ) -> list[int]:
        """Save states under their numbers; return their sizes. Above ``max_bytes``, keep none."""
        stored, sizes = {}, []
        for i, number in zip(places, numbers, strict=True):
            ((data, digest, _),), fingerprints = self.save_states([i], registry)
            assert isinstance(data, bytes)
            sizes.append(len(data))
            if sum(sizes) > max_bytes:
                return sizes
            stored[number] = data, (digest, fingerprints[digest])
        self._stored.update(stored)
        return sizes

    def prepare_stored(
        self, places: Sequence[int], numbers: Sequence[int], registry: bytes | None
    ) -> list[str]:
        """Check some environments against states that this process keeps; return warnings."""
        found = [self._stored[number] for number in numbers]
        sources = [(False, k) for k in range(len(places))]
        digests = [digest for _, (digest, _) in found]
        fingerprints = dict(facts for _, facts in found)
        states = [data for data, _ in found]
        options = fingerprints, False, True, registry
        return self.prepare_states(places, sources, digests, *options, states)

    def copy_stored(self, numbers: Sequence[int], buffers: Sequence[StateBuffer]) -> list[Facts]:
        """Write states to buffers; return (digest, packed fingerprint) of each."""
        for number, buffer in zip(numbers, buffers, strict=True):
            buffer.write(self._stored[number][0])
        return [self._stored[number][1] for number in numbers]

    def import_stored(
        self, numbers: Sequence[int], facts: Sequence[Facts], buffers: Sequence[StateBuffer]
    ) -> None:
        """Keep states that another process copied to buffers."""
        for number, fact, buffer in zip(numbers, facts, buffers, strict=True):
            self._stored[number] = buffer.read(), fact

    def drop_stored(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._stored.pop(number, None)
