"""Takes objects where their owner cannot change them: into bytes for another process, or copies.

A worker does not import the caller's ``__main__``, so what is defined there travels by value, as
does what the caller has given to ``cloudpickle.register_pickle_by_value``.
"""

from __future__ import annotations

import copy
import io
import pickle
import traceback
from typing import Any

import cloudpickle

from xuance_envs.engine.by_value import ByValuePickler, ByValueUnpickler
from xuance_envs.errors import VecEnvError

__all__ = [
    "copy_of",
    "describe_error",
    "dumps_for_main",
    "dumps_for_worker",
    "loads",
    "pack_error",
    "traceback_of",
    "unpack_error",
]

_PROTOCOL = 5

_SCAN_LIMIT = 1 << 16
"""From so many bytes on, looking through them takes longer than it saves."""


def copy_of(value: Any) -> Any:
    """A copy of an object that an environment may change later; itself if it has no copies."""
    try:
        return copy.deepcopy(value)
    except Exception:
        if type(value) is dict:
            return {key: copy_of(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(copy_of, value))
        return value  # such as a lock or a generator: its identity is what it is


def dumps_for_worker(value: Any) -> bytes:
    """Pickles a value of the caller; functions and classes no worker can import go by value."""
    try:
        data = pickle.dumps(value, _PROTOCOL)
    except Exception:
        data = None  # cloudpickle takes more, and its error says what is wrong
    if data is None or b"__main__" in data or _names_by_value(data):
        data = _dumps_by_value(value)
    return data


def _names_by_value(data: bytes) -> bool:
    """Whether something in a pickle may be of a module that is to travel by value."""
    modules = cloudpickle.list_registry_pickle_by_value()
    return bool(modules) and any(name.encode() in data for name in modules)


def dumps_for_main(value: Any) -> bytes:
    """Pickles a value of a worker.

    A class that came from the caller's ``__main__`` by value goes back by value, and is
    recognised there as the caller's own.
    """
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception:
        return _dumps_by_value(value)


def loads(data: bytes) -> Any:
    """What another process pickled; classes that are known here already stay as they are."""
    if len(data) < _SCAN_LIMIT and b"cloudpickle" not in data and b"__main__" not in data:
        return pickle.loads(data)
    return ByValueUnpickler(data).load()


def _dumps_by_value(value: Any) -> bytes:
    file = io.BytesIO()
    ByValuePickler(file, _PROTOCOL).dump(value)
    return file.getvalue()


def describe_error(error: BaseException) -> str:
    """What an exception says, with its type."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose message cannot be had"


def traceback_of(error: BaseException) -> str:
    """An exception's traceback; where little memory is left, Python may fail to make it."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception as failure:
        return f"{describe_error(error)}\n(its traceback cannot be had: {describe_error(failure)})"


def pack_error(error: BaseException) -> bytes:
    """Pickles an exception for the caller, with its cause if that survives the journey.

    What is no :class:`Exception`, such as a KeyboardInterrupt of an environment's own, must not be
    taken for one of the caller's: it is the cause of one then.
    """
    is_plain = isinstance(error, Exception)
    packed = _pack_exception(error) if is_plain else None
    if packed is None:
        packed = _pack_exception(VecEnvError(f"{describe_error(error)}\n\n{traceback_of(error)}"))
    return dumps_for_main((packed, _pack_exception(error.__cause__ if is_plain else error)))


def unpack_error(data: bytes) -> BaseException:
    """The exception a worker packed, its cause set."""
    packed, packed_cause = loads(data)
    error: BaseException = loads(packed)
    if packed_cause is not None:
        try:
            error.__cause__ = loads(packed_cause)
        except Exception:
            error.__cause__ = None  # of a module only the worker can import
    return error


def _pack_exception(error: BaseException | None) -> bytes | None:
    """The pickled exception, None if there is none or it does not survive being pickled."""
    if error is None:
        return None
    try:
        data = dumps_for_main(error)
        loads(data)
    except Exception:
        return None
    return data
