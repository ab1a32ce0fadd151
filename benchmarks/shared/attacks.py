"""Expensive requests to a server, and the delay of other clients meanwhile."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import httpx
import msgpack

__all__ = ["Attacker", "longest_waits", "watched_health"]

API_PREFIX = "/api/v1"
MANY = 2**20


class Attacker:
    """A client, with or without a token, that sends expensive requests."""

    def __init__(self, url: str, number: int, token: str) -> None:
        self._url = url
        self._rng = random.Random(number)
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=120)
        self._session = ""

    @property
    def attacks(self) -> dict[str, Callable[[], object]]:
        """All attacks by name."""
        return {
            "endless headers": self.heads,
            "200 incomplete headers": self.half_open,
            "body with 14 Mi values": self.nodes,
            "colliding integer keys": self.keys,
            "480,000 invalid values": self.faults,
            "unread reply": self.unread,
            "creation of 20 environments": self.environments,
            "new session": self.renew,
            "480,000 numbers as JSON": self.json,
        }

    def attack(self) -> None:
        """Execute one attack."""
        with suppress(httpx.TransportError, OSError):
            self._rng.choice(list(self.attacks.values()))()

    def close(self) -> None:
        self._client.close()

    def renew(self) -> None:
        if self._session:
            self._client.delete(f"{API_PREFIX}/session/{self._session}")
        answer = self._client.post(f"{API_PREFIX}/session/create", json={}).json()
        self._session = answer.get("session_id", "")
        self._post("create", num_envs=8)
        self._post("vectorized_reset")

    def _post(self, path: str, **message: Any) -> httpx.Response:
        body = msgpack.packb({"session_id": self._session, **message})
        headers = {"Content-Type": "application/msgpack"}
        return self._client.post(f"{API_PREFIX}/episode/{path}", content=body, headers=headers)

    def _connection(self) -> socket.socket:
        host, port = self._url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=20)

    def heads(self) -> None:
        with closing(self._connection()) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n")
            for _ in range(200):
                connection.sendall(b"x: " + b"y" * 2**16)

    def half_open(self) -> None:
        opened = [self._connection() for _ in range(200)]
        for connection in opened:
            connection.sendall(b"GET / HTTP/1.1\r\nx: " + b"y" * 2**15)
        for connection in opened:
            connection.close()

    def nodes(self) -> None:
        for content in (b"\x80", b"\x90", b"\xc0"):
            body = b"\xdd" + (14 * MANY).to_bytes(4, "big") + content * (14 * MANY)
            headers = {"Content-Type": "application/msgpack"}
            self._client.post(
                f"{API_PREFIX}/episode/vectorized_step", content=body, headers=headers
            )

    def keys(self) -> None:
        items = [{"$": "int", "data": hex(k * (2**61 - 1))} for k in range(4000)]
        self._post("vectorized_reset", options={"a": {"$": "set", "items": items}})

    def faults(self) -> None:
        self._post("vectorized_reset", seed=[""] * 480_000)
        self._post("vectorized_reset", episode_ids=["x"] * 480_000)

    def unread(self) -> None:
        body = msgpack.packb({"session_id": self._session, "actions": [1] * 8, "steps": 1000})
        head = f"POST {API_PREFIX}/episode/vectorized_step HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: {self._client.headers['Authorization']}\r\n"
        head += "Content-Type: application/msgpack\r\nAccept: application/json\r\n"
        with closing(self._connection()) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(1.0)

    def json(self) -> None:
        message = {"session_id": self._session, "actions": [[0.5] * 60_000] * 8}
        self._client.post(f"{API_PREFIX}/episode/vectorized_step", json=message)

    def environments(self) -> None:
        for _ in range(20):
            self._post("create", num_envs=1)


@contextmanager
def watched_health(url: str) -> Iterator[list[float]]:
    """Request ``/healthz`` continuously from a separate process.

    The yielded list receives the longest delay in seconds at the end.
    """
    here, there = get_context("spawn").Pipe()
    asking = get_context("spawn").Process(target=_ask, args=(url, there))
    asking.start()
    longest: list[float] = []
    here.recv()
    try:
        yield longest
    finally:
        here.send(None)
        longest.append(here.recv())
        asking.join()


def _ask(url: str, told: Connection) -> None:
    longest = 0.0
    with httpx.Client(base_url=url, timeout=120) as client:
        client.get("/healthz")
        told.send(None)
        over = False
        while not over:
            over = told.poll(0.002)  # wait once more, because short attacks take effect later
            start = time.perf_counter()
            client.get("/healthz").raise_for_status()
            longest = max(longest, time.perf_counter() - start)
    told.send(longest)


def longest_waits(url: str, token: str, times: int) -> dict[str, float]:
    """Return the longest delay of ``/healthz`` during each attack.

    The first entry is the delay without attacks.
    """
    attacker = Attacker(url, 0, token)
    waits = {}
    try:
        attacker.renew()
        for name, attack in {"nothing": lambda: time.sleep(0.3), **attacker.attacks}.items():
            with watched_health(url) as longest:
                for _ in range(times):
                    with suppress(httpx.TransportError, OSError):
                        attack()
            (waits[name],) = longest
    finally:
        attacker.close()
    return waits
