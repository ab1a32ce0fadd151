r"""File format of saved states: a readable header, and data that execute no code unless trusted.

.. code-block:: text

    8 bytes   89 58 45 4e 56 53 0d 0a, that is "\x89XENVS\r\n"
    2 bytes   format version, big-endian: 1
    4 bytes   length of the header
    16 bytes  checksum of all following bytes (blake2b)
    header    JSON: library versions; descriptions of the environments; for each state, "snapshot"
              or "replay" and the lengths of its parts; compression and compressed length
    rest      the parts in order, compressed (xz)
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import platform
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from xuance_envs._version import __version__
from xuance_envs.errors import StateError
from xuance_envs.state.faults import FaultError, type_phrase
from xuance_envs.state.unpickling import check_safe

MAGIC = b"\x89XENVS\r\n"
VERSION = 1

_START = struct.Struct(">8sHI16s")
_CHECKSUM = 16
_MAX_BYTES = 1 << 36
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 20}]

Facts = Mapping[bytes, tuple[dict[str, Any], dict[str, str]]]
"""Descriptions of environments and their library versions, by digest."""


@dataclass(frozen=True)
class SavedEnv:
    elsewhere: ClassVar[str] = ""

    env: bytes
    digest: bytes
    replays: bool = False
    extras: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return len(self.env) + sum(map(len, self.extras.values()))


def write(
    saved: Sequence[SavedEnv], facts: Facts, shared: Mapping[str, bytes], **notes: Any
) -> bytes:
    """Serialize states; ``notes`` are added to the header."""
    envs = [
        {
            "kind": "replay" if env.replays else "snapshot",
            "what": env.digest.hex(),
            "bytes": len(env.env),
            "extras": {name: len(data) for name, data in env.extras.items()},
        }
        for env in saved
    ]
    parts = [part for env in saved for part in (env.env, *env.extras.values())]
    raw = b"".join([*parts, *shared.values()])
    packed = lzma.compress(raw, lzma.FORMAT_XZ, filters=_FILTERS)
    libraries = [name for name in ("numpy", "gymnasium") if name in sys.modules]
    header: dict[str, Any] = {
        "versions": {
            "xuance_envs": __version__,
            "python": platform.python_version(),
            **{name: str(sys.modules[name].__version__) for name in libraries},
        },
        "what": {
            digest.hex(): {"is": parts_of, "versions": versions}
            for digest, (parts_of, versions) in facts.items()
        },
        "envs": envs,
        "shared": {name: len(data) for name, data in shared.items()},
        "compression": "xz",
        "bytes": len(raw),
        "compressed_bytes": len(packed),
        **notes,
    }
    text = json.dumps(header).encode()
    rest = text + packed
    return _START.pack(MAGIC, VERSION, len(text), _checksum(rest)) + rest


def header_of(data: bytes) -> dict[str, Any]:
    """Return the header of a file after verifying its checksum."""
    return _verify(data)[0]


def read(data: bytes, trusted: bool) -> tuple[list[SavedEnv], Facts, dict[str, bytes]]:
    """Read states, facts and shared data; untrusted data is checked for unsafe classes."""
    header, packed = _verify(data)
    try:
        raw = _decompress(packed, header["bytes"])
        place = 0

        def take(length: int) -> bytes:
            nonlocal place
            part = raw[place : place + length]
            if type(length) is not int or length < 0 or len(part) != length:
                raise ValueError(
                    f"expected a part of {length!r} bytes at byte {place}, got {len(part)}"
                )
            place += length
            return part

        envs = []
        for env in header["envs"]:
            own = take(env["bytes"])
            extras = {str(name): take(length) for name, length in env["extras"].items()}
            what = bytes.fromhex(env["what"])
            envs.append(SavedEnv(own, what, env["kind"] == "replay", extras))
        shared = {str(name): take(length) for name, length in header["shared"].items()}
        facts = {
            bytes.fromhex(digest): (dict(fact["is"]), dict(fact["versions"]))
            for digest, fact in header["what"].items()
        }
        if place != len(raw):
            raise ValueError(f"expected parts of {len(raw)} bytes in total, got {place}")
        unknown = {env.digest.hex() for env in envs if env.digest not in facts}
        if unknown:
            raise ValueError(
                f"expected descriptions of all environments, got none for digests {sorted(unknown)}"
            )
    except StateError:
        raise
    except Exception as error:
        raise _unreadable(f"{type(error).__name__}: {error}") from None
    if not trusted:
        for number, saved in enumerate(envs):
            _check(number, saved.env, *saved.extras.values())
        _check(-1, *shared.values())
    return envs, facts, shared


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, after syncing its content to disk."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _verify(data: bytes) -> tuple[dict[str, Any], bytes]:
    if len(data) < _START.size or not data.startswith(MAGIC):
        raise _unreadable(f"expected data that starts with {MAGIC!r}, got {bytes(data[:8])!r}")
    _, version, length, checksum = _START.unpack_from(data)
    if version != VERSION:
        raise _unreadable(f"expected format version {VERSION}, got {version}")
    rest = data[_START.size :]
    if _checksum(rest) != checksum:
        raise _unreadable("the data is truncated or corrupted: the checksum does not match")
    try:
        header = json.loads(rest[:length])
        if not isinstance(header, dict):
            raise TypeError(f"expected a JSON object as header, got {type_phrase(header)}")
    except Exception as error:
        raise _unreadable(f"{type(error).__name__}: {error}") from None
    return header, rest[length:]


def _decompress(packed: bytes, length: Any) -> bytes:
    if type(length) is not int or not 0 <= length <= _MAX_BYTES:
        raise ValueError(f"expected a length from 0 to {_MAX_BYTES} bytes, got {length!r}")
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 26)
    raw = reader.decompress(packed, length + 1)
    if len(raw) != length:
        got = "more" if len(raw) > length else len(raw)
        raise ValueError(f"expected {length} uncompressed bytes, got {got}")
    return raw


def _check(env: int, *parts: bytes) -> None:
    for part in parts:
        try:
            check_safe(part)
        except FaultError as fault:
            raise StateError(env, "load_state", fault.reason) from None


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM).digest()


def _unreadable(reason: str) -> StateError:
    return StateError(-1, "load_state", f"expected the output of EnvStates.to_bytes: {reason}")
