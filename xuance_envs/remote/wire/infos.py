"""The infos of a message: a dict each, or columns where they are numbers and arrays."""

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

__all__ = [
    "InfoSchema",
    "InfoTable",
    "InfoTables",
    "drop_unsendable",
    "info_table_from_wire",
    "infos_from_wire",
    "name_of",
]

logger = logging.getLogger("xuance_envs")

_NUMBERS: dict[str, NumberKind] = {
    **{kind.__name__: NUMBER_KINDS[kind] for kind in (int, float, bool)},
    **{f"numpy.{name}": NUMBER_KINDS[dtype.type] for name, dtype in DTYPES.items()},
}
"""The types of numbers in a table of infos, by their names in messages."""

_NAMES: dict[Kind, str] = {kind: name for name, kind in _NUMBERS.items()}
_ARRAYS = "numpy.ndarray"
"""The name of arrays, which say their dtype and shape themselves."""


def name_of(kind: Kind) -> str:
    """The name of a kind of values in messages."""
    return _NAMES.get(kind, _ARRAYS)


def _can_send_columns(columns: Columns) -> bool:
    """Whether columns of infos can travel as such."""
    return all([kind in _NAMES or kind.dtype.name in DTYPES for kind, _, _ in columns.values()])


class InfoSchema:
    """What is the same of tables of infos whose values are as they lie in the cells of columns."""

    __slots__ = ("count", "keys")

    def __init__(self, keys: Mapping[str, tuple[Kind, int]], count: int) -> None:
        self.keys = keys
        self.count = count


class InfoTable:
    """Infos that are of one kind by key: a list of dicts in JSON, columns in msgpack."""

    __slots__ = ("_columns", "cells", "count", "schema")
    cells: NDArray[np.float64]

    def __init__(self, columns: Columns | None, count: int) -> None:
        self._columns = columns
        self.count = count
        self.schema: InfoSchema | None = None

    @classmethod
    def of_schema(cls, schema: InfoSchema, cells: NDArray[np.float64]) -> InfoTable:
        """A table of some form."""
        table = cls(None, schema.count)
        table.schema, table.cells = schema, cells
        return table

    def data(self) -> list[bytes]:
        """The data of the columns of one that is of a form."""
        assert self.schema is not None
        size, raw = 8 * self.count, self.cells.tobytes()
        return [raw[size * row : size * row + size] for _, row in self.schema.keys.values()]

    @property
    def columns(self) -> Columns:
        """By key, what the values are, the values, and where there are any; None for all."""
        if self._columns is None:
            assert self.schema is not None
            self._columns = {
                key: (kind, self.cells[row].view(kind.dtype), None)
                for key, (kind, row) in self.schema.keys.items()
            }
        return self._columns

    def as_columns(self) -> dict[str, Any]:
        """As msgpack has them: by column its key, its type, its values, and where there are any."""
        columns = [
            [key, name_of(kind), values, mask] for key, (kind, values, mask) in self.columns.items()
        ]
        return {TAG: "infos", "count": self.count, "columns": columns}

    def dicts(self) -> list[dict[str, Any]]:
        """The infos."""
        infos: list[dict[str, Any]] = [{} for _ in range(self.count)]
        for key, (kind, values, mask) in self.columns.items():
            each = kind.each(values)
            for position in range(self.count) if mask is None else mask.nonzero()[0].tolist():
                infos[position][key] = each[position]
        return infos


MAX_SCHEMAS = 64
"""Forms of tables that are kept of one vector environment."""

_AS_CELLS = tuple(NUMBER_KINDS[kind] for kind in (int, float, np.int64, np.float64))
"""The kinds of numbers that are in messages as they lie in cells."""


class InfoTables:
    """Makes tables of the infos of one vector environment, most of which are of one form."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[int, bytes], InfoSchema] = {}
        self._layout: ColumnLayout | None = None

    def table(self, batch: InfoBatch, envs: NDArray[np.intp]) -> InfoTable | None:
        """The table of a batch; None where its infos are not in columns that can travel."""
        layout = batch.common_layout
        if layout is None:
            return self._of_columns(batch, envs)
        if layout is not self._layout:
            self._layout, self._schemas = layout, {}
        # The count, too: with no columns there are no codes that would tell it.
        known = len(envs), batch.arrays.kinds.tobytes()
        schema = self._schemas.get(known)
        if schema is not None:
            return InfoTable.of_schema(schema, batch.arrays.cells)
        table = self._of_columns(batch, envs)
        if table is not None and len(self._schemas) < MAX_SCHEMAS:
            columns = table.columns
            if all([kind in _AS_CELLS and mask is None for kind, _, mask in columns.values()]):
                keys = {
                    key: (kind, layout.keys.index(key)) for key, (kind, _, _) in columns.items()
                }
                self._schemas[known] = InfoSchema(keys, table.count)
        return table

    @staticmethod
    def _of_columns(batch: InfoBatch, envs: NDArray[np.intp]) -> InfoTable | None:
        columns = batch.columns(envs)
        if columns is None or not _can_send_columns(columns):
            return None
        return InfoTable(columns, len(envs))


def info_table_from_wire(node: Any, count: int) -> InfoTable | None:
    """The table of infos that are sent as columns; None for infos sent as dicts."""
    if not isinstance(node, dict):
        return None
    check_fields(node, "infos")
    if node["count"] != count or not isinstance(node["columns"], list):
        raise WireError(f"expected columns of {count} infos")
    columns = {}
    for column in node["columns"]:
        if not isinstance(column, list) or len(column) != 4 or not isinstance(column[0], str):
            raise WireError("expected a key, a type, values and a mask for each column of infos")
        key, name, values, mask = column
        if mask is not None:
            mask = array_from_wire(mask, np.dtype(np.bool_), (count,))
        columns[key] = *_column_from_wire(name, values, count), mask
    return InfoTable(columns, count)


def _column_from_wire(name: Any, values: Any, count: int) -> tuple[Kind, NDArray[Any]]:
    if name == _ARRAYS and isinstance(values, dict):
        array = tagged_array_from_wire(values)
        if array.shape[:1] != (count,):
            raise WireError(f"expected {count} arrays in one, got shape {array.shape}")
        return ArrayKind(array.dtype, array.shape[1:]), array
    if not isinstance(name, str) or name not in _NUMBERS:
        names = ", ".join([*_NUMBERS, _ARRAYS])
        raise WireError(f"expected a type out of {names}, got {shortened(name)}")
    kind = _NUMBERS[name]
    return kind, array_from_wire(values, kind.dtype, (count,))


def infos_from_wire(node: Any, count: int) -> list[dict[Any, Any]]:
    """The infos of a message."""
    if (table := info_table_from_wire(node, count)) is not None:
        return table.dicts()
    if not isinstance(node, list) or len(node) != count:
        raise WireError(f"expected a list of {count} infos")
    infos = [from_wire(info) for info in node]
    for info in infos:
        if not isinstance(info, dict):
            raise WireError(f"expected infos that are dicts, got {shortened(info)}")
    return infos


def drop_unsendable(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """A dict without what cannot travel, of which a warning tells once."""
    travels = {}
    for key, value in info.items():
        try:
            to_wire({key: value})
        except WireError as error:
            _warn_of_key(f"{key!r}", f"{error}")
        else:
            travels[key] = value
    return travels


@lru_cache(256)
def _warn_of_key(key: str, why: str) -> None:
    logger.warning("a client is told nothing of %s, which cannot be sent: %s", key, why)
