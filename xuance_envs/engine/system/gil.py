"""State of the global interpreter lock (GIL)."""

from __future__ import annotations

import sys


def gil_is_enabled() -> bool:
    """Return whether the GIL is on; in a free-threaded Python, an import may turn it on."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    return True if is_enabled is None else bool(is_enabled())
