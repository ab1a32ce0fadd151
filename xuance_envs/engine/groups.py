"""The groups of environments of one vector environment: made, put on their arrays, and ended."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from xuance_envs.engine.action_masks import ActionMasks
from xuance_envs.engine.backend import Backend
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver, GroupDriver, Lender, is_interrupt
from xuance_envs.engine.failure_files import FailureFiles
from xuance_envs.engine.forks import Elsewhere, stays_behind
from xuance_envs.engine.group.outcome import Reset
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.restorable_group import RestorableGroup
from xuance_envs.engine.group.single_env import EnvDescription, common_description
from xuance_envs.engine.ledger import Ledger
from xuance_envs.engine.recording import RecordingDriver
from xuance_envs.engine.restarts import RestartingDriver, Restarts
from xuance_envs.engine.results import Results
from xuance_envs.engine.resuming import ResumingDriver
from xuance_envs.engine.serialization import copy_of
from xuance_envs.engine.waiting import Waiter
from xuance_envs.errors import ClosedVecEnvError, EnvError

__all__ = ["Describe", "Groups", "LocalGroups", "WorkerGroups"]

logger = logging.getLogger("xuance_envs")

Describe = Callable[[Sequence[tuple[int, EnvDescription]]], EnvDescription]
"""Makes one description of those of some environments, with their indices; may find them unlike."""


class Groups(ABC):
    """Groups of environments on the arrays of a step.

    Args:
        drivers: of the groups, in the environments' order.
        description: of the first environment.
        arrays: of all groups.
        waiter: how to wait for the first group that answers; None polls the drivers' descriptors.
        results: makes infos of what the groups leave; None for the usual.
        before_step: is called before each step; None for nothing.
        asked: is called when some have been asked for something; None for nothing.
        lender: brings the groups what is too large for their commands; None for nothing.

    Attributes:
        ledger (Ledger): who was asked for what.
        lender (Lender): as given.
        results (Results): what came of it.
        group_of (list[int]): by environment, its group.
        has_lent (bool): whether groups may have states that they are to let go of: what was lent
            them, or what they keep for a next command.
        last_route (Any): how environments became like others the last time; None before.
        masks (ActionMasks): of the actions that come next.
        closed (bool): whether nothing may be asked of them any more.
        name: what errors call what they belong to.
    """

    def __init__(
        self,
        drivers: Sequence[Driver],
        description: EnvDescription,
        arrays: StepArrays,
        waiter: Waiter | None = None,
        results: Results | None = None,
        before_step: Callable[[], None] | None = None,
        asked: Callable[[], None] | None = None,
        lender: Lender | None = None,
    ) -> None:
        self.ledger = Ledger(drivers, waiter, before_step, asked)
        self.lender = lender or Lender()
        self.has_lent = False
        self.last_route: Any = None
        self.drivers = self.ledger.drivers
        self.group_of = [k for k, driver in enumerate(drivers) for _ in range(driver.lo, driver.hi)]
        self.description = description
        self.arrays = arrays
        self.results = results or Results(self.drivers, arrays)
        self.masks = ActionMasks(description.action_space, arrays, self.results)
        self.closed = False
        self.name = "vector environment"
        self._elsewhere: Elsewhere | None = None
        if not all(driver.is_local for driver in drivers):
            stays_behind(self)

    def packed_resets(
        self, ids: Sequence[int], seeds: Sequence[int | None], options: Sequence[Any]
    ) -> dict[int, Any]:
        """Resets of some environments, as each group takes them."""
        drivers = self.drivers
        resets: dict[int, list[Reset]] = {}
        for env, seed, given in zip(ids, seeds, options, strict=True):
            k = self.group_of[env]
            resets.setdefault(k, []).append((env - drivers[k].lo, seed, given))
        return {k: drivers[k].pack("reset", mine) for k, mine in resets.items()}

    def each(
        self, command: str, ids: Sequence[int], arguments: Callable[[Sequence[int]], Any]
    ) -> list[Any]:
        """Asks the groups of some environments for a command.

        Args:
            command: the command.
            ids: the environments, none of them twice.
            arguments: those for some environments of a group.

        Returns:
            What came of each environment, in the order of ``ids``.
        """
        packed = {}
        asked: list[int] = []
        for k, driver, mine in self.shares(ids):
            places = [env - driver.lo for env in mine]
            packed[k] = driver.pack(command, places, *arguments(mine))
            asked += mine
        self.ledger.start(packed)
        values = [value for _, answer in self.ledger.finish() for value in answer]
        result_of = dict(zip(asked, values, strict=True))
        self.ledger.take()
        if command in ("call", "apply", "set_attr"):
            self.masks.forget(ids)
        return [result_of[env] for env in ids]

    def shares(self, ids: Sequence[int]) -> list[tuple[int, Driver, list[int]]]:
        """Of some environments, those of each group that has any: its place, its driver, these."""
        shares: dict[int, list[int]] = {}
        for env in ids:
            shares.setdefault(self.group_of[env], []).append(env)
        return [(k, self.drivers[k], shares[k]) for k in sorted(shares)]

    def check_idle(self, what: str) -> None:
        """Raises unless they are open and nothing is pending.

        Raises:
            AlreadySteppingError: something is.
            ClosedVecEnvError: they are closed.
        """
        if not self.closed:
            self.ledger.check_idle(what)
        self.check_open()

    def check_open(self) -> None:
        """Raises if they are closed; lets go of what an interrupt left.

        Raises:
            ClosedVecEnvError: they are.
            WrongProcessError: they belong to another process.
        """
        if self.closed:
            self.check_process()
            raise ClosedVecEnvError(f"{self.name} is closed; make another one")
        if not self.ledger.sending:
            if self.ledger.owing:
                self.ledger.settle(self.results.forget)
            if self.has_lent:
                self.forget_states()

    def forget_states(self) -> None:
        """Takes back what was lent, and has groups let go of the states that they keep.

        They owe no answer. One that cannot be asked has nothing any more.
        """
        self.lender.take_back()
        with suppress(Exception):
            self.ledger.start(
                {k: each.pack("forget_states") for k, each in enumerate(self.drivers)}
            )
            self.ledger.finish()
        self.ledger.take()
        self.has_lent = False

    def check_process(self) -> None:
        """Raises if they belong to another process.

        Raises:
            WrongProcessError: they do.
        """
        if self._elsewhere is not None:
            self._elsewhere.refuse()

    def leave_to(self, owner: int) -> None:
        """Leaves them to the process that this one was just forked from: they are closed here."""
        if not self.closed:
            self.closed = True
            self._elsewhere = Elsewhere(self.name, owner)
            self.ledger.leave_to(self._elsewhere)

    def close(self, patience: float | None = None) -> None:
        """Shuts them, and ends the environments and what is around them; again, it does nothing.

        Args:
            patience: seconds they have for that; None for what is usual.
        """
        if not self.closed:
            self.shut()
            self.end(patience)

    def shut(self) -> None:
        """Has nothing be asked of them any more."""
        self.closed = True
        self.ledger.stepping = False

    @abstractmethod
    def end(self, patience: float | None = None) -> None:
        """Ends the environments and what is around them."""


class LocalGroups(Groups):
    """One group, in this process.

    Args:
        recipe: what its environments are made from.
        describe: makes one description of the environments'.
        info_bytes: room for the arrays in each environment's info.
        record_failures: the folder to record failures in; None if they are not.
    """

    def __init__(
        self,
        recipe: Recipe,
        describe: Describe = common_description,
        info_bytes: int = INFO_BYTES,
        record_failures: str | Path | None = None,
    ) -> None:
        self._group = _group_here(recipe)
        try:
            description = describe(self._group.describe())
            spaces = description.observation_space, description.action_space
            arrays = StepArrays.allocate(*spaces, len(recipe), info_bytes=info_bytes)
            self._group.attach(arrays)
        except BaseException:
            _close(self._group)
            raise
        files = _files(record_failures, recipe)
        super().__init__([_driver_here(self._group, 0, arrays, files)], description, arrays)

    @property
    def envs(self) -> list[Any]:
        """The environments, in a list of their own; empty once closed."""
        return list(self._group.envs)

    def end(self, patience: float | None = None) -> None:
        """See :class:`Groups`."""
        _close(self._group)


class WorkerGroups(Groups):
    """Groups in workers, and perhaps one in this process.

    Args:
        backend: the workers, which knows how all environments are made.
        own: index of the first environment of the group in this process, and after the last.
        describe: makes one description of the environments'.
        restarts: of all workers; None where a loss is an error.
        record_failures: the folder to record failures in; None if they are not.
    """

    def __init__(
        self,
        backend: Backend[Any],
        own: tuple[int, int] | None = None,
        describe: Describe = common_description,
        restarts: Restarts | None = None,
        record_failures: str | Path | None = None,
    ) -> None:
        if restarts is None and record_failures is not None:
            restarts = Restarts(0, raises=True)
        self.backend = backend
        recipe = backend.recipe
        self._end = backend.ends_with(self)
        self._own: RestorableGroup | None = None
        try:
            backend.start()
            backend.build()  # all at the same time, also with those of this process
            described: list[tuple[int, EnvDescription]] = []
            if own is not None:
                self._own = _group_here(recipe.part(*own))
                described = self._own.describe()
            description = describe(backend.descriptions() + described)
            spaces = description.observation_space, description.action_space
            arrays = backend.allocate(spaces, len(recipe))
            backend.attach(spaces, arrays)
            if self._own is not None and own is not None:
                self._own.attach(arrays.slice(*own))
        except BaseException:
            self._end()
            if self._own is not None:
                _close(self._own)
            raise
        drivers: list[Driver] = [*backend.workers]
        if restarts is not None:
            drivers = [
                _replaced_driver(backend, k, arrays, restarts, record_failures)
                for k in range(len(backend.workers))
            ]
        if self._own is not None and own is not None:
            files = _files(record_failures, recipe.part(*own))
            drivers.append(_driver_here(self._own, own[0], arrays.slice(*own), files))
        waiter = backend.waiter(drivers)
        super().__init__(
            drivers,
            description,
            arrays,
            waiter,
            before_step=backend.before_step,
            asked=backend.asked,
            lender=backend.lender,
        )

    def end(self, patience: float | None = None) -> None:
        """See :class:`Groups`."""
        try:
            if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                self.backend.end(patience)
        finally:
            self._end()
        if self._own is not None:
            _close(self._own)


def _replaced_driver(
    backend: Backend[Any],
    k: int,
    arrays: StepArrays,
    restarts: Restarts,
    record_failures: str | Path | None,
) -> RestartingDriver:
    """The driver of a worker that is replaced when it is lost, or whose failures are recorded."""
    mine = backend.workers[k].lo, backend.workers[k].hi
    recipe = backend.recipe.part(*mine)
    given = backend, k, recipe.keywords, arrays.slice(*mine), restarts
    if record_failures is None and not restarts.resumes:
        return RestartingDriver(*given)
    files = _files(record_failures, recipe)
    return ResumingDriver(*given, files=files)


def _driver_here(
    group: RestorableGroup, lo: int, arrays: StepArrays, files: FailureFiles | None
) -> GroupDriver:
    """The driver of a group in this process."""
    return GroupDriver(group, lo) if files is None else RecordingDriver(group, lo, arrays, files)


def _files(folder: str | Path | None, recipe: Recipe) -> FailureFiles | None:
    """Where the failures of a group are recorded, if they are."""
    return None if folder is None else FailureFiles(folder, recipe)


def _group_here(recipe: Recipe) -> RestorableGroup:
    return RestorableGroup(recipe, copy_of, is_interrupt=is_interrupt)


def _close(group: RestorableGroup) -> None:
    try:
        group.close()
    except EnvError:
        logger.warning("an environment did not close", exc_info=True)
