"""Implementation of the Ray actors that step groups of environments; it does not import Ray.

An actor has its own arrays. Requests and replies are bytes
(:mod:`~xuance_envs.engine.ray.messages`), which arrive as calls or through a direct connection.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from xuance_envs.engine.ray.authenticated_connection import Listener
from xuance_envs.engine.ray.connection import ConnectionServer
from xuance_envs.engine.ray.hosting import ActorPlan, InlineGroup, WorkerHosting
from xuance_envs.engine.ray.messages import (
    ActorCodec,
    pack_replies,
    stepping_groups,
    unpack_requests,
)
from xuance_envs.engine.serialization import loads


class GroupActor:
    def __init__(self, plan: ActorPlan) -> None:
        self._plan = plan
        self._hosting: InlineGroup | WorkerHosting = (
            WorkerHosting(plan) if plan.in_processes else InlineGroup(plan)
        )
        self._transfer_lock = threading.Lock()
        self._codec: ActorCodec
        self._listener: Listener
        if plan.spaces is not None:
            self.attach(plan.spaces)

    def attach(self, spaces: bytes) -> None:
        """Allocate the arrays; a later request attaches the groups to them."""
        self._codec = ActorCodec(self._hosting.allocate(loads(spaces)), self._plan.split)

    def answer(self, number: int, request: bytes, *states: bytes) -> bytes:
        """Return the reply to a request; a repeated request is executed only once."""
        return b"".join(self.answer_buffers(number, request, *states))

    def answer_buffers(self, number: int, request: bytes, *states: bytes) -> list[Any]:
        """Answer like :meth:`answer`, but return buffers instead of a copy of the arrays."""
        commands, start = unpack_requests(request, states)
        groups = {group: self._hosting.groups[group] for group in commands}
        with ExitStack() as stack:
            for hosted in groups.values():
                stack.enter_context(hosted.lock)
            if states:
                stack.enter_context(self._transfer_lock)
                stack.callback(self._hosting.state_transfer.release)
            if stepping := stepping_groups(commands):
                self._codec.load_actions(request, start, stepping)
            for group, hosted in groups.items():
                if hosted.last_number < number:
                    hosted.submit(number, commands[group])
                    hosted.last_number = number
            replies = {group: hosted.reply() for group, hosted in groups.items()}
            extents = {group: each.extents for group, each in replies.items() if each.is_outcome}
            results = self._codec.results(extents) if extents else ()
            return pack_replies(replies.values(), results)

    def close(self) -> None:
        self._hosting.close()

    # -- direct connection ------------------------------------------------------------

    def listen_at(self, host: str) -> tuple[str, int, bytes]:
        self._listener = Listener(host)
        return *self._listener.address, self._listener.key

    def serve(self, seconds: float) -> None:
        """Accept the main process's connection, and answer requests until it ends."""
        listener = self._listener
        try:
            connection = listener.accept(seconds)
        except TimeoutError:
            return
        num_groups, is_ended = len(self._hosting.groups), lambda: self.is_ended(listener.key)
        with connection:
            ConnectionServer(connection, self.answer_buffers, num_groups, is_ended).run()

    def is_ended(self, key: bytes) -> bool:
        """Return True if the main process has ended the connection with this key."""
        return False
