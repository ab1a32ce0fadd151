"""Requests and replies between a driver and its group, for every transport.

A driver waits for the reply before its next request; only ``CLOSE`` may come at any time.
In a worker process with several groups, ``GROUP`` precedes each request; a new number creates
a group. ``BUFFERS`` precedes a call whose last argument is large data in shared memory.
``FOLLOW`` precedes a step. From then on, common wake-ups
(:mod:`~xuance_envs.engine.process.common_step`) also start the worker's steps.

=======  =====================================  =========================================
request  payload                                replies
=======  =====================================  =========================================
STEP     none: actions are in the arrays        OK, EPISODE_ENDED, OUTCOME, FAILED
CALL     (command, arguments)                   OK, EPISODE_ENDED, OUTCOME, VALUE, FAILED
CLOSE    none                                   none: the worker exits
GROUP    number of the group                    none: the group's request follows
BUFFERS  start and size of each part            none: a call follows
FOLLOW   none                                   none: a step follows
LEAVE    none: closes this group only           OK
=======  =====================================  =========================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol

from xuance_envs.engine.group.outcome import EPISODE_ENDED, OK, Outcome


class RequestType(IntEnum):
    STEP = ord("s")
    CALL = ord("c")
    CLOSE = ord("q")
    GROUP = ord("g")
    BUFFERS = ord("b")
    FOLLOW = ord("w")
    LEAVE = ord("l")


class ReplyType(IntEnum):
    """Type of a worker's reply; OK and EPISODE_ENDED are outcomes without a payload."""

    OK = ord("d")
    EPISODE_ENDED = ord("e")
    OUTCOME = ord("o")
    VALUE = ord("v")
    FAILED = ord("f")


class StateBuffer(Protocol):
    """Memory that a command may read or write."""

    def read(self) -> bytes: ...

    def write(self, data: bytes) -> None: ...


# Outcomes of replies without a payload.
OUTCOME_OF_REPLY: Mapping[int, Outcome] = {ReplyType.OK: OK, ReplyType.EPISODE_ENDED: EPISODE_ENDED}


class StateTransfer:
    """Transfer of environment states; this base class sends all of them inside commands."""

    max_inline_bytes: int | None = None

    def should_transfer(self, states: Sequence[Any]) -> bool:
        """Return whether the states for one group are too large for a command."""
        return False

    def export(self, states: Sequence[Any]) -> Sequence[Any]:
        """Return references to the states, valid until :meth:`release`."""
        return states

    def allocate(self, sizes: Sequence[int]) -> Sequence[Any]:
        """Return references to buffers of these sizes, to which groups write states."""
        return sizes

    def read(self, state: Any) -> bytes:
        """Return a state's bytes, whether it is inline or a reference."""
        return bytes(state)

    def release(self) -> None:
        """Release all exported and allocated buffers; repeated calls do nothing."""
