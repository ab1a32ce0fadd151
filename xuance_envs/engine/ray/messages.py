"""What a caller and an actor tell each other: what some groups are asked, and what they answer.

A request asks one or more of an actor's groups, and has one reply with an answer of each. Both are
bytes: a line for each group; then what is for the arrays; then what belongs to each line besides.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from xuance_envs.engine.group.requests import PLAIN, Reply
from xuance_envs.engine.group.step_clock import NEWS_BYTES
from xuance_envs.engine.ray.wire import Extents

__all__ = [
    "HOW_CODE_COMES",
    "Answer",
    "Ask",
    "asked",
    "pack_answers",
    "pack_asks",
    "unpack_answers",
    "unpack_asks",
]

HOW_CODE_COMES = (
    "installed, or brought by Ray with runtime_env={'working_dir': ...} or {'py_modules': [...]}"
)
"""What to do where an actor lacks the code of what it is sent."""

_COUNT = struct.Struct("<H")
_ASK = struct.Struct("<HqBBHI")
_LENT = struct.Struct("<H")
_ANSWER = struct.Struct(f"<BBIBI?I{NEWS_BYTES}s")

_OUTCOMES = frozenset({*PLAIN, Reply.OUTCOME})


class Ask(NamedTuple):
    """What a group is asked.

    Attributes:
        group: which of the actor's.
        tag: the number of the request, as the vector environment counts them.
        code: a :class:`~xuance_envs.engine.group.requests.Request`.
        command: its name, for a call.
        payload: what belongs to it; of a step, a call to make in its place where some actions are
            no arrays.
        lent: what it is lent, by the places among all that the call brings besides the request.
    """

    group: int
    tag: int
    code: int
    command: str
    payload: bytes
    lent: tuple[int, ...] = ()


class Answer(NamedTuple):
    """What a group answers.

    Attributes:
        code: a :class:`~xuance_envs.engine.group.requests.Reply`.
        extents: how much of its arrays is in use.
        news: of the group's clock.
        payload: what belongs to it.
    """

    code: int
    extents: Extents
    news: bytes
    payload: bytes

    @property
    def is_outcome(self) -> bool:
        """Whether there is more of it in the arrays."""
        return self.code in _OUTCOMES


def pack_asks(asks: Sequence[Ask], actions: bytes) -> bytes:
    """A request, with the actions of those that are asked for a step."""
    lines = [
        _ASK.pack(ask.group, ask.tag, ask.code, len(ask.command), len(ask.lent), len(ask.payload))
        for ask in asks
    ]
    besides = [
        b"".join([ask.command.encode(), *map(_LENT.pack, ask.lent), ask.payload])
        for ask in asks
        if ask.command or ask.payload
    ]
    return b"".join([_COUNT.pack(len(asks)), *lines, actions, *besides])


def asked(request: bytes) -> int:
    """How many groups a request asks."""
    count: int = _COUNT.unpack_from(request)[0]
    return count


def unpack_asks(request: bytes) -> tuple[list[Ask], int]:
    """What a request asks, and where in it the actions begin."""
    (count,) = _COUNT.unpack_from(request)
    start = _COUNT.size + count * _ASK.size
    lines = list(_ASK.iter_unpack(memoryview(request)[_COUNT.size : start]))
    at = len(request) - sum(name + count * _LENT.size + size for *_, name, count, size in lines)
    asks = []
    for group, tag, code, name, count, size in lines:
        command, at = request[at : at + name].decode(), at + name
        lent = tuple(_LENT.unpack_from(request, at + k * _LENT.size)[0] for k in range(count))
        at += count * _LENT.size
        asks.append(Ask(group, tag, code, command, request[at : at + size], lent))
        at += size
    return asks, start


def pack_answers(answers: Sequence[Answer], results: Sequence[Any]) -> list[Any]:
    """A reply as the buffers it consists of.

    Args:
        answers: of the groups.
        results: buffers with the results of those that are outcomes.
    """
    lines = [
        _ANSWER.pack(answer.code, *infos, *resets, masks, len(answer.payload), answer.news)
        for answer in answers
        for infos, resets, masks in [answer.extents]
    ]
    return [b"".join(lines), *results, *[answer.payload for answer in answers if answer.payload]]


def unpack_answers(reply: bytes | memoryview, count: int) -> tuple[list[Answer], int]:
    """The answers of so many groups, and where in the reply the results begin."""
    start = count * _ANSWER.size
    lines = list(_ANSWER.iter_unpack(memoryview(reply)[:start]))
    at = len(reply) - sum(size for *_, size, _ in lines)
    answers = []
    for code, *columns, masks, size, news in lines:
        extents = Extents((columns[0], columns[1]), (columns[2], columns[3]), masks)
        payload = bytes(reply[at : at + size]) if size else b""
        answers.append(Answer(code, extents, news, payload))
        at += size
    return answers, start
