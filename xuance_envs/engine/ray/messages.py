"""Packed requests and replies between the main process and an actor.

A request has commands for one or more groups of an actor, and gets one reply. Requests and replies
consist of a fixed-size record per group, the data of arrays, and the variable-length data of the
records. The command ``step`` has actions in arrays, and a payload only if some are objects.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_frame import Extents, GroupCodec
from xuance_envs.engine.group.protocol import OUTCOME_OF_REPLY, ReplyType
from xuance_envs.engine.group.step_clock import TIMING_DELTA_BYTES
from xuance_envs.engine.pickled_commands import PackedCommand

# End of an error message about code that an actor cannot import.
CODE_DISTRIBUTION_HINT = (
    "installed, or sent by Ray with runtime_env={'working_dir': ...} or {'py_modules': [...]}"
)

_COUNT = struct.Struct("<H")
_REQUEST = struct.Struct("<HBHI")
_BUFFER_INDEX = struct.Struct("<H")
_REPLY = struct.Struct(f"<BBIBI?I{TIMING_DELTA_BYTES}s")

_OUTCOMES = frozenset({*OUTCOME_OF_REPLY, ReplyType.OUTCOME})


class GroupReply(NamedTuple):
    code: int
    extents: Extents
    timing_delta: bytes
    payload: bytes

    @property
    def is_outcome(self) -> bool:
        """True if the reply is an outcome, whose observations and rewards are in the arrays."""
        return self.code in _OUTCOMES


def stepping_groups(commands: Mapping[int, PackedCommand]) -> list[int]:
    return [group for group, packed in commands.items() if packed.command == "step"]


def pack_requests(
    commands: Mapping[int, PackedCommand], buffers: Sequence[Any], actions: bytes
) -> bytes:
    """Pack the groups' commands, with indices of their buffers, and the actions."""
    records, tails = [], []
    for group, (command, payload, used) in commands.items():
        records.append(_REQUEST.pack(group, len(command), len(used), len(payload)))
        indices = [_BUFFER_INDEX.pack(buffers.index(buffer)) for buffer in used]
        tails += [command.encode(), *indices, payload]
    return b"".join([_COUNT.pack(len(commands)), *records, actions, *tails])


def num_requests(request: bytes) -> int:
    count: int = _COUNT.unpack_from(request)[0]
    return count


def unpack_requests(request: bytes, buffers: Sequence[Any]) -> tuple[dict[int, PackedCommand], int]:
    """Unpack a request; return the commands by group and the offset of the actions."""
    start = _COUNT.size + num_requests(request) * _REQUEST.size
    records = list(_REQUEST.iter_unpack(memoryview(request)[_COUNT.size : start]))
    tails = [name + used * _BUFFER_INDEX.size + size for _, name, used, size in records]
    at = len(request) - sum(tails)
    commands = {}
    for group, name, used, size in records:
        command, at = request[at : at + name].decode(), at + name
        end = at + used * _BUFFER_INDEX.size
        indices = _BUFFER_INDEX.iter_unpack(memoryview(request)[at:end])
        at = end + size
        used_buffers = [buffers[index] for (index,) in indices]
        commands[group] = PackedCommand(command, request[end:at], used_buffers)
    return commands, start


def pack_replies(replies: Collection[GroupReply], results: Sequence[Any]) -> list[Any]:
    records = [
        _REPLY.pack(reply.code, *infos, *resets, masks, len(reply.payload), reply.timing_delta)
        for reply in replies
        for infos, resets, masks in [reply.extents]
    ]
    return [b"".join(records), *results, *[reply.payload for reply in replies if reply.payload]]


def unpack_replies(reply: bytes | memoryview, count: int) -> tuple[list[GroupReply], int]:
    """Unpack the replies of ``count`` groups; return them and the offset of the results."""
    start = count * _REPLY.size
    records = list(_REPLY.iter_unpack(memoryview(reply)[:start]))
    at = len(reply) - sum(size for *_, size, _ in records)
    replies = []
    for code, *columns, masks, size, timing_delta in records:
        extents = Extents((columns[0], columns[1]), (columns[2], columns[3]), masks)
        payload = bytes(reply[at : at + size]) if size else b""
        replies.append(GroupReply(code, extents, timing_delta, payload))
        at += size
    return replies, start


class ActorCodec:
    """Codec of the arrays of an actor's groups."""

    def __init__(self, arrays: StepArrays, split: Sequence[tuple[int, int]]) -> None:
        first = split[0][0]
        self._all = GroupCodec(arrays)
        self._each = [GroupCodec(arrays.slice(lo - first, hi - first)) for lo, hi in split]

    def actions(self, groups: Sequence[int]) -> bytes:
        return b"".join([codec.actions() for codec in self._codecs_of(groups)])

    def load_actions(self, data: Any, start: int, groups: Sequence[int]) -> None:
        for codec in self._codecs_of(groups):
            start = codec.load_actions(data, start)

    def results(self, extents: Mapping[int, Extents]) -> list[Any]:
        return [part for codec, used in self._used(extents) for part in codec.results(used)]

    def load_results(self, data: Any, start: int, extents: Mapping[int, Extents]) -> int:
        for codec, used in self._used(extents):
            start, _ = codec.load_results(data, start, used)
        return start

    def _codecs_of(self, groups: Collection[int]) -> Sequence[GroupCodec]:
        if len(groups) == len(self._each):
            return [self._all]
        return [self._each[group] for group in groups]

    def _used(self, extents: Mapping[int, Extents]) -> Iterable[tuple[GroupCodec, Extents]]:
        """Return codecs of these groups, with the extents to encode."""
        codecs, used = self._codecs_of(extents), extents.values()
        return zip(codecs, [_union(used)] if len(codecs) < len(used) else used, strict=True)


def _union(extents: Collection[Extents]) -> Extents:
    """Return the smallest extents that cover all given ones."""
    infos, resets, masks = zip(*extents, strict=True)
    return Extents(_largest(infos), _largest(resets), any(masks))


def _largest(extents: Sequence[tuple[int, int]]) -> tuple[int, int]:
    columns, nbytes = zip(*extents, strict=True)
    return max(columns), max(nbytes)
