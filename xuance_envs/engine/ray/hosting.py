"""Groups of environments of an actor, in the actor's process or in one worker process each."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from xuance_envs._override import override
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_frame import NO_EXTENTS, Extents
from xuance_envs.engine.group.pickling_host import PicklingHost
from xuance_envs.engine.group.protocol import RequestType, StateTransfer
from xuance_envs.engine.group.step_clock import TIMING_DELTA_BYTES, timing_delta
from xuance_envs.engine.pickled_commands import PackedCommand
from xuance_envs.engine.process.worker_diagnostics import REGION_BYTES
from xuance_envs.engine.ray.messages import GroupReply

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
    """The only group of an actor, in the actor's process, and its arrays."""

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
