"""Names for annotations, which need no ``typing_extensions`` at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
    from typing_extensions import override as override
else:
    Unpack = Any

    def override(method: Any) -> Any:
        return method
