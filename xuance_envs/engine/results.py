"""From what groups of environments left behind to what the caller is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoColumns
from xuance_envs.engine.data.info_columns import Frozen
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_infos import Ends, StepInfos
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.outcome import Outcome

__all__ = ["Outcomes", "Results"]

FEW_BYTES = 1 << 15
"""Up to so many bytes of first observations, copying all is quicker than finding the new ones."""

Outcomes = Iterable[tuple[int, Outcome]]
"""The places of some drivers, and what came of what they were asked for."""


class Results:
    """Takes in what groups send besides the arrays, and makes infos of both.

    Args:
        drivers: the groups.
        arrays: the arrays of all groups.
    """

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
        self._few_reset_bytes = flat if flat is not None and flat.nbytes <= FEW_BYTES else None

    def infos(self, outcomes: Outcomes, envs: NDArray[np.intp] | None = None) -> StepInfos:
        """The infos of some environments, or of all, after a command.

        Args:
            outcomes: what came of the command; plain ends may be left out.
            envs: the environments; None for all.
        """
        rests: dict[int, Frozen] = {}
        reset_rests: dict[int, Frozen] = {}
        ended = False
        for k, outcome in outcomes:
            ended = ended or outcome.ended
            if outcome.rest is not None:
                self._take(k, outcome, rests, reset_rests)
        ends = self._ends(reset_rests, envs) if ended else None
        batch = self._infos.batch(self._group_of, rests, envs)
        return StepInfos(batch, self._every_env if envs is None else envs, ends)

    def forget(self, outcomes: Outcomes) -> None:
        """Takes in of results nobody wants what groups tell only once."""
        for k, outcome in outcomes:
            if outcome.rest is not None:
                self._take(k, outcome, {}, {})

    def _take(
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

    def _ends(self, reset_rests: Mapping[int, Frozen], among: NDArray[np.intp] | None) -> Ends:
        arrays = self._arrays
        ended = arrays.terminated | arrays.truncated
        if among is not None:  # the flags of the others may be changing
            mine = np.zeros_like(ended)
            mine[among] = ended[among]
            ended = mine
        envs: NDArray[np.intp] | None = None
        observation: Callable[[int], Any]
        if self._few_reset_bytes is not None:
            observation = self._few_reset_bytes.copy().__getitem__
        else:
            (envs,) = ended.nonzero()
            observation = arrays.reset_observations.take(envs).value
        infos = self._reset_infos.batch(self._group_of, reset_rests, envs)
        return Ends(ended, observation, infos, envs)
