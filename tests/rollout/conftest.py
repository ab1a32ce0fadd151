"""What the tests of rollouts share."""

from __future__ import annotations

import pytest


def pytest_pycollect_makemodule() -> None:
    """Skips all of them: to skip while this file is imported would end pytest itself."""
    for library in ("torch", "PIL", "tqdm"):
        pytest.importorskip(library)
