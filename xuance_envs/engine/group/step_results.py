"""Copies of steps, for restarts and for comparison with a replay."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import NO_RESTS, InfoBatch, Snapshot, as_batch
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_frame import bytes_of
from xuance_envs.engine.group.outcome import NO_EXTRAS, StepExtras

# Info key that the first step after a restart adds; a replay of that step lacks it.
RESTARTED_KEY = "worker_restarted"

# Maximum bytes copied per step. A replay log of MAX_STEPS such steps has MAX_BYTES. Each array may
# take an equal share. Larger observations are recorded as digests; small ones are faster to copy.
_MAX_COPIED_BYTES = 1 << 15

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

    def ended(self) -> NDArray[np.intp]:
        """Return the environments that were reset after their episodes' ends."""
        if self.reset_infos is None:
            return np.arange(0)
        return np.flatnonzero(np.hstack(self.scalars[1:]).any(axis=1))

    def difference(self, other: StepResult, first: int, thaw: Thaw) -> str | None:
        """Describe how a repeated step differs; ``first`` is the index of the first environment."""
        ended = self.ended()
        for i in range(len(self.scalars[0])):
            for what, where in self._differences(other, i, i in ended, thaw):
                return f"the {what} of environment {first + i} {where}"
        return None

    def _differences(
        self, other: StepResult, i: int, has_reset: bool, thaw: Thaw
    ) -> Iterator[tuple[str, str]]:
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
                was, now = (np.squeeze(rows[i].view(dtype)) for rows in (mine, others))
                yield name, f"was {was} and is {now}"
        for of_reset in (False, True) if has_reset else (False,):
            where = describe_info_difference(info(self, of_reset), info(other, of_reset))
            if where is not None:
                yield "reset info" if of_reset else "info", f"differs{where}"
        if has_reset and describe_difference(leaves(self, True), leaves(other, True)) is not None:
            yield "reset observation", "differs"


_NO_INFOS: Any = (), None, NO_RESTS  # infos of a copy that has only actions


class StepCopy(NamedTuple):
    """Copy of one step: rows of the arrays as one bytes object, infos, and other results."""

    rows: bytes
    infos: Snapshot = _NO_INFOS
    reset_infos: Snapshot | None = None  # None if no episode ended
    rest: StepExtras | None = None


def digest_writer(part: NDArray[Any], values: NDArray[np.uint64]) -> Callable[[], Any]:
    """Return a function that writes digests of an array's rows to ``values``.

    A digest is the sum of the row's words of up to 32 bits, each multiplied by a random odd 64-bit
    number. If one word changes, the digest changes. If several words change, it stays equal with a
    probability of at most 2**-32. A 32-bit digest could not detect that two floats changed signs.
    """
    rows = part.reshape(len(part), -1).view(np.uint8)
    size = next(size for size in (4, 2, 1) if rows.shape[1] % size == 0)
    words = rows.view(f"u{size}")
    factors = np.random.default_rng(0).integers(2**64, size=words.shape[1], dtype=np.uint64) | 1
    return partial(np.einsum, "ij,j->i", words, factors, out=values)


class StepDigests:
    """Digests of a group's large observations and reset observations, in its arrays."""

    @classmethod
    def of(cls, arrays: StepArrays) -> StepDigests | None:
        """Return the digests; None without large observations or without arrays for digests."""
        observations = arrays.observations.arrays
        max_bytes = _MAX_COPIED_BYTES // (2 * len(observations) + 3)  # 3: reward and flags
        large = [k for k, part in enumerate(observations) if part.nbytes > max_bytes]
        return cls(arrays, large) if large and arrays.digests is not None else None

    def __init__(self, arrays: StepArrays, large: Sequence[int]) -> None:
        observations, resets = arrays.observations.arrays, arrays.reset_observations.arrays
        assert arrays.digests is not None
        assert arrays.reset_digests is not None
        self.values, self.reset_values = arrays.digests, arrays.reset_digests
        self.copied = [part for k, part in enumerate(observations) if k not in large]
        self.copied_resets = [part for k, part in enumerate(resets) if k not in large]
        self._writers = [digest_writer(observations[k], self.values[:, k]) for k in large]
        self._reset_writers = [digest_writer(resets[k], self.reset_values[:, k]) for k in large]

    def update(self, with_resets: bool) -> None:
        for write in [*self._writers, *self._reset_writers] if with_resets else self._writers:
            write()


class StepCopier:
    """Copier of a group's actions and results; it can replace large arrays with their digests."""

    def __init__(
        self, arrays: StepArrays, actions: Sequence[NDArray[Any]] = (), with_digests: bool = False
    ) -> None:
        scalars = [arrays.rewards, arrays.terminated, arrays.truncated]
        observations, resets = arrays.observations.arrays, arrays.reset_observations.arrays
        digests = StepDigests.of(arrays) if with_digests else None
        self.has_digests = digests is not None
        if digests is not None:
            observations = [*digests.copied, digests.values]
            resets = [*digests.copied_resets, digests.reset_values]
        self._actions = _Rows(actions)
        self._observations = _Rows(observations)
        self._scalars = _Rows(scalars)
        self._resets = _Rows(resets)
        parts = self._actions, self._observations, self._scalars
        self._memory = [memory for part in parts for memory in part.memory]

    def copy_actions(self) -> StepCopy:
        return StepCopy(b"".join(self._actions.memory))

    def copy(
        self, infos: Snapshot, reset_infos: Snapshot | None, rest: StepExtras | None
    ) -> StepCopy:
        """Copy the actions and results in the arrays."""
        rows = [*self._memory, *infos[0]]
        if reset_infos is not None:
            rows += self._resets.memory
            rows += reset_infos[0]
        return StepCopy(b"".join(rows), infos, reset_infos, rest)

    def actions(self, rows: bytes) -> list[NDArray[Any]]:
        """Return the action leaves in a copy."""
        found = self._actions.read(io.BytesIO(rows))
        pairs = zip(self._actions.parts, found, strict=True)
        return [own.view(part.dtype).reshape(part.shape) for part, own in pairs]

    def result(self, copied: StepCopy) -> StepResult:
        file, resets, reset_infos = io.BytesIO(copied.rows), [], None
        self._actions.read(file)
        observations, scalars = self._observations.read(file), self._scalars.read(file)
        infos = _read_infos(copied.infos, file)
        if copied.reset_infos is not None:
            resets = self._resets.read(file)
            reset_infos = _read_infos(copied.reset_infos, file)
        extras = copied.rest or NO_EXTRAS
        return StepResult(observations, scalars, resets, infos, reset_infos, extras)


def _read_infos(snapshot: Snapshot, file: io.BytesIO) -> Snapshot:
    source = snapshot[1]
    if isinstance(source, InfoBatch):
        return (), source, NO_RESTS
    arrays = source[0]
    return (file.read(arrays.cells.nbytes), file.read(arrays.kinds.nbytes)), source, NO_RESTS


class _Rows:
    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self.parts = arrays
        self.memory: list[Any] = list(map(bytes_of, arrays))

    def read(self, file: io.BytesIO) -> list[NDArray[np.uint8]]:
        """Read a copy of each array, as an array of bytes ``(rows, bytes per row)``."""
        return [
            np.frombuffer(bytearray(file.read(part.nbytes)), np.uint8).reshape(len(part), -1)
            for part in self.parts
        ]
