"""Recorded results of steps, for comparison with a replay."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoBatch, Snapshot, as_batch
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import NO_EXTRAS, StepExtras

# Info key that the first step after a restart adds; a replay of that step lacks it.
RESTARTED_KEY = "worker_restarted"

_MAX_COPIED_BYTES = 1 << 13  # copied per step; larger arrays are recorded as digests

_SCALARS = {"reward": np.float64, "terminated flag": np.bool_, "truncated flag": np.bool_}

Thaw = Callable[[Any], Any]


class StepResult(NamedTuple):
    """Result of one step: bytes or digests of each environment's row in the arrays, and infos."""

    observations: Sequence[NDArray[np.uint8]]
    scalars: Sequence[NDArray[np.uint8]]
    reset_observations: Sequence[NDArray[np.uint8]]
    infos: Snapshot
    reset_infos: Snapshot | None
    rest: StepExtras  # results that are not in the step arrays

    def difference(self, other: StepResult, first: int, thaw: Thaw) -> str | None:
        """Describe the first difference of a repeated step; ``first`` is the first environment."""
        for i in range(len(self.scalars[0])):
            for what, where in self._differences(other, i, thaw):
                return f"the {what} of environment {first + i} {where}"
        return None

    def _differences(self, other: StepResult, i: int, thaw: Thaw) -> Iterator[tuple[str, str]]:
        # Imported here because few processes replay steps.
        from xuance_envs.state.checking import describe_difference, describe_info_difference

        def leaves(one: StepResult, of_reset: bool) -> list[Any]:
            arrays = one.reset_observations if of_reset else one.observations
            rest = one.rest
            objects = rest.reset_observations if of_reset else rest.observations
            frozen = [values[i] for values in objects]
            return [part[i] for part in arrays] + [None if f is None else thaw(f) for f in frozen]

        def info(one: StepResult, of_reset: bool) -> dict[Any, Any]:
            snapshot = one.reset_infos if of_reset else one.infos
            assert snapshot is not None
            frozen = one.rest.reset_infos if of_reset else one.rest.infos
            rest = {i: (thaw, frozen[i])} if i in frozen else {}
            built = replace(as_batch(snapshot), rest=rest).build(i, i)
            return {key: value for key, value in built.items() if key != RESTARTED_KEY}

        if describe_difference(leaves(self, False), leaves(other, False)) is not None:
            yield "observation", "differs"
        for (name, dtype), mine, others in zip(
            _SCALARS.items(), self.scalars, other.scalars, strict=True
        ):
            if (mine[i] != others[i]).any():
                if mine.shape[1] % np.dtype(dtype).itemsize:  # a digest
                    yield name, "differs"
                    continue
                was, now = (np.squeeze(rows[i].view(dtype)) for rows in (mine, others))
                yield name, f"was {was} and is {now}"
        has_reset = self.reset_infos is not None and any(part[i].any() for part in self.scalars[1:])
        for of_reset in (False, True) if has_reset else (False,):
            where = describe_info_difference(info(self, of_reset), info(other, of_reset))
            if where is not None:
                yield "reset info" if of_reset else "info", f"differs{where}"
        if has_reset and describe_difference(leaves(self, True), leaves(other, True)) is not None:
            yield "reset observation", "differs"


Steps = Sequence[Sequence[NDArray[Any]]]  # the action leaves of each step
Results = Sequence[StepResult | None]  # of each step; None if it is unknown


class StepResults:
    """Results of the steps in a replay log."""

    def __init__(self, arrays: StepArrays, capacity: int) -> None:
        observations, resets = (
            [part for part in rows.parts if isinstance(part, np.ndarray)]
            for rows in (arrays.observations, arrays.reset_observations)
        )
        scalars = [arrays.rewards, arrays.terminated, arrays.truncated]
        max_bytes = _MAX_COPIED_BYTES // (2 * len(observations) + len(scalars))
        self._rows = RecordedRows([*observations, *scalars], capacity, max_bytes)
        self._reset_rows = RecordedRows(resets, capacity, max_bytes)
        self._num_leaves = len(observations)
        self._capacity = capacity
        self.clear()

    def clear(self) -> None:
        self._infos, self._reset_infos = _Snapshots(self._capacity), _Snapshots(self._capacity)
        self._extras: list[StepExtras | None] = [None] * self._capacity  # None: an unknown step
        self.nbytes = 0

    def record(
        self, at: int, infos: Snapshot, reset_infos: Snapshot | None, rest: StepExtras
    ) -> None:
        """Record the results in the arrays as the results of step ``at``."""
        self._rows.record(at)
        self.nbytes += self._infos.record(at, infos)
        if reset_infos is not None:
            self.nbytes += self._reset_infos.record(at, reset_infos)
            self._reset_rows.record(at)
        if rest is not NO_EXTRAS:
            self.nbytes += sum(map(len, [*rest.infos.values(), *rest.reset_infos.values()]))
        self._extras[at] = rest  # last, so that an interrupt leaves the step unknown

    def get(self, at: int) -> StepResult | None:
        """Return the result of step ``at``, or None if it is unknown."""
        extras, infos = self._extras[at], self._infos.get(at)
        if extras is None or infos is None:
            return None
        resets = self._reset_infos.get(at)
        rows, reset_rows = self._rows.get(at), [] if resets is None else self._reset_rows.get(at)
        leaves, scalars = rows[: self._num_leaves], rows[self._num_leaves :]
        return StepResult(leaves, scalars, reset_rows, infos, resets, extras)


