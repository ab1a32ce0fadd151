"""The two forms of a message: JSON for anybody, msgpack for speed."""

from __future__ import annotations

import base64
import json
from enum import Enum
from typing import Any

import numpy as np

from xuance_envs.remote.wire.arrays import Tagged, as_nested_list, as_raw_bytes
from xuance_envs.remote.wire.infos import InfoTable
from xuance_envs.remote.wire.nodes import TAG, WireError
from xuance_envs.remote.wire.values import to_wire

__all__ = ["Form", "dumps", "loads"]


class Form(Enum):
    """How a message is written; the value is its content type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"


def dumps(message: Any, form: Form) -> bytes:
    """Writes a message whose arrays may be NumPy's or tagged."""
    if form is Form.JSON:
        text = json.dumps(message, default=_json_part, allow_nan=False, separators=(",", ":"))
        return text.encode()
    packed: bytes = _msgpack().packb(
        message, default=_msgpack_part, unicode_errors="surrogatepass", use_bin_type=True
    )
    return packed


def loads(data: bytes, form: Form) -> Any:
    """Reads a message.

    Raises:
        WireError: it is not JSON, or not msgpack.
    """
    try:
        if form is Form.JSON:
            return json.loads(data, parse_constant=_refused_constant)
        return _msgpack().unpackb(
            data, raw=False, unicode_errors="surrogatepass", ext_hook=_refused_extension
        )
    except RecursionError:
        raise WireError(f"the {form.name} message is nested too deep") from None
    except WireError:
        raise
    except Exception as error:  # msgpack's own are many, and not all of one kind
        raise WireError(f"the message is not {form.name}: {error}") from None


def _msgpack() -> Any:
    try:
        import msgpack
    except ImportError as error:
        raise ImportError(
            'messages in msgpack need the package of that name: pip install "xuance_envs[remote]"'
        ) from error
    return msgpack


def _refused_constant(name: str) -> Any:
    raise WireError(f'{name} is not JSON; write it as a string, "{name}"')


def _refused_extension(code: int, data: bytes) -> Any:
    raise WireError(f"msgpack's extension types are not used here, got one of type {code}")


def _json_part(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return as_nested_list(value)
    if isinstance(value, Tagged):
        return value.as_nested_list()
    if isinstance(value, bytes):
        return {TAG: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, InfoTable):
        return [to_wire(info) for info in value.dicts()]
    raise TypeError(f"a {type(value).__name__} in a message")


def _msgpack_part(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return as_raw_bytes(value)
    if isinstance(value, Tagged):
        return as_raw_bytes(value.array)
    if isinstance(value, InfoTable):
        return value.as_columns()
    raise TypeError(f"a {type(value).__name__} in a message")
