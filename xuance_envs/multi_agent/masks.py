"""Where the mask of an agent's actions goes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe

__all__ = ["MaskRow"]

_ALL = slice(None)


class MaskRow:
    """The place of one mask.

    Args:
        array: ``(n,)`` bool.

    Attributes:
        view: takes an array of as many bools, and nothing else.
    """

    __slots__ = ("_array", "view")

    def __init__(self, array: NDArray[np.bool_]) -> None:
        self._array = array
        self.view = memoryview(array)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer

    def allow_all(self) -> None:
        """Allows every action."""
        self._array[...] = True

    def put(self, mask: Any) -> None:
        """Stores a mask: what is not 0 is allowed. None allows every action.

        Args:
            mask: of as many bools or numbers, or a tuple of such masks, one after the other.

        Raises:
            BadValueError: it has another length, or is none.
        """
        if type(mask) is np.ndarray and mask.dtype == np.bool_:
            try:
                self.view[_ALL] = mask  # type: ignore[call-overload]  # as above
                return
            except (TypeError, ValueError):
                pass  # for the reason below
        elif mask is None:
            self.allow_all()
            return
        elif type(mask) is tuple and mask and all([np.ndim(part) == 1 for part in mask]):
            mask = np.concatenate(mask)
        try:
            given = np.asarray(mask)
        except ValueError:
            given = np.empty((), object)
        if given.shape != self._array.shape or given.dtype.kind not in "biuf":
            raise BadValueError(
                f"expected {len(self._array)} bools, one for each action, got {describe(mask)}"
            )
        np.not_equal(given, 0, out=self._array)
