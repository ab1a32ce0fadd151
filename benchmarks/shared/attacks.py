"""Expensive requests to a server, and the delay of other clients meanwhile."""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgpack

__all__ = ["Attacker", "Effect", "effects", "watched_health"]

API_PREFIX = "/api/v1"
MANY = 2**20
BODY = 16 * 2**20


class Effect(NamedTuple):
    """Other clients' longest ``/healthz`` and step in seconds; the server's growth in MiB."""

    health: float
    step: float
    growth: float


class Attacker:
    """A client, with or without a token, that sends expensive requests."""

    def __init__(self, url: str, number: int, token: str, verify: Any = True) -> None:
        self._url = url
        self._rng = random.Random(number)
        headers = {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=120, verify=verify, limits=limits
        )
        self._tls = verify if isinstance(verify, ssl.SSLContext) else None
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
            "60 bodies of 16 MiB to session/create": lambda: self.bodies("session/create"),
            "60 bodies of 16 MiB to episode/statistics": lambda: self.bodies("episode/statistics"),
            "1,200 connections with unread replies": self.pipelined,
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
        address = urlsplit(self._url)
        assert address.port is not None
        return socket.create_connection((address.hostname, address.port), timeout=20)

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

    def bodies(self, path: str) -> None:
        body = b" " * (BODY - 2) + b"{}"
        headers = {"Content-Type": "application/json"}

        def send(_: int) -> None:
            with suppress(httpx.TransportError):
                self._client.post(f"{API_PREFIX}/{path}", content=body, headers=headers)

        with ThreadPoolExecutor(60) as threads:
            list(threads.map(send, range(60)))

    def pipelined(self) -> None:
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with ExitStack() as stack:
            for _ in range(1200):
                connection = stack.enter_context(self._connection())
                if self._tls is not None:
                    host = urlsplit(self._url).hostname
                    secured = self._tls.wrap_socket(connection, server_hostname=host)
                    connection = stack.enter_context(secured)
                connection.setblocking(False)
                with suppress(OSError):
                    connection.send(request * 1000)
            time.sleep(5.0)

    def silent(self) -> None:
        """Open connections without a TLS handshake."""
        self._open_and_send(b"")

    def unfinished(self) -> None:
        """Open connections that only begin a TLS handshake."""
        sent = ssl.MemoryBIO()
        tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="-")
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        self._open_and_send(sent.read())

    def _open_and_send(self, data: bytes) -> None:
        with ExitStack() as stack:
            for _ in range(1200):
                stack.enter_context(self._connection()).sendall(data)
            time.sleep(2.0)

    def texts(self) -> None:
        """Repeat steps of environments with large objects as observations."""
        self._post("create", num_envs=64)
        self._post("vectorized_reset")
        self._post("vectorized_step", actions=[0] * 64, steps=1000)

    @property
    def on_states(self) -> dict[str, Callable[[], object]]:
        """Attacks with states, by name, for environments with states of 60 MiB."""
        return {
            "16 states of 60 MiB, beyond the limit": self.refused_states,
            "4 states of 60 MiB, loaded 16 times in other processes": self.kept_states,
        }

    def refused_states(self) -> None:
        self._post("states", operation="save", episode_ids=self._created(16))

    def kept_states(self) -> None:
        own, opened = self._session, []
        for _ in range(4):
            answer = self._client.post(f"{API_PREFIX}/session/create", json={}).json()
            self._session = answer["session_id"]
            opened.append(self._session)
            saved, loaded = self._created(1), self._created(1)
            states = self._post("states", operation="save", episode_ids=saved)
            numbers = msgpack.unpackb(states.content)["states"]
            for _ in range(4):
                self._post("states", operation="load", states=numbers, episode_ids=loaded)
        for session in opened:
            self._client.delete(f"{API_PREFIX}/session/{session}")
        self._session = own

    def _created(self, num_envs: int) -> list[str]:
        """Create environments, reset them and return their episode ids."""
        answer = self._post("create", num_envs=num_envs)
        episodes: list[str] = msgpack.unpackb(answer.content)["episode_ids"]
        self._post("vectorized_reset", episode_ids=episodes).raise_for_status()
        return episodes

    def environments(self) -> None:
        for _ in range(20):
            self._post("create", num_envs=1)


