"""Groups of an actor: one group in the actor's process, or one worker process per group.

Worker processes are those of a process backend, and share memory with their actor. The actor
signals steps, packs results from the shared arrays into one reply, and forwards all other commands
and replies.
"""

from __future__ import annotations

import multiprocessing
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_frame import NO_EXTENTS, Extents
from xuance_envs.engine.group.host import PicklingHost
from xuance_envs.engine.group.protocol import ReplyType, RequestType, StateTransfer
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.step_clock import TIMING_DELTA_BYTES, timing_delta
from xuance_envs.engine.pickled_commands import PackedCommand
from xuance_envs.engine.process.driver import ProcessDriver
from xuance_envs.engine.process.process_backend import ProcessBackend
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.worker_diagnostics import REGION_BYTES
from xuance_envs.engine.process.worker_process import StartSettings
from xuance_envs.engine.ray.messages import GroupReply
from xuance_envs.engine.serialization import loads, pack_error
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError

# Start method of worker processes; fork is unsafe, because the actor's process has threads.
CONTEXT = "spawn"

NO_TIMING = bytes(TIMING_DELTA_BYTES)


@dataclass(frozen=True)
class ActorPlan:
    """Configuration of an actor: its groups, their resources and limits."""

    split: tuple[tuple[int, int], ...]
    in_processes: bool = False
    threads: int | None = None
    timeout: float | None = None
    start_timeout: float | None = None
    restarts: bool = False
    info_bytes: int = INFO_BYTES
    spaces: bytes | None = None

    @property
    def envs(self) -> range:
        return range(self.split[0][0], self.split[-1][1])

    @property
    def reserved(self) -> int:
        """Number of bytes of shared memory that the workers' diagnostics occupy."""
        return len(self.split) * REGION_BYTES


class HostedGroup(ABC):
    """One group of an actor; it executes one command at a time."""

    def __init__(self) -> None:
        self.last_number = 0
        self.lock = threading.Lock()

    @abstractmethod
    def submit(self, number: int, packed: PackedCommand) -> None:
        """Start executing a command."""

    @abstractmethod
    def reply(self) -> GroupReply:
        """Wait for the reply to the last command; repeated calls return the same reply."""


class InlineGroup(HostedGroup):
    """Group of an actor that has no other groups: its environments run in the actor's process."""

    def __init__(self, plan: ActorPlan) -> None:
        super().__init__()
        self._plan = plan
        self._host = PicklingHost(lambda *_: self._arrays, plan.threads)
        self._reply: GroupReply
        self.groups: Sequence[HostedGroup] = [self]
        self.state_transfer = StateTransfer()

    def allocate(self, spaces: StepSpaces) -> StepArrays:
        plan = self._plan
        self._arrays = StepArrays.allocate(spaces, len(plan.envs), info_bytes=plan.info_bytes)
        return self._arrays

    def close(self) -> None:
        self._host.close()

    @override
    def submit(self, number: int, packed: PackedCommand) -> None:
        in_arrays = packed.command == "step" and not packed.payload
        request = RequestType.STEP if in_arrays else RequestType.CALL
        code, payload = self._host.answer(request, packed.payload, packed.buffers)
        reply = GroupReply(code, NO_EXTENTS, NO_TIMING, payload)
        if reply.is_outcome:
            group = self._host.group
            extents, delta = Extents(*group.extents), timing_delta(group.clock.memory)
            reply = reply._replace(extents=extents, timing_delta=delta)
        self._reply = reply

    @override
    def reply(self) -> GroupReply:
        return self._reply


class WorkerHosting:
    """One worker process per group, and their arrays."""

    def __init__(self, plan: ActorPlan) -> None:
        settings = StartSettings(
            multiprocessing.get_context(CONTEXT),
            SharedMemory(reserved=plan.reserved),
            threads=plan.threads,
            spin=0.0,  # network latency between steps is too long for spinning
            main_spin=0.0,
            timeout=plan.timeout,
            start_timeout=plan.start_timeout,
        )
        nothing = Recipe((), ())  # requests bring the groups' functions
        self._plan = plan
        self.backend = ProcessBackend(
            settings, plan.split, nothing, pin=True, info_bytes=plan.info_bytes
        )
        self.state_transfer = self.backend.state_transfer
        self._end = self.backend.register_finalizer(self)
        self.backend.start()
        if plan.restarts:
            for worker in self.backend.workers:
                worker.siblings = ()
        indices = range(len(plan.split))
        self.groups: Sequence[HostedGroup] = [_WorkerGroup(self, index) for index in indices]

    def allocate(self, spaces: StepSpaces) -> StepArrays:
        self._arrays = self.backend.allocate(spaces, len(self._plan.envs))
        for worker in self.backend.workers:
            self.attach(worker)
        return self._arrays

    def attach(self, worker: ProcessDriver) -> None:
        first = self._plan.envs.start
        worker.attach(self._arrays.slice(worker.lo - first, worker.hi - first))

    def close(self) -> None:
        self.backend.end()
        self._end()


class _WorkerGroup(HostedGroup):
    def __init__(self, hosting: WorkerHosting, index: int) -> None:
        super().__init__()
        self._hosting = hosting
        self._index = index
        self._extents = NO_EXTENTS
        self._failure: BaseException | None = None

    @property
    def _worker(self) -> Any:
        return self._hosting.backend.workers[self._index]

    @override
    def submit(self, number: int, packed: PackedCommand) -> None:
        self._failure = None
        try:
            if packed.command == "rebuild" and self.last_number:  # otherwise the process is new
                self._extents = NO_EXTENTS
                self._hosting.attach(self._hosting.backend.restart(self._index))
            if buffers := packed.buffers:
                buffers = self._hosting.state_transfer.export(buffers)
        except (OSError, MemoryError) as error:  # the worker was not involved
            self._failure = error
            return
        before_step = self._hosting.backend.before_step
        if packed.command == "step" and not self._index and before_step is not None:
            before_step()
        if packed.command == "step" and not packed.payload:
            self._worker.submit_step(number, None)
        else:
            self._worker.submit(number, packed._replace(buffers=buffers))

    @override
    def reply(self) -> GroupReply:
        worker = self._worker
        try:
            if self._failure is not None:
                raise self._failure
            code, payload = worker.raw_reply()
        except (WorkerDiedError, WorkerTimeoutError, OSError, MemoryError) as error:
            return GroupReply(ReplyType.FAILED, NO_EXTENTS, NO_TIMING, pack_error(error))
        rest = loads(payload).rest if code == ReplyType.OUTCOME else None
        if rest is not None and rest.layout is not None:
            self._extents = Extents(rest.layout.extent, rest.reset_layout.extent, rest.masks)
        reply = GroupReply(code, self._extents, NO_TIMING, payload)
        if reply.is_outcome:
            reply = reply._replace(timing_delta=worker.worker.diagnostics.timing_delta())
        return reply
