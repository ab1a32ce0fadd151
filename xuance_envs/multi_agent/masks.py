"""Agents' action masks, stored in the record of a multi-agent environment."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import BadValueError, describe
from xuance_envs.engine.data.space_rows import Row
from xuance_envs.errors import counted
from xuance_envs.multi_agent.team import MASK, Team

_ALL = slice(None)

# Errors that fast paths raise for unsupported or missing values.
STORE_ERRORS = (
    *(TypeError, ValueError, NotImplementedError, LookupError, DeprecationWarning, struct.error),
)


class MaskRow:
    """Storage of one agent's mask."""

    __slots__ = ("_array", "_view")

    def __init__(self, array: NDArray[np.bool_]) -> None:
        self._array = array
        # Accepts only bool arrays of the same length.
        self._view = memoryview(array)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer

    def buffer_for(self, mask: Any) -> Row:
        """Return the fastest storage for masks of this type and length; it may reject others."""
        is_bools = type(mask) is np.ndarray and mask.dtype == np.bool_
        return self._view if is_bools else self

    def __setitem__(self, key: slice, mask: Any) -> None:
        """Store a mask, in which nonzero means allowed. None allows every action."""
        if type(mask) is np.ndarray and mask.dtype == np.bool_:
            try:
                self._view[_ALL] = mask  # type: ignore[call-overload]  # as above
                return
            except (TypeError, ValueError):
                pass  # reported below
        elif mask is None:
            self._array[...] = True
            return
        elif type(mask) is tuple and mask and all([np.ndim(part) == 1 for part in mask]):
            mask = np.concatenate(mask)
        try:
            given = np.asarray(mask)
        except ValueError:
            given = np.empty((), object)
        if given.shape != self._array.shape or given.dtype.kind not in "biuf":
            expected = f"{counted(len(self._array), 'bool')}, one per action"
            raise BadValueError(f"expected {expected}, got {describe(mask)}")
        np.not_equal(given, 0, out=self._array)


class Masks:
    def __init__(self, team: Team, fields: Mapping[str, NDArray[Any]]) -> None:
        self.rows: dict[int, MaskRow] = {}
        self.in_observations: set[int] = set()  # places of agents whose masks they observe
        self.in_infos: set[int] = set()
        self.any_received = False
        self._gives_masks = fields["gives_masks"]
        self._of_groups: list[NDArray[np.bool_]] = []
        for group in team.groups:
            if group.mask is None:
                continue
            masks = fields[f"{group.name}.mask"]
            self._of_groups.append(masks)
            self.rows |= {place: MaskRow(masks[i]) for i, place in enumerate(group.places)}
            (self.in_observations if group.observes_mask else self.in_infos).update(group.places)

    def begin(self) -> None:
        """Allow every action in a record that was set to zeros."""
        self._gives_masks[...] = self.any_received
        for masks in self._of_groups:
            masks[...] = True

    def put(self, agent: Any, row: MaskRow, mask: Any) -> None:
        try:
            row[:] = mask
        except BadValueError as error:
            raise BadValueError(f"agent {agent!r}: invalid {MASK}: {error}") from None
        if not self.any_received:
            self._gives_masks[...] = self.any_received = True
