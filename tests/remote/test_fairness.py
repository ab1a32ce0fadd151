"""Work per iteration of the server's event loop, however many connections there are."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any
from unittest.mock import Mock

from xuance_envs.remote.server.access import Proxies
from xuance_envs.remote.server.http.connection_manager import ConnectionManager
from xuance_envs.remote.server.settings import Limits


class Waiting:
    """Connection whose client has sent and read nothing for a while."""

    has_token = False
    looks = 0

    def __init__(self, manager: ConnectionManager, started: list[int]) -> None:
        self._manager, self._started = manager, started
        self._since = monotonic()

    @property
    def waiting_since(self) -> float | None:
        type(self).looks += 1
        return self._since

    def proceed(self) -> None:
        self._started[-1] += 1

    def abort(self) -> None:
        self._manager.connections.discard(self)

    def check_timeouts(self, now: float) -> None:
        pass


def manager_of(connections: int) -> ConnectionManager:
    limits = Limits(connections=connections)
    api: Any = Mock(capacity=Mock(limits=limits), post_routes={})
    return ConnectionManager(api, None, Proxies())


def test_few_pipelined_requests_start_before_other_tasks_run() -> None:
    started = [0]

    async def start() -> None:
        manager = manager_of(1024)
        for _ in range(1000):
            manager.start_pipelined(Waiting(manager, started).proceed)
        while sum(started) < 1000:
            started.append(0)
            await asyncio.sleep(0)

    asyncio.run(start())
    assert max(started) <= 4


def test_connections_beyond_the_limit_are_seldom_searched() -> None:
    manager = manager_of(1024)
    for _ in range(1024):
        assert manager.add(Waiting(manager, []))
    Waiting.looks = 0
    for _ in range(256):
        assert manager.add(Waiting(manager, []))
    assert Waiting.looks <= 4 * 1024
    assert 1024 - 64 <= len(manager.connections) <= 1024
