"""Copy of a group's latest observations and infos that a failing worker cannot overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xuance_envs.engine.data.info_batch import InfoColumns, Snapshot, as_batch
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import NO_EXTRAS, Outcome, StepExtras


class LastSnapshot:
    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        self._n = len(arrays.rewards)
        self._parts = [part.copy() for part in arrays.observations.parts]
        group_of = np.zeros(self._n, np.intp)
        self._columns = InfoColumns(arrays.infos, group_of)
        self._reset_columns = InfoColumns(arrays.reset_infos, group_of)
        self.step_infos: Snapshot | None = None
        self.reset_infos: Snapshot | None = None
        self._ended = np.arange(0)  # the environments to which the reset infos belong
        self._built_infos: dict[int, dict[Any, Any]] = {}  # newer than the snapshots

    def record_step(self, outcome: Outcome, places: Sequence[int]) -> None:
        if len(places) < self._n:  # a partial step resets no environment
            self.record_reset(outcome, places)
            return
        rest = self._take_layouts(outcome)
        self._copy_in(slice(None), self._arrays.observations.parts, rest.observations)
        self._built_infos = {}
        self.step_infos = self._columns.snapshot()
        self.reset_infos = None
        if outcome.ended:
            self._ended = np.flatnonzero(self._arrays.terminated | self._arrays.truncated)
            parts = self._arrays.reset_observations.parts
            self._copy_in(self._ended, parts, rest.reset_observations)
            self.reset_infos = self._reset_columns.snapshot()

    def record_reset(self, outcome: Outcome, places: Sequence[int]) -> None:
        rest = self._take_layouts(outcome)
        self._copy_in(np.array(places), self._arrays.observations.parts, rest.observations)
        batch = self._columns.batch()
        self._built_infos.update({place: batch.build(place, place) for place in places})

    def infos(self) -> list[dict[Any, Any]]:
        """Return each environment's last info, with only the values stored in columns."""
        infos: dict[int, dict[Any, Any]] = {}
        for snapshot, places in (
            (self.step_infos, range(self._n)),
            (self.reset_infos, self._ended.tolist()),
        ):
            if snapshot is not None:
                batch = as_batch(snapshot)
                infos.update({place: batch.build(place, place) for place in places})
        infos.update(self._built_infos)
        return [infos.get(place, {}) for place in range(self._n)]

    def restore(self, outcome: Outcome) -> Outcome:
        """Overwrite a step's observations with the stored ones; return the changed outcome."""
        objects = []
        for own, current in zip(self._parts, self._arrays.observations.parts, strict=True):
            if isinstance(own, list):
                objects.append(own)
            else:
                current[...] = own
        if self._arrays.outputs is not None:
            self._arrays.outputs.discard()
        if not objects:
            return outcome
        assert outcome.rest is not None
        news = outcome.rest.reset_observations or objects
        known = [
            [new if old is None else old for old, new in zip(olds, new_values, strict=True)]
            for olds, new_values in zip(objects, news, strict=True)
        ]
        return replace(outcome, rest=replace(outcome.rest, observations=known))

    def _take_layouts(self, outcome: Outcome) -> StepExtras:
        rest = outcome.rest or NO_EXTRAS
        self._columns.set_layout(0, rest.layout)
        self._reset_columns.set_layout(0, rest.reset_layout)
        return rest

    def _copy_in(self, at: Any, parts: Sequence[Any], objects: Sequence[Sequence[Any]]) -> None:
        given = iter(objects)
        for own, current in zip(self._parts, parts, strict=True):
            if isinstance(own, list):
                values = next(given)
                for place in range(self._n)[at] if isinstance(at, slice) else at:
                    own[place] = values[place]
            else:
                own[at] = current[at]
