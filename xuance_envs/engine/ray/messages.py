"""What a caller and an actor tell each other: what some groups are asked, and what they answer.

A request asks one or more of an actor's groups, and has one reply with an answer of each. Both are
bytes: a line for each group; then what is for the arrays; then what belongs to each line besides.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY, ReplyType
from xuance_envs.engine.group.step_clock import TIMING_DELTA_BYTES
from xuance_envs.engine.ray.step_codec import Extents

__all__ = [
    "CODE_DISTRIBUTION_HINT",
    "GroupReply",
    "GroupRequest",
    "num_requests",
    "pack_replies",
    "pack_requests",
    "unpack_replies",
    "unpack_requests",
]

CODE_DISTRIBUTION_HINT = (
    "installed, or brought by Ray with runtime_env={'working_dir': ...} or {'py_modules': [...]}"
)
"""What to do where an actor lacks the code of what it is sent."""

_COUNT = struct.Struct("<H")
_ASK = struct.Struct("<HqBBHI")
_LENT = struct.Struct("<H")
_ANSWER = struct.Struct(f"<BBIBI?I{TIMING_DELTA_BYTES}s")

_OUTCOMES = frozenset({*OUTCOME_OF_REPLY, ReplyType.OUTCOME})


class GroupRequest(NamedTuple):
    """What a group is asked."""

    group: int
    tag: int
    code: int
    command: str
    payload: bytes
    lent: tuple[int, ...] = ()


class GroupReply(NamedTuple):
    """What a group answers."""

    code: int
    extents: Extents
    timing_delta: bytes
    payload: bytes

    @property
    def is_outcome(self) -> bool:
        """Whether there is more of it in the arrays."""
        return self.code in _OUTCOMES


def pack_requests(requests: Sequence[GroupRequest], actions: bytes) -> bytes:
    """A request, with the actions of those that are asked for a step."""
    lines = [
        _ASK.pack(
            group_request.group,
            group_request.tag,
            group_request.code,
            len(group_request.command),
            len(group_request.lent),
            len(group_request.payload),
        )
        for group_request in requests
    ]
    besides = [
        b"".join(
            [
                group_request.command.encode(),
                *map(_LENT.pack, group_request.lent),
                group_request.payload,
            ]
        )
        for group_request in requests
        if group_request.command or group_request.payload
    ]
    return b"".join([_COUNT.pack(len(requests)), *lines, actions, *besides])


def num_requests(request: bytes) -> int:
    """How many groups a request asks."""
    count: int = _COUNT.unpack_from(request)[0]
    return count


def unpack_requests(request: bytes) -> tuple[list[GroupRequest], int]:
    """What a request asks, and where in it the actions begin."""
    (count,) = _COUNT.unpack_from(request)
    start = _COUNT.size + count * _ASK.size
    lines = list(_ASK.iter_unpack(memoryview(request)[_COUNT.size : start]))
    at = len(request) - sum(name + count * _LENT.size + size for *_, name, count, size in lines)
    requests = []
    for group, tag, code, name, count, size in lines:
        command, at = request[at : at + name].decode(), at + name
        lent = tuple(_LENT.unpack_from(request, at + k * _LENT.size)[0] for k in range(count))
        at += count * _LENT.size
        requests.append(GroupRequest(group, tag, code, command, request[at : at + size], lent))
        at += size
    return requests, start


def pack_replies(answers: Sequence[GroupReply], results: Sequence[Any]) -> list[Any]:
    """A reply as the buffers it consists of."""
    lines = [
        _ANSWER.pack(answer.code, *infos, *resets, masks, len(answer.payload), answer.timing_delta)
        for answer in answers
        for infos, resets, masks in [answer.extents]
    ]
    return [b"".join(lines), *results, *[answer.payload for answer in answers if answer.payload]]


def unpack_replies(reply: bytes | memoryview, count: int) -> tuple[list[GroupReply], int]:
    """The answers of so many groups, and where in the reply the results begin."""
    start = count * _ANSWER.size
    lines = list(_ANSWER.iter_unpack(memoryview(reply)[:start]))
    at = len(reply) - sum(size for *_, size, _ in lines)
    answers = []
    for code, *columns, masks, size, timing_delta in lines:
        extents = Extents((columns[0], columns[1]), (columns[2], columns[3]), masks)
        payload = bytes(reply[at : at + size]) if size else b""
        answers.append(GroupReply(code, extents, timing_delta, payload))
        at += size
    return answers, start
