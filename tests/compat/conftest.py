"""What the tests of other libraries' interfaces share."""

from __future__ import annotations

import multiprocessing

import pytest
from backends import quick_forkserver

__all__ = ["quick_forkserver"]


@pytest.fixture
def closing():
    """Registers vector environments, and closes them when the test is over."""
    made = []

    def register(vector_env):
        made.append(vector_env)
        return vector_env

    yield register
    while made:
        made.pop().close()
    assert multiprocessing.active_children() == [], "processes were left behind"
