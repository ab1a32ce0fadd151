"""Packed requests and replies between the main process and an actor.

A request addresses one or more groups of an actor and has one reply. Requests and replies consist
of a fixed-size record per group, the data of arrays, and the variable-length data of the records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY, ReplyType
from xuance_envs.engine.group.step_clock import TIMING_DELTA_BYTES
from xuance_envs.engine.ray.step_codec import Extents

CODE_DISTRIBUTION_HINT = (
    "installed, or sent by Ray with runtime_env={'working_dir': ...} or {'py_modules': [...]}"
)
"""End of an error message about code that an actor cannot import."""

_COUNT = struct.Struct("<H")
_REQUEST = struct.Struct("<HqBBHI")
_BUFFER_INDEX = struct.Struct("<H")
_REPLY = struct.Struct(f"<BBIBI?I{TIMING_DELTA_BYTES}s")

_OUTCOMES = frozenset({*OUTCOME_OF_REPLY, ReplyType.OUTCOME})


class GroupRequest(NamedTuple):
    group: int
    tag: int
    code: int
    command: str
    payload: bytes
    buffers: tuple[int, ...] = ()


class GroupReply(NamedTuple):
    code: int
    extents: Extents
    timing_delta: bytes
    payload: bytes

    @property
    def is_outcome(self) -> bool:
        """True if the reply is an outcome, whose observations and rewards are in the arrays."""
        return self.code in _OUTCOMES


def pack_requests(requests: Sequence[GroupRequest], actions: bytes) -> bytes:
    """Pack a request, including the actions of stepping groups."""
    records = [
        _REQUEST.pack(
            group_request.group,
            group_request.tag,
            group_request.code,
            len(group_request.command),
            len(group_request.buffers),
            len(group_request.payload),
        )
        for group_request in requests
    ]
    tails = [
        b"".join(
            [
                group_request.command.encode(),
                *map(_BUFFER_INDEX.pack, group_request.buffers),
                group_request.payload,
            ]
        )
        for group_request in requests
        if group_request.command or group_request.payload
    ]
    return b"".join([_COUNT.pack(len(requests)), *records, actions, *tails])


def num_requests(request: bytes) -> int:
    count: int = _COUNT.unpack_from(request)[0]
    return count


def unpack_requests(request: bytes) -> tuple[list[GroupRequest], int]:
    """Unpack a request; return the records and the offset of the actions."""
    (count,) = _COUNT.unpack_from(request)
    start = _COUNT.size + count * _REQUEST.size
    records = list(_REQUEST.iter_unpack(memoryview(request)[_COUNT.size : start]))
    at = len(request) - sum(
        name + count * _BUFFER_INDEX.size + size for *_, name, count, size in records
    )
    requests = []
    for group, tag, code, name, count, size in records:
        command, at = request[at : at + name].decode(), at + name
        buffers = tuple(
            _BUFFER_INDEX.unpack_from(request, at + k * _BUFFER_INDEX.size)[0] for k in range(count)
        )
        at += count * _BUFFER_INDEX.size
        requests.append(GroupRequest(group, tag, code, command, request[at : at + size], buffers))
        at += size
    return requests, start


def pack_replies(answers: Sequence[GroupReply], results: Sequence[Any]) -> list[Any]:
    records = [
        _REPLY.pack(answer.code, *infos, *resets, masks, len(answer.payload), answer.timing_delta)
        for answer in answers
        for infos, resets, masks in [answer.extents]
    ]
    return [b"".join(records), *results, *[answer.payload for answer in answers if answer.payload]]


def unpack_replies(reply: bytes | memoryview, count: int) -> tuple[list[GroupReply], int]:
    """Unpack the replies of ``count`` groups; return them and the offset of the results."""
    start = count * _REPLY.size
    records = list(_REPLY.iter_unpack(memoryview(reply)[:start]))
    at = len(reply) - sum(size for *_, size, _ in records)
    answers = []
    for code, *columns, masks, size, timing_delta in records:
        extents = Extents((columns[0], columns[1]), (columns[2], columns[3]), masks)
        payload = bytes(reply[at : at + size]) if size else b""
        answers.append(GroupReply(code, extents, timing_delta, payload))
        at += size
    return answers, start
