"""Encoding of messages in pieces that each take a limited time, within a size limit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import islice
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
        comma, is_dict = b"", isinstance(node, dict)
        items = iter(node.items() if is_dict else node)
        size = 1 if isinstance(node, LazyList) else BLOCK
        while block := list(islice(items, size)):
            waiting = [block]
            while waiting:
                part = waiting.pop()
                container = dict(part) if is_dict else part
                if self._cost(container) <= BLOCK:
                    self.add(comma + self.encode_items(container))
                elif half := len(part) // 2:
                    waiting += [part[half:], part[:half]]
                    continue
                else:
                    self.add(comma + (self.encode_key(part[0][0]) if is_dict else b""))
                    self._write_large(part[0][1] if is_dict else part[0])
                comma = self.comma
        self.add(closing)

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
