"""Records of a group: saved states, the actions and results since then, and the last result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import NO_RESTS, InfoBatch, InfoColumns, as_batch
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import NO_EXTRAS, Outcome, StepExtras
from xuance_envs.engine.group.step_results import StepCopier, StepCopy
from xuance_envs.errors import name_envs

MAX_OVERHEAD = 0.0025  # target share of step time for saving states; recording steps is extra

# Limits of the log in steps, bytes of actions and results, and seconds of stepping. A replay must
# finish within the default start timeout of two minutes.
MAX_STEPS = 2048
MAX_BYTES = 1 << 26
MAX_SECONDS = 60.0

_SPARE_STEPS = 16  # extra capacity for steps at which saving the states fails

# Commands after which the log restarts.
STATE_CHANGING_COMMANDS = ("reset", "call", "set_attr", "apply", "render", "load_states")


class ReplayLog:
    """Saved states of a group, and the actions and results of each step since then."""

    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        parts = arrays.actions.parts
        self.disabled = ""  # the reason, if disabled
        if arrays.actions.objects:
            self.disabled = "the actions have no fixed shape, so they are not recorded"
        self.interval_log2 = 0
        self._requests_per_step = 1.0
        size = sum(part.nbytes for part in parts) if not self.disabled else 0
        self._max_steps = max(1, min(MAX_STEPS, MAX_BYTES // max(size, 1)))
        self.actions = [] if self.disabled else parts
        self._copier = StepCopier(arrays, self.actions, with_digests=True)
        self._costs: list[float] = []
        self._has_nan = False
        self.reset(None)

    def reset(self, states: Any, tag: int = 0) -> None:
        """Restart the log with new states, or with None if the next step should save them."""
        self.states: Any = states
        self.count, self._first_tag = 0, tag
        self._nbytes, capacity = 0, self._max_steps + _SPARE_STEPS
        # One bytes object per step, which garbage collections ignore.
        self._rows = [b""] * capacity
        # Per step: the source of the infos, or a copied batch of them (see Snapshot).
        self._infos: list[Any] = [None] * capacity
        self._reset_infos: list[Any] = [None] * capacity
        self._extras: list[StepExtras | None] = [None] * capacity
        interval = self.interval_log2
        self.next_save = -1 if states is None else ((tag >> interval) + 1) << interval

    @property
    def has_capacity(self) -> bool:
        return self.count < self._max_steps + _SPARE_STEPS

    def record(self, last: StepCopy | None = None) -> int:
        """Record the last step or only its actions; return the ``count`` that callers must set."""
        at, copier = self.count, self._copier
        if last is None:
            last = copier.copy_actions()
        elif copier.has_digests:
            last = copier.copy(*last[1:])
        rows, (numbers, self._infos[at], _), reset_infos, rest = last
        self._rows[at] = rows
        self._nbytes += len(rows)
        if reset_infos is not None:
            self._reset_infos[at] = reset_infos[1]
        if rest is not None or not numbers:
            self._extras[at] = rest
            self._nbytes += self._other_bytes(at)
        at += 1
        if at == self._max_steps or self._nbytes > MAX_BYTES:
            self.next_save = -1
        return at

    def _other_bytes(self, at: int) -> int:
        """Return the number of bytes of a step's infos that are not in ``_rows``."""
        rest = self._extras[at] or NO_EXTRAS
        batches = [self._infos[at], self._reset_infos[at]]
        arrays = [batch.arrays for batch in batches if isinstance(batch, InfoBatch)]
        in_columns = [each.cells.nbytes + each.bytes.nbytes for each in arrays]
        return sum(in_columns) + sum(map(len, [*rest.infos.values(), *rest.reset_infos.values()]))

    def steps(self) -> list[list[NDArray[Any]]]:
        """Return the action leaves of each step."""
        return [self._copier.actions(rows) for rows in self._rows[: self.count]]

    def copies(self) -> list[StepCopy]:
        recorded = zip(self._rows, self._infos, self._reset_infos, self._extras, strict=True)
        found = []
        for rows, infos, resets, extras in islice(recorded, self.count):
            snapshots = ((), infos, NO_RESTS), None if resets is None else ((), resets, NO_RESTS)
            found.append(StepCopy(rows, *snapshots, extras))
        return found

    def update_interval(self, cost: float, duration: float, tag: int) -> None:
        """Choose the saving interval after a save; :meth:`reset` must follow."""
        self._costs = [*self._costs[-1:], cost]
        if not duration > 0:
            return
        max_steps = max(1, min(self._max_steps, MAX_SECONDS / duration))
        wanted = min(max(min(self._costs) / (MAX_OVERHEAD * duration), 1), max_steps)
        if self.states is not None:  # tags also count requests to other groups
            self._requests_per_step = max((tag - self._first_tag) / (self.count + 1), 1)
        per_step = self._requests_per_step
        most = int(math.log2(max_steps * per_step))
        self.interval_log2 = min(math.ceil(math.log2(wanted * per_step)), most)

    def find_new_nan(self, first: int) -> str | None:
        """Describe NaNs in observations or rewards when they first occur."""
        if self._has_nan:
            return None
        numbers = [self._arrays.rewards, *self._arrays.observations.parts]
        numbers = [p for p in numbers if isinstance(p, np.ndarray) and p.dtype.kind == "f"]
        if not any([np.isnan(part.max(initial=0)) for part in numbers]):
            return None
        self._has_nan = True
        places = range(len(self._arrays.rewards))
        found = [first + i for i in places if any(np.isnan(part[i]).any() for part in numbers)]
        return f"NaN in the observation or reward of {name_envs(found)}"


class LastSnapshot:
    """Copy of the last step, and of the resets and partial steps after it.

    A failing worker cannot overwrite it.
    """

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
