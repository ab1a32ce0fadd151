"""Templates of messages that differ only in their data, such as replies to steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

MAX_TEMPLATES = 256


class MessageTemplate:
    """Fixed parts of an encoded message; unusable if the data between them was not found."""

    __slots__ = ("fixed_parts", "usable")

    def __init__(self) -> None:
        self.usable = True
        self.fixed_parts: list[bytes] | None = None


class TemplatedMessage:
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
    def __init__(self) -> None:
        self._templates: dict[Hashable, MessageTemplate] = {}

    def template(self, key: Hashable) -> MessageTemplate:
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[key] = MessageTemplate()
        return template