class RecordedRows:
    """Bytes of the rows of arrays at each step, or digests of arrays larger than ``max_bytes``."""

    def __init__(
        self, parts: Sequence[NDArray[Any]], capacity: int, max_bytes: float = np.inf
    ) -> None:
        self._parts = parts
        self._digests = {
            k: _Digests(part, capacity) for k, part in enumerate(parts) if part.nbytes > max_bytes
        }
        copied = [part for k, part in enumerate(parts) if k not in self._digests]
        self._sources = [_bytes_of(part) for part in copied]
        self._copies = [b""] * capacity

    def record(self, at: int) -> None:
        self._copies[at] = b"".join(self._sources)
        for digests in self._digests.values():
            digests.record(at)

    def get(self, at: int) -> list[NDArray[np.uint8]]:
        """Return each array's rows at a step, ``(len(array), row bytes)``."""
        found, copied, start = [], np.frombuffer(bytearray(self._copies[at]), np.uint8), 0
        for k, part in enumerate(self._parts):
            if k in self._digests:
                found.append(self._digests[k].rows(at))
            else:
                found.append(copied[start : start + part.nbytes].reshape(len(part), -1))
                start += part.nbytes
        return found


class _Snapshots:
    """Snapshots of infos, one per step, without a container per step.

    Garbage collections would examine the containers, which takes longer than recording.
    """

    def __init__(self, capacity: int) -> None:
        self._cells = [b""] * capacity
        self._kinds = [b""] * capacity
        self._arrays: list[Any] = [None] * capacity  # the batch itself if it is not a tuple
        self._shared: dict[int, tuple[Any, ...]] = {}  # the other parts, by the id of the arrays

    def record(self, at: int, snapshot: Snapshot) -> int:
        """Store the snapshot of step ``at``; return the bytes of its values."""
        if isinstance(snapshot, tuple):
            cells, self._kinds[at], arrays = snapshot[:3]
            self._cells[at] = cells
            if id(arrays) not in self._shared:
                self._shared[id(arrays)] = snapshot[2:]
            self._arrays[at] = arrays
            return len(cells)
        self._arrays[at] = snapshot
        return snapshot.arrays.cells.nbytes + snapshot.arrays.bytes.nbytes

    def get(self, at: int) -> Snapshot | None:
        arrays = self._arrays[at]
        if arrays is None or isinstance(arrays, InfoBatch):
            return arrays
        return self._cells[at], self._kinds[at], *self._shared[id(arrays)]


class _Digests:
    """Digests of a large array's rows, one per step.

    A digest is the sum of the row's 32-bit words, each multiplied by an odd random number. It
    detects every change of a single word, and takes less time than a checksum.
    """

    def __init__(self, part: NDArray[Any], capacity: int) -> None:
        rows = part.reshape(len(part), -1).view(np.uint8)
        self._rows = rows
        self._words = None if rows.shape[1] % 4 else rows.view(np.uint32)
        self._digests = np.zeros((capacity, len(part)), np.uint32)
        factors = np.random.default_rng(0).integers(2**31, size=rows.shape[1] // 4, dtype=np.uint32)
        self._factors = 2 * factors + np.uint32(1)

    def record(self, at: int) -> None:
        if self._words is None:
            self._digests[at] = [zlib.crc32(row) for row in self._rows]  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
        else:
            np.einsum("ij,j->i", self._words, self._factors, out=self._digests[at])

    def rows(self, at: int) -> NDArray[np.uint8]:
        digests: NDArray[np.uint8] = self._digests[at].copy().reshape(-1, 1).view(np.uint8)
        return digests


def _bytes_of(part: NDArray[Any]) -> memoryview:
    """Return an array's memory as bytes, which copy faster than the array."""
    return memoryview(part.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
