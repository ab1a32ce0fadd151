"""Servers on free loopback ports, and what asks them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from backends import quick_forkserver
from serving import ServerMaker, assert_nothing_is_left, make_server

from xuance_envs.remote.server import Server

__all__ = ["quick_forkserver"]


@pytest.fixture
def serve() -> Iterator[ServerMaker]:
    """Makes servers, and closes them when the test is over."""
    made: list[Server] = []

    def serve(*args: Any, **options: Any) -> Server:
        made.append(make_server(*args, **options))
        return made[-1]

    yield serve
    for server in made:
        server.close()
    assert_nothing_is_left()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for the tests of a module that leave it as it was."""
    server = make_server(kwargs=("length",), calls=("length", "describe"))
    yield server
    server.close()
    assert_nothing_is_left()
