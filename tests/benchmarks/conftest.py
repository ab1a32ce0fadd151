"""What the tests of the benchmarks share."""

from __future__ import annotations

import pytest
from benchmark_runs import ROOT


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests import the package ``benchmarks``, which is not installed."""
    monkeypatch.syspath_prepend(ROOT)
