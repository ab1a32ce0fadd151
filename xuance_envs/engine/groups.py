"""Groups of one vectorized environment: creation, shared arrays, commands and shutdown."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.action_masks import ActionMasks
from xuance_envs.engine.backend import CLOSE_TIMEOUT, FORCED_CLOSE_TIMEOUT, Backend
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver, GroupDriver
from xuance_envs.engine.group.host import make_group
from xuance_envs.engine.group.outcome import Reset
from xuance_envs.engine.group.protocol import StateTransfer
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.single_env import (
    EnvDescription,
    check_distinct,
    common_description,
)
from xuance_envs.engine.info_collector import InfoCollector
from xuance_envs.engine.ledger import Ledger, Pending, values_of
from xuance_envs.engine.recovery import Recording, RecordingDriver, RestartPolicy
from xuance_envs.engine.restarts import RestartingDriver
from xuance_envs.engine.saving import GroupSaver, Saver
from xuance_envs.engine.serialization import copy_of
from xuance_envs.engine.system.exclusive import wait_for_others
from xuance_envs.engine.system.forks import WrongProcessProxy, close_after_fork
from xuance_envs.engine.system.interrupts import is_interrupt
from xuance_envs.errors import AlreadySteppingError, ClosedVecEnvError, EnvError

logger = logging.getLogger("xuance_envs")

# Function that merges (index, description) pairs into one description, or raises.
Describe = Callable[[Sequence[tuple[int, EnvDescription]]], EnvDescription]


class Groups(ABC):
    def __init__(
        self,
        drivers: Sequence[Driver],
        description: EnvDescription,
        arrays: StepArrays,
        backend: Backend[Any] | None = None,
        results: InfoCollector | None = None,
    ) -> None:
        self.drivers = list(drivers)
        self.info_collector = results or InfoCollector(self.drivers, arrays)
        self.ledger = Ledger(self.drivers, self.info_collector, backend)
        transfer = StateTransfer() if backend is None else backend.state_transfer
        self.saver: Saver = GroupSaver(self.ledger, self.info_collector, transfer)
        self.description = description
        self.arrays = arrays
        self.masks = ActionMasks(description.action_space, arrays, self.info_collector)
        self.closed = False
        self.users: dict[int, bool] = {}
        self.name = "vectorized environment"
        self._wrong_process: WrongProcessProxy | None = None
        if not all(driver.survives_fork for driver in drivers):
            close_after_fork(self)

    def pack_resets(
        self, ids: Sequence[int], seeds: Sequence[int | None], options: Sequence[Any]
    ) -> dict[int, Any]:
        """Pack resets of some environments into one command per group."""
        drivers = self.drivers
        resets: dict[int, list[Reset]] = {}
        for env, seed, env_options in zip(ids, seeds, options, strict=True):
            k = self.ledger.group_of[env]
            resets.setdefault(k, []).append((env - drivers[k].lo, seed, env_options))
        return {k: drivers[k].pack("reset", group_resets) for k, group_resets in resets.items()}

    def command(
        self,
        command: str,
        ids: Sequence[int],
        arguments: Callable[[Sequence[int]], Any],
        caller: str = "",
    ) -> list[Any]:
        """Run a command on some environments and return their values; ``caller`` is for errors."""
        self.check_idle(caller or command)
        shares = self.ledger.split_by_group(ids)
        packed = {k: d.pack(command, d.places_of(envs), *arguments(envs)) for k, d, envs in shares}
        results = self.ledger.command(packed, values_of)
        result_of = dict(zip([env for *_, envs in shares for env in envs], results, strict=True))
        if command in ("call", "apply", "set_attr"):
            self.masks.invalidate(ids)
        return [result_of[env] for env in ids]

    def check_idle(self, what: str) -> None:
        """Raise if the groups are closed or a request is pending."""
        if not self.closed:
            self.ledger.check_idle(what)
        self.check_open()

    def check_stepping(self) -> None:
        """Raise if the groups are closed or no step is pending."""
        self.check_open()
        self.ledger.check_stepping()

    def check_not_stepping(self, what: str) -> None:
        """Raise if the groups are closed or a step started by ``step_async`` is pending."""
        if self.ledger.stepping:
            raise AlreadySteppingError(
                f"{what} was called while a step_async is pending: finish it with step_wait "
                "first. step_async/step_wait and send/recv cannot be mixed within a step"
            )
        self.check_open()

    def check_open(self) -> None:
        """Raise if the groups are closed; discard requests and states of interrupted commands."""
        if self.closed:
            self.check_process()
            raise ClosedVecEnvError(f"{self.name} is closed; create a new one")
        if self.ledger.pending is Pending.COMMAND:
            self.ledger.discard_commands()
        if self.saver.holds_states and not self.ledger.pending:
            self.saver.discard()

    def check_process(self) -> None:
        if self._wrong_process is not None:
            self._wrong_process.raise_error()

    def close_in_child(self, owner: int) -> None:
        """Close the groups in a forked process, without ending their workers."""
        if not self.closed:
            self.closed = True
            self._wrong_process = WrongProcessProxy(self.name, owner)
            self.ledger.replace_drivers(self._wrong_process)

    def close(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        """Close environments and workers; repeated calls do nothing."""
        if not self.closed:
            self.closed, left = True, 0.0
            try:
                left = wait_for_others(self.users, close_timeout)
            finally:  # also after Ctrl-C
                self.mark_closed()
                self.end(left if left > 0 else min(close_timeout, FORCED_CLOSE_TIMEOUT))

    def mark_closed(self) -> None:
        """Reject all further requests, and end calls that wait for replies."""
        self.closed = True
        self.ledger.close()

    @abstractmethod
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None: ...


class LocalGroups(Groups):
    def __init__(
        self,
        recipe: Recipe,
        describe: Describe = common_description,
        info_bytes: int = INFO_BYTES,
        record_failures: str | Path | None = None,
    ) -> None:
        self._group = _make_local_group(recipe)
        try:
            description = describe(self._group.describe())
            arrays = StepArrays.allocate(description.spaces, len(recipe), info_bytes=info_bytes)
            self._group.attach(arrays.slice(0, len(recipe)))  # with its own lists of objects
        except BaseException:
            _close(self._group)
            raise
        super().__init__([_local_driver(self._group, record_failures)], description, arrays)

    @property
    def envs(self) -> list[Any]:
        """The environments, in a new list; empty after closing."""
        return list(self._group.envs)

    @override
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        _close(self._group)


class WorkerGroups(Groups):
    """Groups in workers, optionally with one group in this process."""

    saver: GroupSaver

    def __init__(
        self,
        backend: Backend[Any],
        local_range: tuple[int, int] | None = None,
        describe: Describe = common_description,
        restarts: RestartPolicy | None = None,
        record_failures: str | Path | None = None,
    ) -> None:
        if restarts is None and record_failures is not None:
            restarts = RestartPolicy(0, raises=True)
        self.backend = backend
        recipe = backend.recipe
        self._finalize = backend.register_finalizer(self)
        self._local_group: ResumableGroup | None = None
        try:
            backend.start()
            backend.build()  # workers create their environments while this process creates its own
            described: list[tuple[int, EnvDescription]] = []
            own_envs: list[Any] = []
            if local_range is not None:
                self._local_group = _make_local_group(recipe.part(*local_range))
                described, own_envs = self._local_group.describe(), self._local_group.envs
            description = describe(backend.descriptions() + described)
            check_distinct([*backend.envs, *own_envs], 0)
            resumes = restarts is not None and restarts.resumes
            arrays = backend.allocate(description.spaces, len(recipe), digests=resumes)
            backend.attach(description.spaces, arrays)
            if self._local_group is not None and local_range is not None:
                # Only groups in workers are resumed, and compute digests for that.
                self._local_group.attach(replace(arrays.slice(*local_range), digests=None))
        except BaseException:
            self._finalize()
            if self._local_group is not None:
                _close(self._local_group)
            raise
        drivers: list[Driver] = [*backend.workers]
        if restarts is not None:
            drivers = [
                _fault_tolerant_driver(backend, k, arrays, restarts, record_failures)
                for k in range(len(backend.workers))
            ]
        if self._local_group is not None:
            drivers.append(_local_driver(self._local_group, record_failures))
        super().__init__(drivers, description, arrays, backend)

    @override
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        self.backend.is_closing = True  # a call that still runs must not restart workers
        try:
            if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                self.backend.end(close_timeout)
        finally:
            self._finalize()
        if self._local_group is not None:
            _close(self._local_group)


def _fault_tolerant_driver(
    backend: Backend[Any],
    k: int,
    arrays: StepArrays,
    restarts: RestartPolicy,
    folder: str | Path | None,
) -> Driver:
    """Return a driver that restarts a failed worker or records its failures."""
    lo, hi = backend.workers[k].lo, backend.workers[k].hi
    own_arrays = arrays.slice(lo, hi)
    if folder is None and not restarts.resumes:
        return RestartingDriver(backend, k, own_arrays, restarts)
    recording = Recording(own_arrays, folder, backend.recipe.part(lo, hi), restarts)
    driver = RestartingDriver(backend, k, own_arrays, restarts, recording)
    return RecordingDriver(driver, recording, driver.last_snapshot if restarts.resumes else None)


def _local_driver(group: ResumableGroup, folder: str | Path | None) -> Driver:
    driver = GroupDriver(group)
    if folder is None:
        return driver
    policy = RestartPolicy(0, raises=True)
    return RecordingDriver(driver, Recording(group.arrays, folder, group.recipe, policy))


def _make_local_group(recipe: Recipe) -> ResumableGroup:
    return make_group(recipe, copy_of, is_interrupt=is_interrupt)


def _close(group: ResumableGroup) -> None:
    try:
        group.close()
    except EnvError:
        logger.warning("failed to close an environment", exc_info=True)
