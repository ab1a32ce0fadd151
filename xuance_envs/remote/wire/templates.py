"""Templates of messages that differ only in their data, such as replies to steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

__all__ = ["MessageTemplate", "TemplateCache", "TemplatedMessage"]

MAX_TEMPLATES = 256
"""Maximum number of cached templates per vectorized environment."""


class MessageTemplate:
    """Encoded parts of a message between its data; unusable if its data cannot be located."""

    __slots__ = ("fixed_parts", "usable")

    def __init__(self) -> None:
        self.usable = True
        self.fixed_parts: list[bytes] | None = None


class TemplatedMessage:
    """Message with a template and its own data."""

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
    """Message templates of a vectorized environment."""

    def __init__(self) -> None:
        self._templates: dict[Hashable, MessageTemplate] = {}

    def template(self, key: Hashable) -> MessageTemplate:
        """Return the template of all messages with this key."""
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = MessageTemplate()
        return template
