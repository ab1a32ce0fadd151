"""Messages of which all but the data is the same again and again, such as answers to steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

__all__ = ["MessageTemplate", "TemplateCache", "TemplatedMessage"]

MAX_TEMPLATES = 256
"""TemplateCache that are kept of one vector environment."""


class MessageTemplate:
    """What is the same of messages: all but what of them is data."""

    __slots__ = ("fixed_parts", "usable")

    def __init__(self) -> None:
        self.usable = True
        self.fixed_parts: list[bytes] | None = None


class TemplatedMessage:
    """A message of a template."""

    __slots__ = ("data", "message", "template")

    def __init__(
        self,
        template: MessageTemplate,
        message: Callable[[], dict[str, Any]],
        data: Sequence[bytes | list[int]],
    ) -> None:
        self.template = template
        self.message = message
        self.data = data


class TemplateCache:
    """The patterns of one vector environment's messages."""

    def __init__(self) -> None:
        self._known: dict[Hashable, MessageTemplate] = {}

    def template(self, key: Hashable) -> MessageTemplate:
        """The template of messages for which a key is the same."""
        template = self._known.get(key)
        if template is None:
            if len(self._known) >= MAX_TEMPLATES:
                self._known.clear()
            template = self._known[key] = MessageTemplate()
        return template
