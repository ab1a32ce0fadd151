"""One Ray for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ray_actors import local_ray


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    """Ray on this machine; the actors of these tests take next to nothing of its CPUs."""
    pytest.importorskip("ray")
    with local_ray() as ray:
        yield ray
