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

from xuance_envs.engine.backend import Packed
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import Outcome
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.requests import Reply, Request
from xuance_envs.engine.process.doorbell import frame
from xuance_envs.engine.process.processes import Processes
from xuance_envs.engine.process.shared_memory import SharedMemory
from xuance_envs.engine.process.worker_process import StartSettings
from xuance_envs.engine.ray.actor import NO_NEWS, ActorPlan, GroupsActor, HostedGroup
from xuance_envs.engine.ray.messages import Answer, Ask
from xuance_envs.engine.ray.wire import NOTHING, Extents
from xuance_envs.engine.serialization import loads, pack_error
from xuance_envs.errors import WorkerDiedError, WorkerTimeoutError

__all__ = ["MachineActor"]

CONTEXT = "spawn"
"""How its processes start: nothing is known of the actor's own process, but that it has threads."""


class MachineActor(GroupsActor):
    """An actor whose groups are in worker processes, one each."""

    def _start(self, plan: ActorPlan) -> Sequence[HostedGroup]:
        settings = StartSettings(
            multiprocessing.get_context(CONTEXT),
            SharedMemory(reserved=plan.reserved),
            threads=plan.threads,
            spin=0.0,  # from one step to the next there is a network
            own_spin=0.0,
            timeout=plan.timeout,
            start_timeout=plan.start_timeout,
        )
        nothing = Recipe((), ())  # each group is told by the caller
        self._processes = Processes(
            settings, plan.split, nothing, pin=True, info_bytes=plan.info_bytes
        )
        self._lending = threading.Lock()
        self._end = self._processes.ends_with(self)
        self._processes.start()
        if plan.restarts:
            for worker in self._processes.workers:
                worker.siblings = ()
        return [_GroupInProcess(self, index) for index in range(len(plan.split))]

    def _allocated(self, spaces: tuple[Any, Any]) -> StepArrays:
        self._arrays = self._processes.allocate(spaces, self._plan.num_envs)
        for worker in self._processes.workers:
            worker.attach(self._arrays_of(worker))
        self._processes.place()
        return self._arrays

    def _arrays_of(self, worker: Any) -> StepArrays:
        first = self._plan.envs.start
        return self._arrays.slice(worker.lo - first, worker.hi - first)

    def before_step(self, index: int) -> None:
        """Is called before each step of one of its processes."""
        if not index:
            self._processes.before_step()

    def worker(self, index: int) -> Any:
        """The driver of one of its processes."""
        return self._processes.workers[index]

    def replace(self, index: int) -> None:
        """Starts another process in the place of one."""
        worker = self._processes.restart(index)
        worker.attach(self._arrays_of(worker))

    @contextmanager
    def _lent(self, states: Sequence[bytes]) -> Iterator[Sequence[Any]]:
        if not states:
            yield states
            return
        with self._lending:  # one call at a time: others may be about other groups
            try:
                yield states
            finally:
                self._processes.lender.take_back()

    def lend(self, states: Sequence[bytes]) -> Sequence[Any]:
        """Lends its processes states, until the call that brought them has been answered.

        Raises:
            MemoryError: there is too little memory for them.
        """
        return self._processes.lender.lend(states)

    def close(self) -> None:
        """See :class:`~xuance_envs.engine.ray.actor.GroupsActor`."""
        self._processes.end()
        self._end()


class _GroupInProcess(HostedGroup):
    """A group in a worker process of this machine.

    Args:
        machine: the actor.
        index: which of its processes.
    """

    def __init__(self, machine: MachineActor, index: int) -> None:
        super().__init__()
        self._machine = machine
        self._index = index
        self._extents = NOTHING
        self._failure: BaseException | None = None

    def ask(self, ask: Ask, lent: Sequence[Any]) -> None:
        """See :class:`~xuance_envs.engine.ray.actor.HostedGroup`."""
        self._failure = None
        try:
            if ask.command == "rebuild":
                self._begin_anew()
            if lent:
                lent = self._machine.lend(lent)
        except (OSError, MemoryError) as error:  # of which the environments know nothing
            self._failure = error
            return
        worker = self._machine.worker(self._index)
        if ask.code == Request.STEP:
            self._machine.before_step(self._index)
            worker.ask_step(ask.tag, frame(Request.CALL, ask.payload) if ask.payload else None)
        else:
            worker.ask(ask.tag, Packed(ask.command, ask.payload, lent))

    def _begin_anew(self) -> None:
        self._extents = NOTHING
        if self.asked is not None:  # else it has just been started
            self._machine.replace(self._index)

    def answer(self) -> Answer:
        """See :class:`~xuance_envs.engine.ray.actor.HostedGroup`."""
        worker = self._machine.worker(self._index)
        try:
            if self._failure is not None:
                raise self._failure
            code, payload = worker.answer()
        except (WorkerDiedError, WorkerTimeoutError, OSError, MemoryError) as error:
            return Answer(Reply.FAILED, NOTHING, NO_NEWS, pack_error(error))
        if code == Reply.OUTCOME:
            self._note(loads(payload))
        answer = Answer(code, self._extents, NO_NEWS, payload)
        return answer._replace(news=worker.worker.black_box.news()) if answer.is_outcome else answer

    def _note(self, outcome: Outcome) -> None:
        rest = outcome.rest
        if rest is not None and rest.layout is not None and rest.reset_layout is not None:
            self._extents = Extents(rest.layout.extent, rest.reset_layout.extent, rest.masks)
