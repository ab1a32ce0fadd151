"""The inside of an actor: groups of environments on arrays of its own.

A request is bytes, and so is its one reply; :mod:`~xuance_envs.engine.ray.messages` says what is in
them. Nothing here knows what brings them, so that it can be tried without a cluster.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from xuance_envs._override import override
from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.host import GroupHost
from xuance_envs.engine.group.protocol import RequestType
from xuance_envs.engine.group.step_clock import TIMING_DELTA_BYTES
from xuance_envs.engine.process.worker_diagnostics import REGION_BYTES
from xuance_envs.engine.ray.messages import (
    GroupReply,
    GroupRequest,
    num_requests,
    pack_replies,
    unpack_requests,
)
from xuance_envs.engine.ray.step_codec import NO_EXTENTS, ActorCodec, Extents
from xuance_envs.engine.serialization import loads

__all__ = ["NO_TIMING", "ActorPlan", "BaseGroupActor", "HostedGroup", "SingleGroupActor"]

NO_TIMING = bytes(TIMING_DELTA_BYTES)


@dataclass(frozen=True)
class ActorPlan:
    """What an actor is for."""

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
        """The indices of its environments."""
        return range(self.split[0][0], self.split[-1][1])

    @property
    def num_envs(self) -> int:
        """How many environments there are in it."""
        return len(self.envs)

    @property
    def reserved(self) -> int:
        """Bytes of the memory that its processes share which come before the arrays."""
        return len(self.split) * REGION_BYTES


class HostedGroup(ABC):
    """One group of an actor: asked for one thing at a time, and then for the answer."""

    def __init__(self) -> None:
        self.asked: GroupRequest | None = None
        self.lock = threading.Lock()

    @abstractmethod
    def submit(self, group_request: GroupRequest, lent: Sequence[Any]) -> None:
        """Starts what it is asked for."""

    @abstractmethod
    def answer(self) -> GroupReply:
        """Waits for the answer, and gives it as often as it is called."""


class BaseGroupActor(ABC):
    """Bytes around groups of environments."""

    def __init__(self, plan: ActorPlan) -> None:
        self._plan = plan
        self._codec: ActorCodec
        self._groups = self._start(plan)
        if plan.spaces is not None:
            self.attach(plan.spaces)

    def attach(self, spaces: bytes) -> None:
        """Lays out the arrays; the groups are asked to attach themselves to them later."""
        self._codec = ActorCodec(self._allocated(loads(spaces)), self._plan.split)

    @property
    def num_groups(self) -> int:
        """How many groups it has."""
        return len(self._groups)

    def addresses_all_groups(self, request: bytes) -> bool:
        """Whether a request is for all of its groups."""
        return num_requests(request) == len(self._groups)

    def answer(self, request: bytes, *states: bytes) -> bytes:
        """Has groups do what they are asked; the same request again is not executed again.

        So a caller that was interrupted may ask again. Several may be made at the same time.
        """
        return b"".join(self.answer_buffers(request, *states))

    def answer_buffers(self, request: bytes, *states: bytes) -> list[Any]:
        """The same as the buffers that it consists of, the arrays among them."""
        requests, start = unpack_requests(request)
        groups = [self._groups[group_request.group] for group_request in requests]
        with ExitStack() as stack:
            for group in groups:
                stack.enter_context(group.lock)
            lent = stack.enter_context(self._transferred(states))
            if stepping := [
                group_request.group
                for group_request in requests
                if group_request.code == RequestType.STEP
            ]:
                self._codec.load_actions(request, start, stepping)
            for group, group_request in zip(groups, requests, strict=True):
                if group.asked != group_request:
                    group.submit(group_request, [lent[k] for k in group_request.lent])
                    group.asked = group_request
            answers = [group.answer() for group in groups]
            extents = {
                group_request.group: answer.extents
                for group_request, answer in zip(requests, answers, strict=True)
                if answer.is_outcome
            }
            return pack_replies(answers, self._codec.results(extents) if extents else ())

    @contextmanager
    def _transferred(self, states: Sequence[bytes]) -> Iterator[Sequence[Any]]:
        """Brings its groups states; they may be at them until all have answered."""
        yield states

    @abstractmethod
    def _start(self, plan: ActorPlan) -> Sequence[HostedGroup]:
        """Makes the groups, which have no environments yet."""

    @abstractmethod
    def _allocated(self, spaces: tuple[Any, Any]) -> StepArrays:
        """The arrays of all groups."""

    @abstractmethod
    def close(self) -> None:
        """Closes the environments."""


class SingleGroupActor(BaseGroupActor):
    """An actor with one group, in its own process."""

    def _start(self, plan: ActorPlan) -> Sequence[HostedGroup]:
        self._host = GroupHost(lambda *_: self._arrays, plan.threads)
        return [_InlineGroup(self._host)]

    def _allocated(self, spaces: tuple[Any, Any]) -> StepArrays:
        plan = self._plan
        self._arrays = StepArrays.allocate(*spaces, plan.num_envs, info_bytes=plan.info_bytes)
        return self._arrays

    @override
    def close(self) -> None:
        self._host.close()


class _InlineGroup(HostedGroup):
    """A group in this process, which works when it is asked for its answer."""

    def __init__(self, host: GroupHost) -> None:
        super().__init__()
        self._host = host
        self._request: GroupRequest
        self._transferred: Sequence[Any] = ()
        self._answer: GroupReply | None = None

    @override
    def submit(self, group_request: GroupRequest, lent: Sequence[Any]) -> None:
        self._request, self._transferred, self._answer = group_request, lent, None

    @override
    def answer(self) -> GroupReply:
        if self._answer is None:
            # A step whose actions are objects, too, has them in a call.
            request = RequestType.CALL if self._request.payload else self._request.code
            code, payload = self._host.answer(request, self._request.payload, self._transferred)
            self._transferred = ()
            answer = GroupReply(code, NO_EXTENTS, NO_TIMING, payload)
            if answer.is_outcome:
                group = self._host.group
                answer = answer._replace(
                    extents=Extents(*group.extents), timing_delta=group.clock.timing_delta()
                )
            self._answer = answer
        return self._answer
