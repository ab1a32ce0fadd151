"""Steps in msgpack messages: the bytes of their arrays, with a layout that is sent once.

A reply is ``{"layout": number, "frame": bytes}``. The request has the number of the last layout
that the client received, or 0. If the layout has changed, the reply also has ``columns``:

- dtypes and shapes of the arrays, and whether frames also contain action masks;
- the types of numbers in infos, in the order of their codes;
- for infos and reset infos: the key and byte offset of each column, the kinds of arrays, and the
  number of bytes per environment.

The client checks the layout, the frame's size and the codes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_columns import (
    MAX_ARRAY_KINDS,
    MAX_COLUMNS,
    NO_COLUMNS,
    NUMBER_KINDS,
    ArrayKind,
    ColumnLayout,
    InfoArrays,
)
from xuance_envs.engine.data.space_rows import ALL_ENVS
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.data.step_frame import NO_EXTENTS, Extents, GroupCodec
from xuance_envs.remote.wire.nodes import (
    DTYPES,
    WireError,
    check_bools,
    dtype_from_wire,
    shape_from_wire,
    shortened,
)

# Types of numbers, in the order of their codes. The client raises if the server's list differs.
_NUMBERS = [
    f"numpy.{np.dtype(kind).name}" if issubclass(kind, np.generic) else kind.__name__
    for kind in NUMBER_KINDS
]

_NUMBER_CODES = bytes(range(len(NUMBER_KINDS) + 1))
_FIRST_ARRAY = len(_NUMBER_CODES)


class StepFrameWriter:
    def __init__(self, arrays: StepArrays) -> None:
        self._codec = GroupCodec(arrays)
        self._number = 0
        self._set_layouts((NO_COLUMNS, NO_COLUMNS), masks=False)

    def frame(
        self, layouts: tuple[ColumnLayout, ColumnLayout], masks: bool, known: int
    ) -> dict[str, Any] | None:
        """Return the reply to the last step; None if its infos do not fit into a frame."""
        if layouts != self._layouts or masks is not self._extents.masks:
            self._set_layouts(layouts, masks)
        if self._columns is None:
            return None
        frame = b"".join(self._codec.results(self._extents))
        reply = {"layout": self._number, "frame": frame}
        return reply if known == self._number else {**reply, "columns": self._columns}

    def _set_layouts(self, layouts: tuple[ColumnLayout, ColumnLayout], masks: bool) -> None:
        self._layouts = layouts
        self._extents = Extents(layouts[0].extent, layouts[1].extent, masks)
        self._number += 1
        columns = {"arrays": self._codec.form, "numbers": _NUMBERS, "masks": masks}
        columns["infos"], columns["resets"] = map(_layout_to_wire, layouts)
        self._columns = None if None in columns.values() else columns


class StepFrameReader:
    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        self._codec = GroupCodec(arrays)
        self._extents = NO_EXTENTS
        self._flags: list[Any] = []  # arrays of bools in a frame
        self._columns: list[_Columns] = []
        self.number = 0  # of the last received layout
        self.layouts = NO_COLUMNS, NO_COLUMNS  # columns of infos and of reset infos

    def read(self, reply: Any) -> bool:
        """Decode a reply; return whether an episode ended."""
        number, frame = reply["layout"], reply["frame"]
        if "columns" in reply:
            self.number = 0  # until the whole reply has been checked
            if type(number) is not int or number < 1:
                raise WireError(f"expected a layout number of at least 1, got {shortened(number)}")
            self._set_layout(reply["columns"])
        elif number != self.number or not number:
            raise WireError(f"expected layout {self.number}, got {shortened(number)}")
        if type(frame) is not bytes:
            raise WireError(f"expected a frame of bytes, got {shortened(frame)}")
        try:
            end, ended = self._codec.load_results(frame, 0, self._extents)
        except (TypeError, ValueError):  # the frame is too short
            end = -1
        if end != len(frame):
            raise WireError(
                f"expected a frame of {self._codec.nbytes} bytes for these spaces, "
                f"columns and episode ends, got {len(frame)}"
            )
        check_bools(b"".join(self._flags))
        infos, resets = self._columns
        infos.check(ALL_ENVS)
        if len(ended):
            resets.check(ended)
        self.number = number
        return len(ended) > 0

    def _set_layout(self, node: Any) -> None:
        for name, expected in (("arrays", self._codec.form), ("numbers", _NUMBERS)):
            given = node.get(name) if isinstance(node, dict) else None
            if given != expected:
                raise WireError(f"expected a layout with the {name} {expected}, got {given!a:.200}")
        arrays, masks = self._arrays, bool(node["masks"])
        rows = [arrays.observations, arrays.reset_observations]
        if masks:
            if arrays.masks is None:
                raise WireError("expected no action masks for this action space, got some")
            rows.append(arrays.masks)
        parts = [part for each in rows for part in each.parts if isinstance(part, np.ndarray)]
        bools = [part for part in parts if part.dtype.kind == "b"]
        self._flags = [arrays.terminated, arrays.truncated, *bools]
        infos = _layout_from_wire(node["infos"], len(arrays.infos.bytes[0]))
        resets = _layout_from_wire(node["resets"], len(arrays.reset_infos.bytes[0]))
        self._columns = [_Columns(infos, arrays.infos), _Columns(resets, arrays.reset_infos)]
        self._extents = Extents(infos.extent, resets.extent, masks)
        self.layouts = infos, resets


class _Columns:
    """Columns of infos, and the value kinds that each of them may contain."""

    def __init__(self, layout: ColumnLayout, arrays: InfoArrays) -> None:
        self._layout, self._arrays = layout, arrays
        kinds = {c: k for c, k in enumerate(layout.kinds, _FIRST_ARRAY) if k is not None}
        self._bools = {code for code, kind in kinds.items() if kind.dtype.kind == "b"}
        self._allowed = [
            _NUMBER_CODES
            + bytes([code for code, kind in kinds.items() if kind.nbytes <= layout.nbytes - start])
            for start in layout.starts
        ]

    def check(self, at: slice | NDArray[np.intp]) -> None:
        """Raise unless the codes are valid; a code decides how bytes are read."""
        layout = self._layout
        for slot, allowed in enumerate(self._allowed):
            codes = self._arrays.kinds[slot][at]
            if others := codes.tobytes().strip(allowed):
                key = layout.keys[slot]
                raise WireError(f"column {key!a}: expected a valid kind code, got {others[0]}")
            for code in self._bools.intersection(codes.tolist()) if self._bools else ():
                stored = layout.kind(code).stored(self._arrays, slot, layout.starts[slot])
                check_bools(stored[at][codes == code].tobytes())


def _layout_to_wire(layout: ColumnLayout) -> dict[str, Any] | None:
    """Encode a layout; return None if messages cannot carry one of its kinds."""
    kinds: list[Any] = []
    for kind in layout.kinds:
        if kind is not None and DTYPES.get(kind.dtype.name) != kind.dtype:
            return None
        kinds.append(None if kind is None else [kind.dtype.name, [*kind.shape], kind.fortran])
    keys, starts = list(layout.keys), list(layout.starts)
    return {"keys": keys, "starts": starts, "kinds": kinds, "nbytes": layout.nbytes}


def _layout_from_wire(node: Any, room: int) -> ColumnLayout:
    keys, starts, kinds, nbytes = (node[name] for name in ("keys", "starts", "kinds", "nbytes"))
    if (
        not all(isinstance(each, list) for each in (keys, starts, kinds))
        or not len(keys) == len(starts) <= MAX_COLUMNS
        or len(kinds) > MAX_ARRAY_KINDS
        or not all(type(key) is str for key in keys)
        or len(set(keys)) != len(keys)
    ):
        raise WireError(
            f"expected at most {MAX_COLUMNS} keys, all different, one start offset per key, and at "
            f"most {MAX_ARRAY_KINDS} kinds of arrays, got {node!a:.200}"
        )
    for each in (*starts, nbytes):
        if type(each) is not int or not 0 <= each <= room:
            got = shortened(each)
            raise WireError(f"expected columns within the {room} bytes of an info, got {got}")
    return ColumnLayout(tuple(keys), tuple(starts), tuple(map(_kind_from_wire, kinds)), nbytes)


def _kind_from_wire(node: Any) -> ArrayKind | None:
    if node is None:
        return None
    if not isinstance(node, list) or len(node) != 3 or type(node[2]) is not bool:
        raise WireError(f"expected [dtype, shape, fortran] of arrays, got {shortened(node)}")
    return ArrayKind(dtype_from_wire(node[0]), shape_from_wire(node[1]), node[2])
