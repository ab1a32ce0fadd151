"""Deep copies, and pickling between the main process and workers.

Workers do not import the main process's ``__main__``, so its definitions are pickled by value, like
the definitions in modules registered with ``cloudpickle.register_pickle_by_value``.
"""

from __future__ import annotations

import copy
import io
import pickle
import traceback
from typing import Any

import cloudpickle

from xuance_envs._override import override
from xuance_envs.engine.by_value import ByValuePickler, ByValueUnpickler, reduce_exactly
from xuance_envs.errors import VecEnvError

_PROTOCOL = 5

_SCAN_LIMIT = 1 << 16  # bytes from which searching a pickle takes more time than it saves


def copy_of(value: Any) -> Any:
    """Return a deep copy that shares only the parts that cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        if type(value) is dict:
            return {key: copy_of(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(copy_of, value))
        return value  # such as a lock or a generator


class _Pickler(pickle.Pickler):
    """Pickler that keeps the types of NumPy's values."""

    @override
    def reducer_override(self, obj: Any) -> Any:
        return reduce_exactly(obj)


def _dumps(value: Any, pickler: Any = _Pickler) -> bytes:
    file = io.BytesIO()
    pickler(file, _PROTOCOL).dump(value)
    return file.getvalue()


def dumps_for_worker(value: Any) -> bytes:
    """Pickle a value for a worker; definitions that it cannot import are pickled by value."""
    try:
        data = _dumps(value)
    except Exception:
        data = None  # cloudpickle supports more types and has better error messages
    by_value = ["__main__", *cloudpickle.list_registry_pickle_by_value()]
    if data is None or any([module.encode() in data for module in by_value]):
        data = _dumps(value, ByValuePickler)
    return data


def dumps_for_main(value: Any) -> bytes:
    """Pickle a worker's value for the main process; by value only if pickling by name fails."""
    try:
        return _dumps(value)
    except Exception:
        return _dumps(value, ByValuePickler)


def loads(data: bytes) -> Any:
    """Unpickle a value from another process without changing classes of this process."""
    if len(data) < _SCAN_LIMIT and b"cloudpickle" not in data and b"__main__" not in data:
        return pickle.loads(data)
    return ByValueUnpickler(data).load()


def describe_error(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (message unavailable)"


def traceback_of(error: BaseException) -> str:
    """Return an exception's traceback, or a short text if formatting fails."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception as failure:
        return f"{describe_error(error)}\n(traceback unavailable: {describe_error(failure)})"


def as_exception(error: BaseException) -> Exception:
    """Return the error, or if it is not an Exception, a VecEnvError that describes it."""
    if isinstance(error, Exception):
        return error
    failure = _description_of(error)
    failure.__cause__ = error
    return failure


def _description_of(error: BaseException) -> VecEnvError:
    return VecEnvError(f"{describe_error(error)}\n\n{traceback_of(error)}")


def pack_error(error: BaseException) -> bytes:
    """Pickle an exception for the main process, with its cause if that can be pickled."""
    failure = as_exception(error)
    packed = _pack_exception(failure) or _pack_exception(_description_of(failure))
    return dumps_for_main((packed, _pack_exception(failure.__cause__)))


def unpack_error(data: bytes) -> BaseException:
    """Unpickle a worker's exception with its cause."""
    packed, packed_cause = loads(data)
    error: BaseException = loads(packed)
    if packed_cause is not None:
        try:
            error.__cause__ = loads(packed_cause)
        except Exception:
            error.__cause__ = None  # only the worker can import its module
    return error


def _pack_exception(error: BaseException | None) -> bytes | None:
    """Pickle an exception; return None for None, or if pickling or unpickling fails."""
    if error is None:
        return None
    try:
        data = dumps_for_main(error)
        loads(data)
    except Exception:
        return None
    return data
