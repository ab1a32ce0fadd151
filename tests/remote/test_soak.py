"""A day's worth of requests that are made to be expensive, in five minutes."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from contextlib import closing, suppress
from typing import Any

import httpx
import msgpack
import pytest
from serving import API, ServedProcess

SECONDS = 300
MANY = 2**20
GROWTH = 400
"""MiB that the server may grow by with its default limits; without them it was to 4.8 GB."""

PATIENCE = 2.5
"""Seconds that nobody else waits, on a machine that others use, too; without limits, 28."""


def resident_mib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) // 1024


class Attacker:
    """Somebody with a token, or without, who sends what is expensive."""

    def __init__(self, served: ServedProcess, number: int, token: str) -> None:
        self._url = served.url
        self._rng = random.Random(number)
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=served.url, headers=headers, timeout=120)
        self._session = ""

    def attack(self) -> None:
        """Does one thing."""
        attacks = [self.heads, self.half_open, self.nodes, self.keys, self.faults, self.unread]
        attacks += [self.environments, self.renew, self.json]
        with suppress(httpx.TransportError, OSError):
            self._rng.choice(attacks)()

    def close(self) -> None:
        self._client.close()

    def renew(self) -> None:
        if self._session:
            self._client.delete(f"{API}/session/{self._session}")
        answer = self._client.post(f"{API}/session/create", json={}).json()
        self._session = answer.get("session_id", "")
        self._post("create", num_envs=8)
        self._post("vectorized_reset")

    def _post(self, path: str, **message: Any) -> httpx.Response:
        body = msgpack.packb({"session_id": self._session, **message})
        headers = {"Content-Type": "application/msgpack"}
        return self._client.post(f"{API}/episode/{path}", content=body, headers=headers)

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
            self._client.post(f"{API}/episode/vectorized_step", content=body, headers=headers)

    def keys(self) -> None:
        items = [{"$": "int", "data": hex(k * (2**61 - 1))} for k in range(4000)]
        self._post("vectorized_reset", options={"a": {"$": "set", "items": items}})

    def faults(self) -> None:
        self._post("vectorized_reset", seed=[""] * 480_000)
        self._post("vectorized_reset", episode_ids=["x"] * 480_000)

    def unread(self) -> None:
        body = msgpack.packb({"session_id": self._session, "actions": [1] * 8, "steps": 1000})
        head = f"POST {API}/episode/vectorized_step HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: {self._client.headers['Authorization']}\r\n"
        head += "Content-Type: application/msgpack\r\nAccept: application/json\r\n"
        with closing(self._connection()) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(1.0)

    def json(self) -> None:
        message = {"session_id": self._session, "actions": [[0.5] * 60_000] * 8}
        self._client.post(f"{API}/episode/vectorized_step", json=message)

    def environments(self) -> None:
        for _ in range(20):
            self._post("create", num_envs=1)


@pytest.mark.long
def test_memory_and_others_answers_through_five_minutes_of_it() -> None:
    tokens = [f"token-{k}" for k in range(4)]
    served = ServedProcess(
        *("--env", "CartPole-v1", "--no-access-log", "--allow-option", "a", "--max-envs", "256"),
        XUANCE_ENVS_TOKENS=",".join(tokens),
    )
    until = time.monotonic() + SECONDS
    before, most, longest = resident_mib(served.pid), 0, 0.0
    attackers = [Attacker(served, number, token) for number, token in enumerate(tokens)]

    def attack(attacker: Attacker) -> None:
        while time.monotonic() < until:
            attacker.attack()

    threads = [threading.Thread(target=attack, args=(attacker,)) for attacker in attackers]
    for thread in threads:
        thread.start()
    with httpx.Client(base_url=served.url, timeout=120) as client:
        for _ in itertools.takewhile(lambda _: time.monotonic() < until, itertools.count()):
            start = time.monotonic()
            assert client.get("/healthz").status_code == 200
            longest = max(longest, time.monotonic() - start)
            most = max(most, resident_mib(served.pid))
            time.sleep(0.05)
    for thread in threads:
        thread.join()
    for attacker in attackers:
        attacker.close()
    print(f"grew by {most - before} MiB at most; the longest wait was {longest:.2f} s")
    assert most - before < GROWTH
    assert longest < PATIENCE
    assert served.close() in (0, -15)
