"""The inside of an actor that has a machine's share: worker processes on memory shared with it.

They are those of a vector environment on one machine. The actor rings their doorbells, and puts
what they leave in the shared arrays into one reply; what else they are asked and answer goes
through it as it is.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.backend import PackedCommand
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import Outcome
from xuance_envs.engine.group.protocol import ReplyType, RequestType
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.process.channel import frame
from xuance_envs.engine.process.process_backend import ProcessBackend
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.worker_process import StartSettings
from xuance_envs.engine.ray.actor import NO_TIMING, ActorPlan, BaseGroupActor, HostedGroup
from xuance_envs.engine.ray.messages import GroupReply, GroupRequest
from xuance_envs.engine.ray.step_codec import NO_EXTENTS, Extents
from xuance_envs.engine.serialization import loads, pack_error
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError

__all__ = ["MultiProcessActor"]

CONTEXT = "spawn"
"""How its processes start: nothing is known of the actor's own process, but that it has threads."""


class MultiProcessActor(BaseGroupActor):
    """An actor whose groups are in worker processes, one each."""

    def _start(self, plan: ActorPlan) -> Sequence[HostedGroup]:
        settings = StartSettings(
            multiprocessing.get_context(CONTEXT),
            SharedMemory(reserved=plan.reserved),
            threads=plan.threads,
            spin=0.0,  # from one step to the next there is a network
            main_spin=0.0,
            timeout=plan.timeout,
            start_timeout=plan.start_timeout,
        )
        nothing = Recipe((), ())  # each group is told by the caller
        self._backend = ProcessBackend(
            settings, plan.split, nothing, pin=True, info_bytes=plan.info_bytes
        )
        self._transfer_lock = threading.Lock()
        self._end = self._backend.register_finalizer(self)
        self._backend.start()
        if plan.restarts:
            for worker in self._backend.workers:
                worker.siblings = ()
        return [_WorkerProcessGroup(self, index) for index in range(len(plan.split))]

    def _allocated(self, spaces: tuple[Any, Any]) -> StepArrays:
        self._arrays = self._backend.allocate(spaces, self._plan.num_envs)
        for worker in self._backend.workers:
            worker.attach(self._arrays_of(worker))
        self._backend.start_pinning()
        return self._arrays

    def _arrays_of(self, worker: Any) -> StepArrays:
        first = self._plan.envs.start
        return self._arrays.slice(worker.lo - first, worker.hi - first)

    def before_step(self, index: int) -> None:
        """Is called before each step of one of its processes."""
        if not index:
            self._backend.before_step()

    def worker(self, index: int) -> Any:
        """The driver of one of its processes."""
        return self._backend.workers[index]

    def replace(self, index: int) -> None:
        """Starts another process in the place of one."""
        worker = self._backend.restart(index)
        worker.attach(self._arrays_of(worker))

    @contextmanager
    def _transferred(self, states: Sequence[bytes]) -> Iterator[Sequence[Any]]:
        if not states:
            yield states
            return
        with self._transfer_lock:  # one call at a time: others may be about other groups
            try:
                yield states
            finally:
                self._backend.state_transfer.release()

    def export(self, states: Sequence[bytes]) -> Sequence[Any]:
        """Lends its processes states, until the call that brought them has been answered."""
        return self._backend.state_transfer.export(states)

    @override
    def close(self) -> None:
        self._backend.end()
        self._end()


class _WorkerProcessGroup(HostedGroup):
    """A group in a worker process of this machine."""

    def __init__(self, machine: MultiProcessActor, index: int) -> None:
        super().__init__()
        self._machine = machine
        self._index = index
        self._extents = NO_EXTENTS
        self._failure: BaseException | None = None

    @override
    def submit(self, group_request: GroupRequest, lent: Sequence[Any]) -> None:
        self._failure = None
        try:
            if group_request.command == "rebuild":
                self._restart_worker()
            if lent:
                lent = self._machine.export(lent)
        except (OSError, MemoryError) as error:  # of which the environments know nothing
            self._failure = error
            return
        worker = self._machine.worker(self._index)
        if group_request.code == RequestType.STEP:
            self._machine.before_step(self._index)
            worker.submit_step(
                group_request.tag,
                frame(RequestType.CALL, group_request.payload) if group_request.payload else None,
            )
        else:
            worker.submit(
                group_request.tag, PackedCommand(group_request.command, group_request.payload, lent)
            )

    def _restart_worker(self) -> None:
        self._extents = NO_EXTENTS
        if self.asked is not None:  # else it has just been started
            self._machine.replace(self._index)

    @override
    def answer(self) -> GroupReply:
        worker = self._machine.worker(self._index)
        try:
            if self._failure is not None:
                raise self._failure
            code, payload = worker.raw_reply()
        except (WorkerDiedError, WorkerTimeoutError, OSError, MemoryError) as error:
            return GroupReply(ReplyType.FAILED, NO_EXTENTS, NO_TIMING, pack_error(error))
        if code == ReplyType.OUTCOME:
            self._record_extents(loads(payload))
        answer = GroupReply(code, self._extents, NO_TIMING, payload)
        return (
            answer._replace(timing_delta=worker.worker.diagnostics.timing_delta())
            if answer.is_outcome
            else answer
        )

    def _record_extents(self, outcome: Outcome) -> None:
        rest = outcome.rest
        if rest is not None and rest.layout is not None and rest.reset_layout is not None:
            self._extents = Extents(rest.layout.extent, rest.reset_layout.extent, rest.masks)
