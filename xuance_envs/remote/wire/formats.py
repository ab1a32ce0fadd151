"""The two forms of a message: JSON for anybody, msgpack for speed."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from xuance_envs.remote.wire.bounds import check_json_nodes, check_nodes
from xuance_envs.remote.wire.json_writer import JsonWriter, encode_json
from xuance_envs.remote.wire.msgpack_writer import msgpack_library, pack
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.templates import TemplatedMessage

__all__ = ["WireFormat", "dumps", "loads"]


class WireFormat(Enum):
    """How a message is written; the value is its content type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type

    __hash__ = object.__hash__  # likewise


_JSON = WireFormat.JSON  # to ask an enumeration's class for it takes as long as to write a number


def dumps(message: Any, wire_format: WireFormat, limit: int | None = None) -> bytes:
    """Writes a message whose arrays may be NumPy's or tagged."""
    if wire_format is _JSON:
        if type(message) is TemplatedMessage:
            message = message.message()
        if limit is None:
            return encode_json(message).encode()
        return JsonWriter(limit).write(message)
    return pack(message, limit)


def loads(data: bytes, wire_format: WireFormat, max_nodes: int | None = None) -> Any:
    """Reads a message."""
    if max_nodes is not None and len(data) > max_nodes:  # none is shorter than a byte
        (check_json_nodes if wire_format is WireFormat.JSON else check_nodes)(data, max_nodes)
    try:
        if wire_format is _JSON:
            return json.loads(data, parse_constant=_refused_constant)
        return msgpack_library().unpackb(
            data, raw=False, unicode_errors="surrogatepass", ext_hook=_refused_extension
        )
    except RecursionError:
        raise WireError(f"the {wire_format.name} message is nested too deep") from None
    except WireError:
        raise
    except Exception as error:  # msgpack's own are many, and not all of one kind
        raise WireError(f"the message is not {wire_format.name}: {error}") from None


def _refused_constant(name: str) -> Any:
    raise WireError(f'{name} is not JSON; write it as a string, "{name}"')


def _refused_extension(code: int, data: bytes) -> Any:
    raise WireError(f"msgpack's extension types are not used here, got one of type {code}")
