"""Worker process backend: startup, CPU pinning, restart, shutdown and transfer of states."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import CLOSE_TIMEOUT, FORCED_CLOSE_TIMEOUT, Backend, end_and_release
from xuance_envs.engine.by_value import assign_class_ids
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.output_buffers import OutputBuffers
from xuance_envs.engine.data.space_layout import SpaceLayout, StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.protocol import StateTransfer
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.pickled_commands import pickled_functions
from xuance_envs.engine.polling import FdPoller
from xuance_envs.engine.process.common_step import CommonStep
from xuance_envs.engine.process.cpu_pinning import CpuPinner
from xuance_envs.engine.process.driver import ProcessDriver, stop_workers
from xuance_envs.engine.process.shared_memory import SharedBuffer, SharedMemory
from xuance_envs.engine.process.worker_diagnostics import REGION_BYTES
from xuance_envs.engine.process.worker_process import StartSettings, WorkerProcess, worker_start
from xuance_envs.engine.system.current import system

# Bytes above which a group's states are sent through shared memory: the capacity of a pipe on
# Linux. With larger messages, the processes wait for each other.
TRANSFER_THRESHOLD = 1 << 16

# Bytes up to which available memory is not checked: a check takes as long as copying a MiB or two.
UNCHECKED_BYTES = 1 << 24

_STATES_ERROR = (
    "environment states in transfer need {:,} bytes of shared memory, {}. "
    "Save, load or clone fewer environments per call"
)

_backends: weakref.WeakSet[ProcessBackend] = weakref.WeakSet()


def _detach_all_outputs() -> None:
    for backend in list(_backends):
        backend.detach_outputs()


system.before_fork(_detach_all_outputs)


class ProcessBackend(Backend[ProcessDriver]):
    _pickling_hint = ". context='fork' needs no pickling"

    def __init__(
        self,
        settings: StartSettings,
        split: Sequence[tuple[int, int]],
        recipe: Recipe,
        pin: bool = False,
        caller_steps: bool = False,
        info_bytes: int = INFO_BYTES,
        outputs: bool = False,
    ) -> None:
        super().__init__(split, recipe, info_bytes)
        self._wants_outputs = outputs and system.CAN_MAKE_PRIVATE
        self._outputs: OutputBuffers | None = None
        _backends.add(self)
        self.settings = settings
        self.state_transfer: SharedMemoryTransfer = SharedMemoryTransfer(settings.memory)
        self._forked = settings.context.get_start_method() == "fork"
        if self._forked:
            assign_class_ids()
        self._pin = pin
        self._caller_steps = caller_steps

    @override
    def start(self) -> None:
        super().start()
        pids = [driver.worker.pid for driver in self.workers] if self._pin else ()
        self._pinner = CpuPinner(pids, self._caller_steps, available_cpus())
        self.before_step = self._pinner.step if self._pinner.may_pin else None

    @override
    def restart(self, index: int) -> ProcessDriver:
        if self.settings.common is not None:
            self.settings.common.disarm()
        old = self.workers[index].worker
        driver = super().restart(index)
        if old.may_run:
            self.detach_outputs()
        self._pinner.replace(index, driver.worker.pid)
        return driver

    def allocate(self, spaces: StepSpaces, num_envs: int, digests: bool = False) -> StepArrays:
        layout = SpaceLayout(spaces.observation_space)
        if self._wants_outputs and OutputBuffers.are_useful(layout, num_envs):
            with suppress(MemoryError):
                return self._allocate(spaces, num_envs, True, digests)
        return self._allocate(spaces, num_envs, False, digests)

    def _allocate(self, spaces: StepSpaces, num_envs: int, *options: bool) -> StepArrays:
        memory = self.settings.memory
        size = StepArrays.nbytes(spaces, num_envs, self.info_bytes, *options)
        self._arrays_at = memory.allocate(size, [])
        mapped = memory.map(self._arrays_at, size)
        arrays = StepArrays.allocate(spaces, num_envs, mapped, self.info_bytes, *options)
        self._outputs = arrays.outputs
        return arrays

    def detach_outputs(self) -> None:
        """Stop using the output buffers, and make them private to this process."""
        outputs, self._outputs = self._outputs, None
        if outputs is not None:
            outputs.detach(self.settings.memory.fd, self._arrays_at)

    @override
    def poller(self, drivers: Sequence[Driver]) -> FdPoller:
        return FdPoller(drivers, self.settings.main_spin)

    @override
    def common_driver(self, drivers: Sequence[Driver]) -> CommonStep | None:
        common = self.settings.common
        if common is not None:
            common.attach(self.workers, drivers, self.settings.timeout)
        return common

    @override
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        stop_workers(self.workers, close_timeout)

    @override
    def release(self) -> None:
        self.detach_outputs()
        self.settings.memory.close()
        if self.settings.common is not None:
            self.settings.common.close()

    @override
    def register_finalizer(self, owner: Any) -> Callable[[], Any]:
        # Unlike __del__, this also runs at interpreter exit, before multiprocessing joins workers.
        return Finalize(owner, end_and_release, args=(self, os.getpid()), exitpriority=100)

    def _start(self, index: int, started: Callable[[ProcessDriver], None]) -> None:
        lo, hi = self._split[index]
        inherited = self.recipe.env_fns[lo:hi] if self._forked else ()
        try:
            with worker_start(self.settings.context.get_start_method()):
                name = f"xuance_envs-{lo}-{hi - 1}"
                worker = WorkerProcess(self.settings, index, name, inherited)
                started(ProcessDriver(worker, self.settings, lo, hi, index))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
                raise
            raise OSError(
                error.errno,
                f"{error.strerror}: could not start worker {index + 1} of {len(self._split)}. Each "
                "worker needs a process and up to five file descriptors. Raise the limits "
                "(ulimit -n, ulimit -u), or use fewer workers with a larger in_series",
            ) from error

    def _end(self, index: int) -> None:
        stop_workers([self.workers[index]], FORCED_CLOSE_TIMEOUT)

    def _attach_arguments(self, lo: int, hi: int) -> tuple[Any, ...]:
        arrays = self._arrays
        options = self.info_bytes, arrays.outputs is not None, arrays.digests is not None
        return self._spaces, len(self.recipe), self._arrays_at, lo, hi, *options

    @override
    def _functions(self, lo: int, hi: int) -> bytes | None:
        if self._forked:  # the worker has them
            return None
        return pickled_functions(self.recipe.env_fns[lo:hi], lo, self._pickling_hint)


class SharedProcessBackend(ProcessBackend):
    """Backend of a group in another vec env's worker process, whose groups are used in turn."""

    _pickling_hint = ""

    def __init__(self, host_backend: ProcessBackend, recipe: Recipe) -> None:
        split = [(0, len(recipe))]
        super().__init__(host_backend.settings, split, recipe, info_bytes=host_backend.info_bytes)
        self._host_backend = host_backend
        self._forked = False  # the process exists already and inherits nothing
        self._parts: list[int] = []
        self.settings.memory.add_user()

    @override
    def allocate(self, spaces: StepSpaces, num_envs: int, digests: bool = False) -> StepArrays:
        arrays = super().allocate(spaces, num_envs, digests)
        self._parts.append(self._arrays_at)
        return arrays

    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        super().end(close_timeout)
        while self._parts:
            self.settings.memory.recycle(self._parts.pop())

    def _start(self, index: int, started: Callable[[ProcessDriver], None]) -> None:
        region = self.settings.memory.allocate(REGION_BYTES, self._parts)
        host = self._host_backend.workers[0]
        started(host.add_group(region // REGION_BYTES, *self._split[index]))


class SharedMemoryTransfer(StateTransfer):
    max_inline_bytes = TRANSFER_THRESHOLD

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._starts: list[int] = []
        # Exported states and their buffers, by id of the state.
        self._exported: dict[int, tuple[bytes, SharedBuffer]] = {}

    @override
    def should_transfer(self, states: Sequence[bytes | SharedBuffer]) -> bool:
        sizes = [len(state) for state in states if not isinstance(state, SharedBuffer)]
        return len(sizes) < len(states) or sum(sizes) > TRANSFER_THRESHOLD

    def export(self, states: Sequence[bytes | SharedBuffer]) -> list[SharedBuffer]:
        new = [s for s in states if isinstance(s, bytes) and id(s) not in self._exported]
        for state, part in zip(new, self.allocate([len(state) for state in new]), strict=True):
            part.write(state)
            self._exported[id(state)] = state, part
        return [s if isinstance(s, SharedBuffer) else self._exported[id(s)][1] for s in states]

    @override
    def allocate(self, sizes: Sequence[int]) -> list[SharedBuffer]:
        parts: list[SharedBuffer] = []
        if sizes:
            how = _STATES_ERROR, UNCHECKED_BYTES
            start = self._memory.allocate(sum(sizes), self._starts, *how)
            for size in sizes:
                parts.append(SharedBuffer(self._memory.fd, start, size))
                start += size
        return parts

    @override
    def read(self, state: Any) -> bytes:
        return state.read() if isinstance(state, SharedBuffer) else bytes(state)

    @override
    def release(self) -> None:
        self._exported = {}
        while self._starts:
            self._memory.free(self._starts[-1])
            self._starts.pop()
