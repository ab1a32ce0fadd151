"""The inside of an actor: one group of environments on arrays of its own.

A request is bytes, and so is its one reply; :mod:`~xuance_envs.engine.ray.wire` says what is in
a step's. Nothing here knows what brings them, so that it can be tried without a cluster.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.host import GroupHost, pack_result
from xuance_envs.engine.group.outcome import Outcome
from xuance_envs.engine.group.step_clock import NEWS_BYTES
from xuance_envs.engine.ray.wire import GroupWire
from xuance_envs.engine.serialization import dumps_for_caller, loads, pack_error

__all__ = ["OUTCOME", "REQUEST", "Answer", "Ask", "GroupActor"]

REQUEST = struct.Struct("<qB")
"""How a request begins: its number and its :class:`Ask`."""

OUTCOME = struct.Struct(f"<4B{NEWS_BYTES}s")
"""How an outcome begins: its :class:`Answer`, whether episodes ended, how many columns of infos and
of resets' infos are in use, and the news of the group's clock."""


class Ask(IntEnum):
    """What is asked for: a step, whose actions follow; a command, pickled.

    Of the actions, the arrays come first, and then, pickled, those that are held as objects.
    """

    STEP = ord("s")
    COMMAND = ord("c")


class Answer(IntEnum):
    """What is answered: an outcome that is all in arrays, or not all; a value; an error."""

    PLAIN = ord("p")
    OUTCOME = ord("o")
    VALUE = ord("v")
    FAILED = ord("f")


class GroupActor:
    """Executes requests on one group of environments.

    Args:
        threads: how many threads numeric libraries may use; None leaves them be.
    """

    def __init__(self, threads: int | None) -> None:
        self._host = GroupHost(self._make_arrays, threads)
        self._wire: GroupWire
        self._request = b""
        self._reply = b""

    def answer(self, request: bytes) -> bytes:
        """Executes a request; the same one again gets the same reply, and is not executed.

        So a caller that was interrupted may ask again.
        """
        if request != self._request:
            self._reply = self._executed(request)
            self._request = request
        return self._reply

    def close(self) -> None:
        """Closes the environments."""
        self._host.close()

    def _executed(self, request: bytes) -> bytes:
        _, code = REQUEST.unpack_from(request)
        start = REQUEST.size
        try:
            if code == Ask.STEP:
                start = self._wire.take_actions(request, start)
                objects = None if start == len(request) else loads(request[start:])
                return self._packed_outcome(self._host.group.step(objects))
            return self._command(*loads(request[start:]))
        except BaseException as error:  # such as SystemExit, which would end the actor
            return bytes([Answer.FAILED]) + pack_error(error)

    def _command(self, command: str, arguments: Sequence[Any]) -> bytes:
        result = self._host.execute(command, arguments)
        if isinstance(result, Outcome):
            return self._packed_outcome(result)
        return bytes([Answer.VALUE]) + pack_result(command, result)

    def _packed_outcome(self, outcome: Outcome) -> bytes:
        group = self._host.group
        plain = outcome.rest is None
        head = OUTCOME.pack(
            Answer.PLAIN if plain else Answer.OUTCOME,
            outcome.ended,
            *group.columns,
            group.clock.news(),
        )
        results = self._wire.results(group.columns, outcome.ended)
        return b"".join((head, results, b"" if plain else dumps_for_caller(outcome)))

    def _make_arrays(self, spaces: tuple[Any, Any], num_envs: int) -> StepArrays:
        arrays = StepArrays.allocate(*spaces, num_envs)
        self._wire = GroupWire(arrays)
        return arrays
