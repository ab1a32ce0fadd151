"""Servers on free loopback ports, and sessions asked for by hand, in JSON."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import Any, ClassVar

import httpx
from remote_envs import SERVED

from xuance_envs.remote.server import Server
from xuance_envs.remote.settings import Catalogue, Limits, Settings, Tokens

API = "/api/v1"
ServerMaker = Callable[..., Server]


def make_server(
    served: dict[str, Any] | None = None,
    *,
    tokens: tuple[str, ...] = (),
    kwargs: tuple[str, ...] = (),
    calls: tuple[str, ...] = (),
    **limits: Any,
) -> Server:
    """A server in this process, in a thread of its own; it has been started."""
    catalogue = Catalogue(SERVED if served is None else served, kwargs)
    settings = Settings(catalogue, Tokens(tokens), Limits(**limits), frozenset(calls))
    server = Server(settings, port=0)
    server.start()
    return server


def assert_nothing_is_left() -> None:
    """Closes the clients, and raises if a process of an environment outlives its server."""
    while Asking.open:
        Asking.open.pop().close()
    assert multiprocessing.active_children() == [], "processes were left behind"


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Waits for something that happens by itself."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class Asking:
    """A session asked for by hand."""

    open: ClassVar[list[httpx.Client]] = []

    def __init__(self, server: Server, token: str | None = None, **create: Any) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=server.url + API, headers=headers, timeout=60)
        self.open.append(self.client)
        self.id = self.post("session/create", **create).json()["session_id"]

    def post(self, path: str, **message: Any) -> httpx.Response:
        return self.client.post(path, json=message)

    def ask(self, path: str, **message: Any) -> httpx.Response:
        return self.post(f"episode/{path}", session_id=self.id, **message)

    def close(self) -> httpx.Response:
        return self.client.delete(f"session/{self.id}")
