"""What the tests of faults share: none of them may leave anything behind."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker

import pytest
from leftovers import nothing_left

__all__ = ["no_leftovers"]


@pytest.fixture(autouse=True)
def no_leftovers(quick_forkserver: None) -> Iterator[None]:
    """Fails a test that leaves descriptors, shared memory, threads or processes behind."""
    multiprocessing.active_children()
    resource_tracker.ensure_running()  # these two stay, and are nobody's fault
    forkserver.ensure_running()
    with nothing_left():
        yield