@contextmanager
def watched_health(url: str, cafile: str | None = None) -> Iterator[list[float]]:
    """Request ``/healthz`` and steps of a small session continuously, from a separate process.

    The session belongs to the token ``other``, which a server with tokens must accept. At the end,
    the yielded list receives the longest ``/healthz`` and the longest step, in seconds.
    """
    context = get_context("forkserver")  # the next process need not import all this again
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe()
    asking = context.Process(target=_ask, args=(url, cafile, there))
    asking.start()
    there.close()  # so that recv raises if the process ends early
    longest: list[float] = []
    here.recv()
    try:
        yield longest
    finally:
        here.send(None)
        longest += here.recv()
        asking.join()


class _Client:
    """A client that connects again if the server closed its connection."""

    def __init__(self, url: str, cafile: str | None) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
        if cafile is not None:
            self._connection = http.client.HTTPSConnection(
                address.hostname,
                address.port,
                timeout=120,
                context=ssl.create_default_context(cafile=cafile),
            )

    def request(self, method: str, path: str, message: Mapping[str, Any] | None = None) -> Any:
        body = None if message is None else json.dumps(message)
        headers = {"Authorization": "Bearer other", "Content-Type": "application/json"}
        while True:
            try:
                self._connection.request(method, path, body, headers)
                reply = self._connection.getresponse()
                answer = json.loads(reply.read())
            except (ConnectionError, http.client.HTTPException):
                self._connection.close()
                continue
            if reply.status != 200:
                raise RuntimeError(f"{method} {path} was refused: {answer}")
            return answer

    def close(self) -> None:
        self._connection.close()


def _ask(url: str, cafile: str | None, pipe: Connection) -> None:
    health, steps = _Client(url, cafile), _Client(url, cafile)
    session = steps.request("POST", f"{API_PREFIX}/session/create", {})["session_id"]
    message = {"session_id": session, "actions": [0]}
    steps.request("POST", f"{API_PREFIX}/episode/create", {"session_id": session})
    steps.request("POST", f"{API_PREFIX}/episode/vectorized_reset", {"session_id": session})
    health.request("GET", "/healthz")
    pipe.send(None)
    longest = [0.0, 0.0]
    over = False
    while not over:
        over = pipe.poll(0.002)  # short attacks take effect afterwards: wait once more
        start = time.perf_counter()
        health.request("GET", "/healthz")
        between = time.perf_counter()
        steps.request("POST", f"{API_PREFIX}/episode/vectorized_step", message)
        seconds = between - start, time.perf_counter() - between
        longest = [max(pair) for pair in zip(longest, seconds, strict=True)]
        health.close()  # new clients are served, too
    steps.request("DELETE", f"{API_PREFIX}/session/{session}")
    pipe.send(longest)


def effects(
    url: str,
    pid: int,
    times: int,
    attacks: Callable[[Attacker], Mapping[str, Callable[[], object]]],
    cafile: str | None = None,
) -> dict[str, Effect]:
    """Return the effect of each attack on a server process and its other clients."""
    verify = True if cafile is None else ssl.create_default_context(cafile=cafile)
    attacker = Attacker(url, 0, "anybody", verify)
    found = {}
    try:
        attacker.renew()
        for name, attack in attacks(attacker).items():
            before = _memory(pid, "VmRSS", reset_peak=True)
            with watched_health(url, cafile) as longest:
                for _ in range(times):
                    with suppress(httpx.TransportError, OSError):
                        attack()
            health, step = longest
            found[name] = Effect(health, step, _memory(pid, "VmHWM") - before)
    finally:
        attacker.close()
    return found


def _memory(pid: int, field: str, reset_peak: bool = False) -> float:
    """Return a process's memory, or its peak, in MiB."""
    folder = Path(f"/proc/{pid}")
    if reset_peak:
        (folder / "clear_refs").write_text("5")
    lines = (folder / "status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))
