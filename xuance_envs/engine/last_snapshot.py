"""Copy of a group's latest observations and infos that a failing worker cannot overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoColumns, as_batch
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import NO_EXTRAS, Outcome, StepExtras
from xuance_envs.engine.group.step_results import StepCopier, StepCopy


class LastSnapshot:
    """Copy of the last step, and of the resets and partial steps after it."""

    def __init__(self, arrays: StepArrays, actions: Sequence[NDArray[Any]] = ()) -> None:
        self._arrays = arrays
        self._n = len(arrays.rewards)
        self._copier = StepCopier(arrays, actions)
        group_of = np.zeros(self._n, np.intp)
        self._columns = InfoColumns(arrays.infos, group_of)
        self._reset_columns = InfoColumns(arrays.reset_infos, group_of)
        self.last_step: StepCopy | None = None
        self._parts = [part.copy() for part in arrays.observations.parts]
        self._parts_are_older = False  # than the last step
        self._built_infos: dict[int, dict[Any, Any]] = {}  # newer than the last step

    def record_step(self, outcome: Outcome, places: Sequence[int]) -> None:
        if len(places) < self._n:  # a partial step resets no environment
            self.record_reset(outcome, places)
            return
        self._take_layouts(outcome)
        resets = self._reset_columns.snapshot() if outcome.ended else None
        step = self._copier.copy(self._columns.snapshot(), resets, outcome.rest)
        # No call in between, so that an interrupt finds either all of these updated or none.
        self.last_step, self._parts_are_older, self._built_infos = step, True, {}

    def record_reset(self, outcome: Outcome, places: Sequence[int]) -> None:
        self._update_parts()
        rest = self._take_layouts(outcome)
        at, objects = np.array(places), iter(rest.observations)
        for own, current in zip(self._parts, self._arrays.observations.parts, strict=True):
            if isinstance(own, list):
                values = next(objects)
                for place in places:
                    own[place] = values[place]
            else:
                own[at] = current[at]
        batch = self._columns.batch()
        self._built_infos.update({place: batch.build(place, place) for place in places})

    def infos(self) -> list[dict[Any, Any]]:
        """Return each environment's last info, with only the values stored in columns."""
        infos: dict[int, dict[Any, Any]] = {}
        if self.last_step is not None:
            step = self._copier.result(self.last_step)
            for snapshot, places in (
                (step.infos, range(self._n)),
                (step.reset_infos, step.ended().tolist()),
            ):
                if snapshot is not None:
                    batch = as_batch(snapshot)
                    infos.update({place: batch.build(place, place) for place in places})
        infos.update(self._built_infos)
        return [infos.get(place, {}) for place in range(self._n)]

    def restore(self, outcome: Outcome) -> Outcome:
        """Overwrite a step's observations with the stored ones; return the changed outcome."""
        self._update_parts()
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
        rest = outcome.rest
        if rest is None:
            return NO_EXTRAS
        self._columns.set_layout(0, rest.layout)
        self._reset_columns.set_layout(0, rest.reset_layout)
        return rest

    def _update_parts(self) -> None:
        """Update outdated observations from the last step, or from a reset if an episode ended."""
        if not self._parts_are_older:
            return
        assert self.last_step is not None
        step = self._copier.result(self.last_step)
        ended = step.ended()
        rows, objects = iter(step.observations), iter(step.rest.observations)
        resets, reset_objects = iter(step.reset_observations), iter(step.rest.reset_observations)
        for own in self._parts:
            if isinstance(own, list):
                own[:] = next(objects)
                new = next(reset_objects) if len(ended) else ()
                for place in ended.tolist():
                    own[place] = new[place]
            else:
                memory = own.reshape(self._n, -1).view(np.uint8)
                memory[...] = next(rows)
                if len(ended):
                    memory[ended] = next(resets)[ended]
        self._parts_are_older = False
