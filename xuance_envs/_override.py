"""The ``override`` decorator, without ``typing_extensions`` at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import override as override
else:

    def override(method: Any) -> Any:
        return method
