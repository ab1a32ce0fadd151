"""Code that runs in a Ray actor: it steps groups of environments on the actor's own arrays.

Requests and replies are bytes (:mod:`~xuance_envs.engine.ray.messages`). This module does not
depend on the transport, so it can be tested without a cluster.
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
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.pickling_host import PicklingHost
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
    def num_envs(self) -> int:
        return len(self.envs)

    @property
    def reserved(self) -> int:
        """Number of bytes of shared memory that the workers' diagnostics occupy."""
        return len(self.split) * REGION_BYTES


class HostedGroup(ABC):
    """One group of an actor; it executes one request at a time."""

    def __init__(self) -> None:
        self.last_number = 0
        self.lock = threading.Lock()

    @abstractmethod
    def submit(self, group_request: GroupRequest, buffers: Sequence[Any]) -> None:
        """Start executing a request."""

    @abstractmethod
    def answer(self) -> GroupReply:
        """Wait for the reply to the last request; repeated calls return the same reply."""


class BaseGroupActor(ABC):
    """Actor that executes packed requests on groups of environments."""

    def __init__(self, plan: ActorPlan) -> None:
        self._plan = plan
        self._codec: ActorCodec
        self._groups = self._start(plan)
        if plan.spaces is not None:
            self.attach(plan.spaces)

    def attach(self, spaces: bytes) -> None:
        """Allocate the arrays; a later request attaches the groups to them."""
        self._codec = ActorCodec(self._allocated(loads(spaces)), self._plan.split)

    @property
    def num_groups(self) -> int:
        return len(self._groups)

    def addresses_all_groups(self, request: bytes) -> bool:
        return num_requests(request) == len(self._groups)

    def answer(self, number: int, request: bytes, *states: bytes) -> bytes:
        """Return the reply to a request; execute the request if its number is new.

        The main process may therefore repeat a request, and an ended connection may deliver one
        late. Calls may run concurrently.
        """
        return b"".join(self.answer_buffers(number, request, *states))

    def answer_buffers(self, number: int, request: bytes, *states: bytes) -> list[Any]:
        """Do the same as :meth:`answer`, but return buffers and do not copy the arrays."""
        requests, start = unpack_requests(request)
        groups = [self._groups[group_request.group] for group_request in requests]
        with ExitStack() as stack:
            for group in groups:
                stack.enter_context(group.lock)
            buffers = stack.enter_context(self._transferred(states))
            if stepping := [
                group_request.group
                for group_request in requests
                if group_request.code == RequestType.STEP
            ]:
                self._codec.load_actions(request, start, stepping)
            for group, group_request in zip(groups, requests, strict=True):
                if group.last_number < number:
                    group.submit(group_request, [buffers[k] for k in group_request.buffers])
                    group.last_number = number
            answers = [group.answer() for group in groups]
            extents = {
                group_request.group: answer.extents
                for group_request, answer in zip(requests, answers, strict=True)
                if answer.is_outcome
            }
            return pack_replies(answers, self._codec.results(extents) if extents else ())

    @contextmanager
    def _transferred(self, states: Sequence[bytes]) -> Iterator[Sequence[Any]]:
        """Make the states of a request available to its groups until they have all replied."""
        yield states

    @abstractmethod
    def _start(self, plan: ActorPlan) -> Sequence[HostedGroup]:
        """Create the groups, without environments."""

    @abstractmethod
    def _allocated(self, spaces: StepSpaces) -> StepArrays:
        """Allocate the arrays of all groups."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments."""


class SingleGroupActor(BaseGroupActor):
    def _start(self, plan: ActorPlan) -> Sequence[HostedGroup]:
        self._host = PicklingHost(lambda *_: self._arrays, plan.threads)
        return [_InlineGroup(self._host)]

    def _allocated(self, spaces: StepSpaces) -> StepArrays:
        plan = self._plan
        self._arrays = StepArrays.allocate(spaces, plan.num_envs, info_bytes=plan.info_bytes)
        return self._arrays

    @override
    def close(self) -> None:
        self._host.close()


class _InlineGroup(HostedGroup):
    """Group that steps in the actor's process, while :meth:`answer` waits for its reply."""

    def __init__(self, host: PicklingHost) -> None:
        super().__init__()
        self._host = host
        self._request: GroupRequest
        self._transferred: Sequence[Any] = ()
        self._answer: GroupReply | None = None

    @override
    def submit(self, group_request: GroupRequest, buffers: Sequence[Any]) -> None:
        self._request, self._transferred, self._answer = group_request, buffers, None

    @override
    def answer(self) -> GroupReply:
        if self._answer is None:
            # A step with a payload (actions that are objects) is a call.
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
