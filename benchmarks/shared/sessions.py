"""Many concurrent sessions of a server, each of which steps as fast as it can."""

from __future__ import annotations

import re
import selectors
import socket
from dataclasses import dataclass, field
from time import perf_counter

import httpx
import msgpack
import numpy as np

__all__ = ["Load", "load"]

API_PREFIX = "/api/v1"
EVERY = 0.01
"""Seconds between two requests of ``/healthz``; more frequent requests would be a load."""

_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Load:
    """Figures of many sessions: requests per second, latency in seconds, fairness, health.

    ``least`` is the number of requests of the slowest session, relative to the mean. ``health`` is
    the longest duration of ``GET /healthz``.
    """

    requests: float
    p50: float
    p99: float
    least: float
    health: float


@dataclass
class _Session:
    """A session with its own connection."""

    connection: socket.socket
    head: bytes
    body: dict[str, object]
    since: float = 0.0
    sequence: int = 0
    received: bytes = b""
    took: list[float] = field(default_factory=list)

    def ask(self) -> None:
        """Send the next step."""
        message = self.head
        if self.body:
            self.sequence += 1
            self.body["sequence"] = self.sequence
            body = msgpack.packb(self.body)
            message = message % len(body) + body
        self.since = perf_counter()
        self.connection.sendall(message)

    def take(self) -> bool:
        """Read available bytes; return whether the reply is complete."""
        came = self.connection.recv(1 << 16)
        if not came:
            raise RuntimeError("the server closed a connection")
        self.received += came
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return False
        length = _LENGTH.search(self.received, 0, end)
        if length is None or not self.received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server replied {self.received[:300]!r}")
        if len(self.received) < end + 4 + int(length[1]):
            return False
        reply, self.received = self.received[end + 4 :], b""
        if b"columns" in reply:  # a new layout; the next requests say that it is known
            self.body["layout"] = msgpack.unpackb(reply)["layout"]
        self.took.append(perf_counter() - self.since)
        return True


def load(
    url: str, env_id: str, sessions: int, num_envs: int, seconds: float, runs: int
) -> list[Load]:
    """Open sessions, step each as fast as possible for some rounds, and close them."""
    address = httpx.URL(url).host, httpx.URL(url).port
    messages: list[dict[str, object]] = []
    data = np.zeros(num_envs, np.int64).tobytes()
    array = {"$": "array", "dtype": "int64", "shape": [num_envs], "data": data}
    actions = {"actions": array}
    with httpx.Client(base_url=url + API_PREFIX, timeout=120) as client:
        for number in range(sessions):
            session = client.post("session/create", json={}).json()["session_id"]
            message = {"session_id": session}
            made = {**message, "env_id": env_id, "num_envs": num_envs, "auto_reset": True}
            for path, sent in (("create", made), ("vectorized_reset", {**message, "seed": number})):
                client.post(f"episode/{path}", json=sent).raise_for_status()
            messages.append({**message, **actions, "layout": 0})
        # Connect late: the server closes connections without a request after some seconds.
        all_of_them = [_connected(address, _STEP, message) for message in messages]
        health = _connected(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", {})
        try:
            return [_measured(all_of_them, health, seconds) for _ in range(runs)]
        finally:
            for each in all_of_them:
                each.connection.close()
                client.delete(f"session/{each.body['session_id']}")
            health.connection.close()


def _measured(all_of_them: list[_Session], health: _Session, seconds: float) -> Load:
    for session in (*all_of_them, health):
        session.took = []
    elapsed = _run(all_of_them, health, seconds)
    counts = np.array([len(each.took) for each in all_of_them])
    took = np.concatenate([each.took for each in all_of_them])
    p50, p99 = np.percentile(took, [50, 99])
    return Load(
        counts.sum() / elapsed,
        float(p50),
        float(p99),
        float(counts.min() / counts.mean()),
        max(health.took),
    )


_STEP = (
    f"POST {API_PREFIX}/episode/vectorized_step HTTP/1.1\r\nHost: localhost\r\n"
    "Accept: application/msgpack\r\nContent-Type: application/msgpack\r\n"
).encode() + b"Content-Length: %d\r\n\r\n"


def _connected(address: tuple[str, int | None], head: bytes, body: dict[str, object]) -> _Session:
    connection = socket.create_connection((address[0], address[1] or 80))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _Session(connection, head, body)


def _run(sessions: list[_Session], health: _Session, seconds: float) -> float:
    selector = selectors.DefaultSelector()
    selector.register(health.connection, selectors.EVENT_READ, health)
    start = look = perf_counter()
    for session in sessions:
        selector.register(session.connection, selectors.EVENT_READ, session)
        session.ask()
    waiting, looking = len(sessions), False
    while waiting or looking:
        if waiting and not looking and perf_counter() >= look:
            health.ask()
            looking, look = True, perf_counter() + EVERY
        for key, _ in selector.select(EVERY):
            if key.data.take():
                if key.data is health:
                    looking = False
                elif perf_counter() - start < seconds:
                    key.data.ask()
                else:
                    waiting -= 1
    return perf_counter() - start
