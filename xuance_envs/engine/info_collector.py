"""Infos of a step or reset, from the shared arrays and the groups' outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import NO_RESTS, InfoColumns
from xuance_envs.engine.data.info_columns import ColumnLayout, Frozen
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_infos import EpisodeEnds, StepInfos
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import Outcome

SMALL_BYTES = 1 << 15  # up to this size, copying all reset observations is fastest
Outcomes = Collection[tuple[int, Outcome]]  # driver indices and the outcomes of their requests


class InfoCollector:
    read_at_once = False  # True if infos of each step are read before the next step
    _has_own_extras = False  # True if infos may have values outside columns when no outcome does

    def __init__(self, drivers: Sequence[Driver], arrays: StepArrays) -> None:
        self._drivers = drivers
        self._arrays = arrays
        sizes = [driver.hi - driver.lo for driver in drivers]
        group_of = np.repeat(np.arange(len(drivers)), sizes)
        self._infos = InfoColumns(arrays.infos, group_of)
        self._reset_infos = InfoColumns(arrays.reset_infos, group_of)
        self._every_env = np.arange(len(group_of))
        flat = arrays.reset_observations.flat
        # Infos of the last command on all environments, and infos of later ones by environment.
        self._latest_of_all: StepInfos | None = None
        self._newer: dict[int, StepInfos] = {}
        self._small_reset_rows = flat if flat is not None and flat.nbytes <= SMALL_BYTES else None

    def infos(self, outcomes: Outcomes, envs: NDArray[np.intp] | None = None) -> StepInfos:
        """Return the infos of some or all environments after a command."""
        columns = self._infos
        extras, ends = NO_RESTS, None
        if outcomes or self._has_own_extras:
            extras, reset_extras, ended = self.absorb(outcomes)
            ends = self._ends(reset_extras, envs) if ended else None
        if envs is None:
            source = columns.batch(extras) if self.read_at_once else columns.snapshot(extras)
            infos = self._latest_of_all = StepInfos(source, self._every_env, ends)
            if self._newer:
                self._newer = {}
        else:
            infos = StepInfos(columns.batch(extras, envs), envs, ends)
            self._newer.update(dict.fromkeys(envs.tolist(), infos))
        return infos

    def layouts(self, k: int) -> tuple[ColumnLayout, ColumnLayout]:
        """Return the current column layouts of a group's infos and reset infos."""
        return self._infos.layouts[k], self._reset_infos.layouts[k]

    @property
    def latest_of_all(self) -> StepInfos | None:
        """Infos of the last command on all environments; None if an environment has newer infos."""
        return None if self._newer else self._latest_of_all

    def latest(self) -> list[tuple[StepInfos, NDArray[np.intp] | None]]:
        """Return the latest infos as pairs (infos, their environments); None stands for all."""
        found: list[tuple[StepInfos, NDArray[np.intp] | None]] = []
        newer = self._newer
        envs_of: dict[int, list[int]] = {}
        for env, infos in newer.items():
            envs_of.setdefault(id(infos), []).append(env)
        if self._latest_of_all is not None:
            rest = np.setdiff1d(self._every_env, list(newer)) if newer else None
            found.append((self._latest_of_all, rest))
        found += [(newer[envs[0]], np.array(envs)) for envs in envs_of.values()]
        return found

    def absorb(self, outcomes: Outcomes) -> tuple[Mapping[int, Frozen], Mapping[int, Frozen], bool]:
        """Store outcomes; return (infos outside columns, reset infos likewise, episodes ended)."""
        extras: dict[int, Frozen] = {}
        reset_extras: dict[int, Frozen] = {}
        ended = False
        for k, outcome in outcomes:
            ended = ended or outcome.ended
            driver, rest = self._drivers[k], outcome.rest
            if rest is None:
                continue
            self._infos.set_layout(k, rest.layout)
            self._reset_infos.set_layout(k, rest.reset_layout)
            for target, source in ((extras, rest.infos), (reset_extras, rest.reset_infos)):
                target.update((driver.lo + i, (driver.thaw, each)) for i, each in source.items())
            for storage, objects in (
                (self._arrays.observations, rest.observations),
                (self._arrays.reset_observations, rest.reset_observations),
            ):
                if objects:
                    # None: the environment was not reset, or no episode of it has ended.
                    thawed = [[v if v is None else driver.thaw(v) for v in vs] for vs in objects]
                    storage.load(driver.lo, thawed)
        return extras, reset_extras, ended

    def _ends(
        self, reset_extras: Mapping[int, Frozen], subset: NDArray[np.intp] | None
    ) -> EpisodeEnds:
        arrays = self._arrays
        ended = arrays.terminated | arrays.truncated
        if subset is not None:  # other groups may be writing their flags now
            ended_subset = np.zeros_like(ended)
            ended_subset[subset] = ended[subset]
            ended = ended_subset
        envs: NDArray[np.intp] | None = None
        observation: Callable[[int], Any]
        if self._small_reset_rows is not None:
            observation = self._small_reset_rows.copy().__getitem__
        else:
            (envs,) = ended.nonzero()
            observation = arrays.reset_observations.take(envs).value
        return EpisodeEnds(ended, observation, self._reset_infos.batch(reset_extras, envs), envs)
