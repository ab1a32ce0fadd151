"""The inside of an actor: one group of environments on arrays of its own.

A request is bytes, and so is its one reply; :mod:`~xuance_envs.engine.ray.wire` says what is in
a step's. Nothing here knows what brings them, so that it can be tried without a cluster.
"""

from __future__ import annotations

import struct
from typing import Any

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.host import GroupHost
from xuance_envs.engine.group.requests import PLAIN, Reply, Request
from xuance_envs.engine.group.step_clock import NEWS_BYTES
from xuance_envs.engine.ray.wire import GroupWire

__all__ = ["OUTCOMES", "REPLY", "REQUEST", "GroupActor"]

REQUEST = struct.Struct("<qB")
"""How a request begins: its number and its code. A step's actions that are arrays come next."""

REPLY = struct.Struct(f"<BIBI?{NEWS_BYTES}s")
"""What comes behind an outcome's code, before what is in the arrays: how many columns of infos are
in use and how many bytes of each environment, the same of resets' infos, whether masks of actions
are there, and the news of the group's clock."""

OUTCOMES = frozenset({*PLAIN, Reply.OUTCOME})
"""The replies that bring what is in the arrays."""


class GroupActor:
    """Bytes around one group of environments.

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
        if code == Request.STEP:
            start = self._wire.take_actions(request, start)
        reply, payload = self._host.answer(code, request[start:])
        if reply not in OUTCOMES:
            return bytes([reply]) + payload
        group = self._host.group
        infos, resets, masks = group.extents
        head = REPLY.pack(*infos, *resets, masks, group.clock.news())
        return b"".join((bytes([reply]), head, self._wire.results(infos, resets, masks), payload))

    def _make_arrays(self, spaces: tuple[Any, Any], num_envs: int, info_bytes: int) -> StepArrays:
        arrays = StepArrays.allocate(*spaces, num_envs, info_bytes=info_bytes)
        self._wire = GroupWire(arrays)
        return arrays
