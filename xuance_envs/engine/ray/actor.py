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

from xuance_envs.engine.data.info_columns import INFO_BYTES
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.host import GroupHost
from xuance_envs.engine.group.requests import Request
from xuance_envs.engine.group.step_clock import NEWS_BYTES
from xuance_envs.engine.process.black_box import REGION
from xuance_envs.engine.ray.messages import Answer, Ask, asked, pack_answers, unpack_asks
from xuance_envs.engine.ray.wire import NOTHING, ActorWire, Extents
from xuance_envs.engine.serialization import loads

__all__ = ["NO_NEWS", "ActorPlan", "GroupActor", "GroupsActor", "HostedGroup"]

NO_NEWS = bytes(NEWS_BYTES)


@dataclass(frozen=True)
class ActorPlan:
    """What an actor is for.

    Attributes:
        split: index of the first environment and index after the last, of each of its groups.
        in_processes: whether each group has a process of its own.
        threads: how many threads numeric libraries may use in each; None leaves them be.
        timeout: seconds each process may take to answer; None for ever.
        start_timeout: seconds each may take to make its environments, likewise.
        restarts: whether a process that is lost is replaced, so that its end is no concern of
            the others.
        info_bytes: room for the arrays in each environment's info.
        spaces: an observation and an action space, pickled, where they are known already.
    """

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
        return len(self.split) * REGION


class HostedGroup(ABC):
    """One group of an actor: asked for one thing at a time, and then for the answer.

    Attributes:
        asked: what it was last asked.
        lock: held while it is asked and until it has answered.
    """

    def __init__(self) -> None:
        self.asked: Ask | None = None
        self.lock = threading.Lock()

    @abstractmethod
    def ask(self, ask: Ask, lent: Sequence[Any]) -> None:
        """Starts what it is asked for.

        Args:
            ask: what.
            lent: what it is lent.
        """

    @abstractmethod
    def answer(self) -> Answer:
        """Waits for the answer, and gives it as often as it is called."""


class GroupsActor(ABC):
    """Bytes around groups of environments.

    Args:
        plan: what it is for.
    """

    def __init__(self, plan: ActorPlan) -> None:
        self._plan = plan
        self._wire: ActorWire
        self._groups = self._start(plan)
        if plan.spaces is not None:
            self.attach(plan.spaces)

    def attach(self, spaces: bytes) -> None:
        """Lays out the arrays; the groups are asked to attach themselves to them later.

        Args:
            spaces: an observation and an action space, pickled.

        Raises:
            MemoryError: there is too little memory for them.
        """
        self._wire = ActorWire(self._allocated(loads(spaces)), self._plan.split)

    @property
    def num_groups(self) -> int:
        """How many groups it has."""
        return len(self._groups)

    def is_for_all(self, request: bytes) -> bool:
        """Whether a request is for all of its groups."""
        return asked(request) == len(self._groups)

    def answer(self, request: bytes, *states: bytes) -> bytes:
        """Has groups do what they are asked; the same request again is not executed again.

        So a caller that was interrupted may ask again. Several may be made at the same time.

        Args:
            request: what they are asked.
            states: what some of them are lent.
        """
        return b"".join(self.parts_of_answer(request, *states))

    def parts_of_answer(self, request: bytes, *states: bytes) -> list[Any]:
        """The same as the buffers that it consists of, the arrays among them."""
        asks, start = unpack_asks(request)
        groups = [self._groups[ask.group] for ask in asks]
        with ExitStack() as stack:
            for group in groups:
                stack.enter_context(group.lock)
            lent = stack.enter_context(self._lent(states))
            if stepping := [ask.group for ask in asks if ask.code == Request.STEP]:
                self._wire.take_actions(request, start, stepping)
            for group, ask in zip(groups, asks, strict=True):
                if group.asked != ask:
                    group.ask(ask, [lent[k] for k in ask.lent])
                    group.asked = ask
            answers = [group.answer() for group in groups]
            extents = {
                ask.group: answer.extents
                for ask, answer in zip(asks, answers, strict=True)
                if answer.is_outcome
            }
            return pack_answers(answers, self._wire.results(extents) if extents else ())

    @contextmanager
    def _lent(self, states: Sequence[bytes]) -> Iterator[Sequence[Any]]:
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


class GroupActor(GroupsActor):
    """An actor with one group, in its own process."""

    def _start(self, plan: ActorPlan) -> Sequence[HostedGroup]:
        self._host = GroupHost(lambda *_: self._arrays, plan.threads)
        return [_GroupHere(self._host)]

    def _allocated(self, spaces: tuple[Any, Any]) -> StepArrays:
        plan = self._plan
        self._arrays = StepArrays.allocate(*spaces, plan.num_envs, info_bytes=plan.info_bytes)
        return self._arrays

    def close(self) -> None:
        """See :class:`GroupsActor`."""
        self._host.close()


class _GroupHere(HostedGroup):
    """A group in this process, which works when it is asked for its answer."""

    def __init__(self, host: GroupHost) -> None:
        super().__init__()
        self._host = host
        self._ask: Ask
        self._lent: Sequence[Any] = ()
        self._answer: Answer | None = None

    def ask(self, ask: Ask, lent: Sequence[Any]) -> None:
        """See :class:`HostedGroup`."""
        self._ask, self._lent, self._answer = ask, lent, None

    def answer(self) -> Answer:
        """See :class:`HostedGroup`."""
        if self._answer is None:
            # A step whose actions are objects, too, has them in a call.
            request = Request.CALL if self._ask.payload else self._ask.code
            code, payload = self._host.answer(request, self._ask.payload, self._lent)
            self._lent = ()
            answer = Answer(code, NOTHING, NO_NEWS, payload)
            if answer.is_outcome:
                group = self._host.group
                answer = answer._replace(extents=Extents(*group.extents), news=group.clock.news())
            self._answer = answer
        return self._answer
