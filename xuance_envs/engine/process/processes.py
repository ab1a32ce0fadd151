"""Worker processes as a backend: how each is started, placed on a CPU, started again, and ended."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from typing import Any

from xuance_envs.engine.backend import HURRY, Backend
from xuance_envs.engine.by_value import number_classes
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.process.black_box import REGION
from xuance_envs.engine.process.driver import ProcessDriver
from xuance_envs.engine.process.end import PATIENCE, end_all
from xuance_envs.engine.process.memory_lender import MemoryLender
from xuance_envs.engine.process.placement import Placement
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.worker_process import StartSettings, start_worker
from xuance_envs.engine.waiting import PolledWaiter

__all__ = ["Lodger", "Processes"]


class Processes(Backend[ProcessDriver]):
    """The worker processes of one vector environment.

    Args:
        settings: how they start.
        split: index of the first environment and index after the last, of each.
        recipe: what the environments of all are made from.
        pin: whether they may be kept on a CPU each.
        caller_steps: whether this process steps environments, too.
        info_bytes: room for the arrays in each environment's info.

    Attributes:
        settings (StartSettings): as given.
    """

    without_pickling = ". context='fork' does without pickling"

    def __init__(
        self,
        settings: StartSettings,
        split: Sequence[tuple[int, int]],
        recipe: Recipe,
        pin: bool = False,
        caller_steps: bool = False,
        info_bytes: int = INFO_BYTES,
    ) -> None:
        super().__init__(split, recipe, info_bytes)
        self.settings = settings
        self.lender: MemoryLender = MemoryLender(settings.memory)
        self._forked = settings.context.get_start_method() == "fork"
        if self._forked:
            number_classes()
        self._pin = pin
        self._caller_steps = caller_steps
        self._placement: Placement

    def attach(self, spaces: tuple[Any, Any], arrays: StepArrays) -> None:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        super().attach(spaces, arrays)
        self.place()

    def place(self) -> None:
        """Begins to watch how quick steps are, to keep the workers on a CPU each if they are."""
        pids = [driver.worker.pid for driver in self.workers] if self._pin else ()
        self._placement = Placement(pids, self._caller_steps, available_cpus())

    def before_step(self) -> None:
        """Keeps the workers on a CPU each as long as their steps are quick."""
        self._placement.step()

    def restart(self, index: int) -> ProcessDriver:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        driver = super().restart(index)
        self._placement.replace(index, driver.worker.pid)
        return driver

    def allocate(self, spaces: tuple[Any, Any], num_envs: int) -> StepArrays:
        """See :class:`~xuance_envs.engine.backend.Backend`; they are on shared memory."""
        memory, size = self.settings.memory, StepArrays.nbytes(*spaces, num_envs, self.info_bytes)
        self._arrays_at = memory.extend(size)
        mapped = memory.map(self._arrays_at, size)
        return StepArrays.allocate(*spaces, num_envs, mapped, self.info_bytes)

    def waiter(self, drivers: Sequence[Driver]) -> PolledWaiter:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        return PolledWaiter(drivers, self.settings.own_spin)

    def end(self, patience: float | None = None) -> None:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        end_all(self.workers, PATIENCE if patience is None else patience)

    def ends_with(self, owner: Any) -> Callable[[], Any]:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        # Not __del__: this also runs at the interpreter's exit, before multiprocessing waits
        # for the workers.
        return Finalize(owner, _end, args=(self, self.settings.memory), exitpriority=100)

    def _start(self, index: int, started: Callable[[ProcessDriver], None]) -> None:
        """Starts one, and hands it over.

        Raises:
            OSError: a limit on processes or descriptors was met; says what they need.
        """
        lo, hi = self._split[index]
        inherited = self.recipe.env_fns[lo:hi] if self._forked else None
        try:
            start_worker(
                self.settings,
                index,
                f"xuance_envs-{lo}-{hi - 1}",
                inherited,
                lambda worker: started(ProcessDriver(worker, self.settings, lo, hi)),
            )
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
                raise
            raise OSError(
                error.errno,
                f"{error.strerror}: could not start worker {index + 1} of "
                f"{len(self._split)}, each of which takes a process and up to five descriptors. "
                "Raise the limits (ulimit -n, ulimit -u), or have more environments share a "
                "worker with in_series",
            ) from error

    def _end(self, index: int) -> None:
        end_all([self.workers[index]], HURRY)

    def _place(self, lo: int, hi: int) -> tuple[Any, ...]:
        return self._spaces, len(self.recipe), self.info_bytes, self._arrays_at, lo, hi

    def _functions(self, lo: int, hi: int) -> bytes | None:
        return None if self._forked else super()._functions(lo, hi)


class Lodger(Processes):
    """One group more in a worker process of another vector environment.

    One group of a process is asked at a time, and has answered before another one is asked:
    whoever has the vector environments sees to that. The process ends with the last of them.

    Args:
        beside: the other one's processes; the group goes into the first.
        recipe: what its environments are made from.
    """

    without_pickling = ""

    def __init__(
        self,
        beside: Processes,
        recipe: Recipe,
    ) -> None:
        split = [(0, len(recipe))]
        super().__init__(beside.settings, split, recipe, info_bytes=beside.info_bytes)
        self._beside = beside
        self._forked = False  # the process is there, and inherits nothing any more
        self._parts: list[int] = []
        self.settings.memory.share()

    def allocate(self, spaces: tuple[Any, Any], num_envs: int) -> StepArrays:
        """See :class:`~xuance_envs.engine.backend.Backend`."""
        arrays = super().allocate(spaces, num_envs)
        self._parts.append(self._arrays_at)
        return arrays

    def end(self, patience: float | None = None) -> None:
        """See :class:`~xuance_envs.engine.backend.Backend`; the next one may have its memory."""
        super().end(patience)
        while self._parts:
            self.settings.memory.give_back(self._parts.pop())

    def _start(self, index: int, started: Callable[[ProcessDriver], None]) -> None:
        region = self.settings.memory.extend(REGION)
        self._parts.append(region)
        started(self._beside.workers[0].share(region // REGION, *self._split[index]))


def _end(processes: Processes, memory: SharedMemory) -> None:
    try:
        processes.end(HURRY)
    finally:
        memory.close()
