"""Encoding of the step data of an actor's groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_frame import Extents, GroupCodec


class ActorCodec:
    def __init__(self, arrays: StepArrays, split: Sequence[tuple[int, int]]) -> None:
        first = split[0][0]
        self._all = GroupCodec(arrays)
        self._each = [GroupCodec(arrays.slice(lo - first, hi - first)) for lo, hi in split]

    def actions(self, groups: Sequence[int]) -> bytes:
        return b"".join([codec.actions() for codec in self._codecs_of(groups)])

    def load_actions(self, data: Any, start: int, groups: Sequence[int]) -> None:
        for codec in self._codecs_of(groups):
            start = codec.load_actions(data, start)

    def results(self, extents: Mapping[int, Extents]) -> list[Any]:
        return [part for codec, used in self._used(extents) for part in codec.results(used)]

    def load_results(self, data: Any, start: int, extents: Mapping[int, Extents]) -> int:
        for codec, used in self._used(extents):
            start, _ = codec.load_results(data, start, used)
        return start

    def _codecs_of(self, groups: Collection[int]) -> Sequence[GroupCodec]:
        if len(groups) == len(self._each):
            return [self._all]
        return [self._each[group] for group in groups]

    def _used(self, extents: Mapping[int, Extents]) -> Iterable[tuple[GroupCodec, Extents]]:
        """Return codecs of these groups, with the extents to encode."""
        codecs, used = self._codecs_of(extents), extents.values()
        return zip(codecs, [_union(used)] if len(codecs) < len(used) else used, strict=True)


def _union(extents: Collection[Extents]) -> Extents:
    """Return the smallest extents that cover all given ones."""
    infos, resets, masks = zip(*extents, strict=True)
    return Extents(_largest(infos), _largest(resets), any(masks))


def _largest(extents: Sequence[tuple[int, int]]) -> tuple[int, int]:
    columns, nbytes = zip(*extents, strict=True)
    return max(columns), max(nbytes)
