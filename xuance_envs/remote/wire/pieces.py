"""Encoding of messages in pieces that each take a limited time, within a size limit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from xuance_envs.remote.wire.bounds import TooLargeError
from xuance_envs.remote.wire.nodes import LazyList

BLOCK = 8192  # maximum values to encode in one call, because other threads wait during the call

_CONTAINERS = frozenset({dict, list, LazyList})


class PieceWriter(ABC):
    """Encoder of messages; subclasses define the format."""

    comma = b""
    leaf_costs: Mapping[type, Callable[[Any], int]] = {}  # in values, if encoding them takes long
    encode: Callable[[Any], bytes]

    def write(self, message: Any, limit: float) -> bytes:
        self._limit, self._added, self._size = limit, 0, 0
        if self._cost(message) <= BLOCK:
            encoded = self.encode(message)
        else:
            self._pieces: list[bytes] = []
            self._write_large(message)
            encoded, self._pieces = b"".join(self._pieces), []
        if len(encoded) > limit:
            raise TooLargeError(int(limit))
        return encoded

    def _write_large(self, node: Any) -> None:
        if isinstance(node, dict | list | LazyList):
            self._write_items(node)
        else:
            self.write_leaf(node)

    def _write_items(self, node: Any) -> None:
        opening, closing = self.brackets(node)
        self.add(opening)
        comma = b""
        for block in ([item] for item in node) if isinstance(node, LazyList) else (node,):
            comma = self._write_block(block, comma)
        self.add(closing)

    def _write_block(self, block: Any, comma: bytes) -> bytes:
        """Write items of a dict or list behind ``comma``; return the next comma."""
        if self._cost(block) <= BLOCK:
            self.add(comma + self.encode_items(block))
            return self.comma
        items = list(block.items()) if isinstance(block, dict) else block
        if (half := len(items) // 2) > 0:
            for part in (items[:half], items[half:]):
                comma = self._write_block(dict(part) if isinstance(block, dict) else part, comma)
            return comma
        ((key, node),) = items if isinstance(block, dict) else [(None, *items)]
        self.add(comma + (b"" if key is None else self.encode_key(key)))
        self._write_large(node)
        return self.comma

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._added += len(piece)
        self._size = self._added
        self.count(0)

    def count(self, size: int) -> None:
        """Count bytes of the next piece; raise if the message would be too large."""
        self._size += size
        if self._size > self._limit:
            raise TooLargeError(int(self._limit))

    def _cost(self, node: Any) -> int:
        """Return the number of values to encode in a node; above BLOCK, only a lower bound."""
        found, cost, leaf_costs = [node], 0, self.leaf_costs
        for each in found:
            if (kind := type(each)) in _CONTAINERS:
                cost += len(each)
                if kind is LazyList or cost > BLOCK:
                    return BLOCK + 1
                found += each.values() if kind is dict else each
            elif kind in leaf_costs:
                cost += leaf_costs[kind](each)
        return cost

    @abstractmethod
    def brackets(self, node: Any) -> tuple[bytes, bytes]:
        """Return what is before and behind the items of a dict or list."""

    @abstractmethod
    def encode_key(self, key: str) -> bytes: ...

    @abstractmethod
    def encode_items(self, items: Any) -> bytes:
        """Encode the items of a small dict or list, without its brackets."""

    def write_leaf(self, node: Any) -> None:
        """Write a large value other than a dict or list; there is none without ``leaf_costs``."""
        raise NotImplementedError
