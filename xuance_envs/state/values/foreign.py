"""Handler of arrays in the memory of another library, where they must stay."""

from __future__ import annotations

from typing import Any

import numpy as np

from xuance_envs.state.faults import FaultError, MismatchError
from xuance_envs.state.handlers import Handler, handler_of
from xuance_envs.state.values.reducers import has_foreign_memory


def _save_foreign(array: Any, _: Any) -> tuple[bytes, str, tuple[int, ...]]:
    return array.tobytes(), array.dtype.str, array.shape


def _check_foreign(array: Any, value: Any) -> None:
    content, dtype, shape = value
    if (dtype, tuple(shape)) != (array.dtype.str, array.shape) or len(content) != array.nbytes:
        raise MismatchError(
            "array that is stored in another library's memory",
            f"{dtype} {shape}",
            f"{array.dtype.str} {array.shape}",
        )
    if not array.flags.writeable and content != array.tobytes():
        raise FaultError("", "a read-only array in a library's memory differs from the saved one")


def _load_foreign(array: Any, value: Any, _: Any) -> None:
    if array.flags.writeable:
        content, dtype, shape = value
        array[...] = np.frombuffer(content, dtype).reshape(shape)


FOREIGN = Handler(_save_foreign, _load_foreign, _check_foreign)


def handler_for(value: Any) -> Handler | None:
    """Return the handler of an object; arrays in another library's memory have one, too."""
    if type(value) is np.ndarray:
        return FOREIGN if has_foreign_memory(value) else None
    return handler_of(type(value))
