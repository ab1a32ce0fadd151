"""Actor with worker processes that share memory with it, one per group.

The workers are those of a process backend. The actor signals steps, packs results from the shared
arrays into one reply, and forwards all other requests and replies.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import Outcome
from xuance_envs.engine.group.protocol import ReplyType, RequestType
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.pickled_commands import PackedCommand
from xuance_envs.engine.process.channel import frame
from xuance_envs.engine.process.process_backend import ProcessBackend
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.worker_process import StartSettings
from xuance_envs.engine.ray.actor import NO_TIMING, ActorPlan, BaseGroupActor, HostedGroup
from xuance_envs.engine.ray.messages import GroupReply, GroupRequest
from xuance_envs.engine.ray.step_codec import NO_EXTENTS, Extents
from xuance_envs.engine.serialization import loads, pack_error
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError

CONTEXT = "spawn"
"""Start method of worker processes; fork is unsafe, because the actor's process has threads."""


class MultiProcessActor(BaseGroupActor):
    def _start(self, plan: ActorPlan) -> Sequence[HostedGroup]:
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

    def _allocated(self, spaces: StepSpaces) -> StepArrays:
        self._arrays = self._backend.allocate(spaces, self._plan.num_envs)
        for worker in self._backend.workers:
            worker.attach(self._arrays_of(worker))
        self._backend.start_pinning()
        return self._arrays

    def _arrays_of(self, worker: Any) -> StepArrays:
        first = self._plan.envs.start
        return self._arrays.slice(worker.lo - first, worker.hi - first)

    def before_step(self, index: int) -> None:
        if not index:
            self._backend.before_step()

    def worker(self, index: int) -> Any:
        return self._backend.workers[index]

    def replace(self, index: int) -> None:
        worker = self._backend.restart(index)
        worker.attach(self._arrays_of(worker))

    @contextmanager
    def _transferred(self, states: Sequence[bytes]) -> Iterator[Sequence[Any]]:
        if not states:
            yield states
            return
        with self._transfer_lock:  # calls to different groups run concurrently
            try:
                yield states
            finally:
                self._backend.state_transfer.release()

    def export(self, states: Sequence[bytes]) -> Sequence[Any]:
        """Share states with the worker processes until the current request is answered."""
        return self._backend.state_transfer.export(states)

    @override
    def close(self) -> None:
        self._backend.end()
        self._end()


class _WorkerProcessGroup(HostedGroup):
    def __init__(self, actor: MultiProcessActor, index: int) -> None:
        super().__init__()
        self._actor = actor
        self._index = index
        self._extents = NO_EXTENTS
        self._failure: BaseException | None = None

    @override
    def submit(self, group_request: GroupRequest, buffers: Sequence[Any]) -> None:
        self._failure = None
        try:
            if group_request.command == "rebuild":
                self._restart_worker()
            if buffers:
                buffers = self._actor.export(buffers)
        except (OSError, MemoryError) as error:  # the worker was not involved
            self._failure = error
            return
        worker = self._actor.worker(self._index)
        if group_request.code == RequestType.STEP:
            self._actor.before_step(self._index)
            worker.submit_step(
                group_request.tag,
                frame(RequestType.CALL, group_request.payload) if group_request.payload else None,
            )
        else:
            worker.submit(
                group_request.tag,
                PackedCommand(group_request.command, group_request.payload, buffers),
            )

    def _restart_worker(self) -> None:
        self._extents = NO_EXTENTS
        if self.last_number:  # otherwise the process is new
            self._actor.replace(self._index)

    @override
    def answer(self) -> GroupReply:
        worker = self._actor.worker(self._index)
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
