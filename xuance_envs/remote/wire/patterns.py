"""Messages of which all but the data is the same again and again, such as answers to steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

__all__ = ["Pattern", "Patterned", "Patterns"]

MOST = 256
"""Patterns that are kept of one vector environment."""


class Pattern:
    """What is the same of messages: all but what of them is data.

    Attributes:
        heads: what comes before, between and after the data when they are written; None as long
            as nobody has written one.
        is_one: whether such messages can be written so, as far as is known.
    """

    __slots__ = ("heads", "is_one")

    def __init__(self) -> None:
        self.is_one = True
        self.heads: list[bytes] | None = None


class Patterned:
    """A message of a pattern.

    Args:
        pattern: its pattern.
        message: makes the message.
        data: the data of its arrays, and its lists of integers, in the order they are in it.
    """

    __slots__ = ("data", "message", "pattern")

    def __init__(
        self,
        pattern: Pattern,
        message: Callable[[], dict[str, Any]],
        data: Sequence[bytes | list[int]],
    ) -> None:
        self.pattern = pattern
        self.message = message
        self.data = data


class Patterns:
    """The patterns of one vector environment's messages."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Pattern] = {}

    def pattern(self, key: Hashable) -> Pattern:
        """The pattern of messages for which a key is the same."""
        pattern = self._known.get(key)
        if pattern is None:
            if len(self._known) >= MOST:
                self._known.clear()
            pattern = self._known[key] = Pattern()
        return pattern
