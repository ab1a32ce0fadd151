"""What a group of environments in a worker is asked, and what it answers.

Its caller sends one request and nothing more until it has the reply; only ``CLOSE`` may come at
any time. How a message travels is the business of the worker's kind.

A worker process may have several groups. Then ``GROUP`` goes before each request, and says whose
it is; a number that is new makes another group.

A command may be lent bytes that would fill its pipe: ``BUFFERS`` goes before it, and says where they
are in the shared memory. They are the last of its arguments.

=======  =====================================  ===================================
request  payload                                replies
=======  =====================================  ===================================
STEP     none: the actions are in the arrays    OK, EPISODE_ENDED, OUTCOME, FAILED
CALL     (name of a command, its arguments)     OK, EPISODE_ENDED, OUTCOME, VALUE, FAILED
CLOSE    none                                   none: the worker ends
GROUP    the group's number                     none: a request for it follows
BUFFERS     where each part begins, and its size   none: a call follows
LEAVE    none: the group's environments are     OK
         closed, the others go on
=======  =====================================  ===================================
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

from xuance_envs.engine.group.outcome import EPISODE_ENDED, OK, Outcome

__all__ = ["OUTCOME_OF_REPLY", "ReplyType", "RequestType", "StateBuffer"]


class RequestType(IntEnum):
    """What a worker is asked to do."""

    STEP = ord("s")
    CALL = ord("c")
    CLOSE = ord("q")
    GROUP = ord("g")
    BUFFERS = ord("b")
    LEAVE = ord("l")


class ReplyType(IntEnum):
    """What a worker answers: outcomes, of which only the third has a payload; a value; an error."""

    OK = ord("d")
    EPISODE_ENDED = ord("e")
    OUTCOME = ord("o")
    VALUE = ord("v")
    FAILED = ord("f")


class StateBuffer(Protocol):
    """Bytes that a command is lent."""

    def read(self) -> bytes:
        """All of them."""

    def write(self, data: bytes) -> None:
        """Puts others there."""


OUTCOME_OF_REPLY: Mapping[int, Outcome] = {ReplyType.OK: OK, ReplyType.EPISODE_ENDED: EPISODE_ENDED}
"""The outcomes that are all in the arrays."""
