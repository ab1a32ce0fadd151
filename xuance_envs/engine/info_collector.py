"""From what groups of environments left behind to what the caller is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoBatch, InfoColumns
from xuance_envs.engine.data.info_columns import Frozen
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_infos import EpisodeEnds, StepInfos
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import Outcome

__all__ = ["InfoCollector", "Outcomes"]

SMALL_BYTES = 1 << 15
"""Up to so many bytes of first observations, copying all is quicker than finding the new ones."""

Outcomes = Iterable[tuple[int, Outcome]]
"""The places of some drivers, and what came of what they were asked for."""


class InfoCollector:
    """Takes in what groups send besides the arrays, and makes infos of both."""

    def __init__(self, drivers: Sequence[Driver], arrays: StepArrays) -> None:
        self._drivers = drivers
        self._arrays = arrays
        self._infos = InfoColumns(arrays.infos, len(drivers))
        self._reset_infos = InfoColumns(arrays.reset_infos, len(drivers))
        self._group_of = np.repeat(
            np.arange(len(drivers)), [driver.hi - driver.lo for driver in drivers]
        )
        self._every_env = np.arange(len(self._group_of))
        flat = arrays.reset_observations.flat
        # The latest infos of all, and by environment those that came later.
        self._latest_of_all: StepInfos | None = None
        self._newer: dict[int, StepInfos] = {}
        self._small_reset_rows = flat if flat is not None and flat.nbytes <= SMALL_BYTES else None

    def infos(self, outcomes: Outcomes, envs: NDArray[np.intp] | None = None) -> StepInfos:
        """The infos of some environments, or of all, after a command."""
        rests: dict[int, Frozen] = {}
        reset_rests: dict[int, Frozen] = {}
        ended = False
        for k, outcome in outcomes:
            ended = ended or outcome.ended
            if outcome.rest is not None:
                self._absorb_extras(k, outcome, rests, reset_rests)
        ends = self._ends(reset_rests, envs) if ended else None
        batch = self._infos.batch(self._group_of, rests, envs)
        return self._build(batch, envs, ends)

    def _build(
        self, batch: InfoBatch, envs: NDArray[np.intp] | None, ends: EpisodeEnds | None
    ) -> StepInfos:
        """Makes infos, and takes note of them as the latest."""
        if envs is None:
            infos = self._latest_of_all = StepInfos(batch, self._every_env, ends)
            if self._newer:
                self._newer = {}
        else:
            infos = StepInfos(batch, envs, ends)
            self._newer.update(dict.fromkeys(envs.tolist(), infos))
        return infos

    @property
    def latest_of_all(self) -> StepInfos | None:
        """The latest infos, if they are of all environments and none has later ones."""
        return None if self._newer else self._latest_of_all

    def latest(self) -> list[tuple[StepInfos, NDArray[np.intp] | None]]:
        """The latest infos of each environment, and for which they are that; None for all."""
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

    def absorb(self, outcomes: Outcomes) -> None:
        """Takes in of results nobody wants what groups tell only once."""
        for k, outcome in outcomes:
            if outcome.rest is not None:
                self._absorb_extras(k, outcome, {}, {})

    def _absorb_extras(
        self,
        k: int,
        outcome: Outcome,
        rests: dict[int, Frozen],
        reset_rests: dict[int, Frozen],
    ) -> None:
        driver, rest = self._drivers[k], outcome.rest
        assert rest is not None
        self._infos.set_layout(k, rest.layout)
        self._reset_infos.set_layout(k, rest.reset_layout)
        for mine, given in ((rests, rest.infos), (reset_rests, rest.reset_infos)):
            mine.update((driver.lo + i, (driver.thaw, frozen)) for i, frozen in given.items())
        for storage, objects in (
            (self._arrays.observations, rest.observations),
            (self._arrays.reset_observations, rest.reset_observations),
        ):
            if objects:
                # None: an environment that has not been reset, or has not ended an episode, yet.
                thawed = [[None if v is None else driver.thaw(v) for v in each] for each in objects]
                storage.load(driver.lo, thawed)

    def _ends(
        self, reset_rests: Mapping[int, Frozen], among: NDArray[np.intp] | None
    ) -> EpisodeEnds:
        arrays = self._arrays
        ended = arrays.terminated | arrays.truncated
        if among is not None:  # the flags of the others may be changing
            mine = np.zeros_like(ended)
            mine[among] = ended[among]
            ended = mine
        envs: NDArray[np.intp] | None = None
        observation: Callable[[int], Any]
        if self._small_reset_rows is not None:
            observation = self._small_reset_rows.copy().__getitem__
        else:
            (envs,) = ended.nonzero()
            observation = arrays.reset_observations.take(envs).value
        infos = self._reset_infos.batch(self._group_of, reset_rests, envs)
        return EpisodeEnds(ended, observation, infos, envs)
