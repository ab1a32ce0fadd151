"""Encoding of the step data of an actor's groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_frame import Extents, GroupCodec


class ActorCodec:
    def __init__(self, arrays: StepArrays, split: Sequence[tuple[int, int]]) -> None:
        first = split[0][0]
        self._all = GroupCodec(arrays)
        self._each = [GroupCodec(arrays.slice(lo - first, hi - first)) for lo, hi in split]

    def actions(self, groups: Sequence[int]) -> bytes:
        if len(groups) == len(self._each):
            return self._all.actions()
        return b"".join([self._each[group].actions() for group in groups])

    def load_actions(self, data: Any, start: int, groups: Sequence[int]) -> int:
        if len(groups) == len(self._each):
            return self._all.load_actions(data, start)
        for group in groups:
            start = self._each[group].load_actions(data, start)
        return start

    def results(self, extents: Mapping[int, Extents]) -> list[Any]:
        if len(extents) == len(self._each):
            return self._all.results(_union(extents.values()))
        return list(chain(*(self._each[group].results(used) for group, used in extents.items())))

    def load_results(self, data: Any, start: int, extents: Mapping[int, Extents]) -> int:
        if len(extents) == len(self._each):
            return self._all.load_results(data, start, _union(extents.values()))[0]
        for group, used in extents.items():
            start, _ = self._each[group].load_results(data, start, used)
        return start


def _union(extents: Collection[Extents]) -> Extents:
    """Return the smallest extents that cover all given ones."""
    if len(extents) == 1:
        (only,) = extents
        return only
    infos, resets, masks = zip(*extents, strict=True)
    return Extents(_largest(infos), _largest(resets), any(masks))


def _largest(extents: Sequence[tuple[int, int]]) -> tuple[int, int]:
    columns, nbytes = zip(*extents, strict=True)
    return max(columns), max(nbytes)
