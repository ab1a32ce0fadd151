"""Formats of messages: JSON for compatibility, msgpack for speed."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from xuance_envs.remote.wire.bounds import check_json_nodes, check_nodes
from xuance_envs.remote.wire.json_writer import JsonWriter, encode_json
from xuance_envs.remote.wire.msgpack_writer import msgpack_library, pack
from xuance_envs.remote.wire.nodes import WireError


class WireFormat(Enum):
    JSON = "application/json"
    MSGPACK = "application/msgpack"

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type

    __hash__ = object.__hash__  # faster than Enum's, which hashes the name


_JSON = WireFormat.JSON  # attribute access on the class is slow


def dumps(message: Any, wire_format: WireFormat, limit: int | None = None) -> bytes:
    """Encode a message, which may contain NumPy arrays and tagged arrays."""
    if wire_format is _JSON:
        if limit is None:
            return encode_json(message)
        return JsonWriter(limit).write(message)
    return pack(message, limit)


def loads(data: bytes, wire_format: WireFormat, max_nodes: int | None = None) -> Any:
    if max_nodes is not None and len(data) > max_nodes:  # a node has at least one byte
        (check_json_nodes if wire_format is WireFormat.JSON else check_nodes)(data, max_nodes)
    try:
        if wire_format is _JSON:
            return json.loads(data, parse_constant=_reject_constant)
        return msgpack_library().unpackb(
            data, raw=False, unicode_errors="surrogatepass", ext_hook=_reject_extension
        )
    except RecursionError:
        raise WireError(f"the {wire_format.name} message is nested too deep") from None
    except WireError:
        raise
    except Exception as error:  # msgpack's exceptions have no common base
        raise WireError(f"the message is not valid {wire_format.name}: {error}") from None


def _reject_constant(name: str) -> Any:
    raise WireError(f'{name} is not valid JSON: write it as the string "{name}"')


def _reject_extension(code: int, data: bytes) -> Any:
    raise WireError(f"msgpack extension types are not supported, got type {code}")
