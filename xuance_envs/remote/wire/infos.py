"""Infos in messages: one dict per environment, or columns of numbers and arrays."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.info_columns import (
    NUMBER_KINDS,
    ArrayKind,
    ColumnLayout,
    Columns,
    Kind,
    NumberKind,
)
from xuance_envs.remote.wire.arrays import DTYPES, array_from_wire, tagged_array_from_wire
from xuance_envs.remote.wire.nodes import TAG, WireError, check_fields, shortened
from xuance_envs.remote.wire.values import from_wire, to_wire

logger = logging.getLogger("xuance_envs")

_NUMBERS: dict[str, NumberKind] = {
    **{kind.__name__: NUMBER_KINDS[kind] for kind in (int, float, bool)},
    **{f"numpy.{name}": NUMBER_KINDS[dtype.type] for name, dtype in DTYPES.items()},
}
"""Kinds of numbers in an info table, by their names in messages."""

_NAMES: dict[Kind, str] = {kind: name for name, kind in _NUMBERS.items()}
_ARRAYS = "numpy.ndarray"
"""Name in messages of columns of arrays, which have a dtype and a shape."""


def kind_name(kind: Kind) -> str:
    return _NAMES.get(kind, _ARRAYS)


def _can_send_columns(columns: Columns) -> bool:
    return all([kind in _NAMES or kind.dtype.name in DTYPES for kind, _, _ in columns.values()])


class InfoSchema:
    """Keys and kinds that tables share, if their columns can be sent without conversion."""

    __slots__ = ("count", "keys")

    def __init__(self, keys: Mapping[str, tuple[Kind, int]], count: int) -> None:
        self.keys = keys
        self.count = count


class InfoTable:
    """Infos whose values have one kind per key: a list of dicts in JSON, columns in msgpack."""

    __slots__ = ("_columns", "cells", "count", "schema")
    cells: NDArray[np.float64]

    def __init__(self, columns: Columns | None, count: int) -> None:
        self._columns = columns
        self.count = count
        self.schema: InfoSchema | None = None

    @classmethod
    def from_schema(cls, schema: InfoSchema, cells: NDArray[np.float64]) -> InfoTable:
        table = cls(None, schema.count)
        table.schema, table.cells = schema, cells
        return table

    def data(self) -> list[bytes]:
        assert self.schema is not None
        size, raw = 8 * self.count, self.cells.tobytes()
        return [raw[size * row : size * row + size] for _, row in self.schema.keys.values()]

    @property
    def columns(self) -> Columns:
        """Kind, values and mask by key; a mask of None means that all infos have the key."""
        if self._columns is None:
            assert self.schema is not None
            self._columns = {
                key: (kind, self.cells[row].view(kind.dtype), None)
                for key, (kind, row) in self.schema.keys.items()
            }
        return self._columns

    def as_columns(self) -> dict[str, Any]:
        """Return the message for msgpack, with key, kind, values and mask per column."""
        columns = [
            [key, kind_name(kind), values, mask]
            for key, (kind, values, mask) in self.columns.items()
        ]
        return {TAG: "infos", "count": self.count, "columns": columns}

    def dicts(self) -> list[dict[str, Any]]:
        infos: list[dict[str, Any]] = [{} for _ in range(self.count)]
        for key, (kind, values, mask) in self.columns.items():
            each = kind.each(values)
            for position in range(self.count) if mask is None else mask.nonzero()[0].tolist():
                infos[position][key] = each[position]
        return infos


MAX_SCHEMAS = 64

_CELL_KINDS = tuple(NUMBER_KINDS[kind] for kind in (int, float, np.int64, np.float64))
"""Kinds of numbers that messages and columns store in the same way."""


class InfoTables:
    """Converter of a vectorized environment's infos to tables, with cached schemas."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[int, bytes], InfoSchema] = {}
        self._layout: ColumnLayout | None = None

    def table(self, batch: InfoBatch, envs: NDArray[np.intp]) -> InfoTable | None:
        """Return the table of a batch; None if its infos cannot be sent as columns."""
        layout = batch.common_layout
        if layout is None:
            return self._table_of_columns(batch, envs)
        if layout is not self._layout:
            self._layout, self._schemas = layout, {}
        # The key includes the count, because a batch without columns has no kinds.
        schema_key = len(envs), batch.arrays.kinds.tobytes()
        schema = self._schemas.get(schema_key)
        if schema is not None:
            return InfoTable.from_schema(schema, batch.arrays.cells)
        table = self._table_of_columns(batch, envs)
        if table is not None and len(self._schemas) < MAX_SCHEMAS:
            columns = table.columns
            if all([kind in _CELL_KINDS and mask is None for kind, _, mask in columns.values()]):
                keys = {
                    key: (kind, layout.keys.index(key)) for key, (kind, _, _) in columns.items()
                }
                self._schemas[schema_key] = InfoSchema(keys, table.count)
        return table

    @staticmethod
    def _table_of_columns(batch: InfoBatch, envs: NDArray[np.intp]) -> InfoTable | None:
        columns = batch.columns(envs)
        if columns is None or not _can_send_columns(columns):
            return None
        return InfoTable(columns, len(envs))


def info_table_from_wire(node: Any, count: int) -> InfoTable | None:
    """Decode infos that were sent as columns; return None if they were sent as dicts."""
    if not isinstance(node, dict):
        return None
    check_fields(node, "infos")
    if node["count"] != count or not isinstance(node["columns"], list):
        raise WireError(f"expected columns with {count} infos")
    columns = {}
    for column in node["columns"]:
        if not isinstance(column, list) or len(column) != 4 or not isinstance(column[0], str):
            raise WireError("expected [key, type, values, mask] for each column of infos")
        key, name, values, mask = column
        if mask is not None:
            mask = array_from_wire(mask, np.dtype(np.bool_), (count,))
        columns[key] = *_column_from_wire(name, values, count), mask
    return InfoTable(columns, count)


def _column_from_wire(name: Any, values: Any, count: int) -> tuple[Kind, NDArray[Any]]:
    if name == _ARRAYS and isinstance(values, dict):
        array = tagged_array_from_wire(values)
        if array.shape[:1] != (count,):
            raise WireError(
                f"expected an array with a first axis of length {count}, got shape {array.shape}"
            )
        return ArrayKind(array.dtype, array.shape[1:]), array
    if not isinstance(name, str) or name not in _NUMBERS:
        names = ", ".join([*_NUMBERS, _ARRAYS])
        raise WireError(f"expected one of the types {names}, got {shortened(name)}")
    kind = _NUMBERS[name]
    return kind, array_from_wire(values, kind.dtype, (count,))


def infos_from_wire(node: Any, count: int) -> list[dict[Any, Any]]:
    if (table := info_table_from_wire(node, count)) is not None:
        return table.dicts()
    if not isinstance(node, list) or len(node) != count:
        raise WireError(f"expected a list of {count} infos")
    infos = [from_wire(info) for info in node]
    for info in infos:
        if not isinstance(info, dict):
            raise WireError(f"expected infos to be dicts, got {shortened(info)}")
    return infos


def drop_unsendable(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a dict without values that cannot be sent; log each such key once."""
    sendable = {}
    for key, value in info.items():
        try:
            to_wire({key: value})
        except WireError as error:
            _warn_unsendable(f"{key!r}", f"{error}")
        else:
            sendable[key] = value
    return sendable


@lru_cache(256)
def _warn_unsendable(key: str, reason: str) -> None:
    logger.warning("the info key %s is not sent to clients: %s", key, reason)
