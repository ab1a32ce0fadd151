"""Caches of request heads, and steps that take long."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgpack
import pytest
from remote_envs import SlowStepEnv
from serving import API_PREFIX, Asking, ServerMaker

from xuance_envs.remote.server import Server
from xuance_envs.remote.wire.formats import WireFormat, loads

# -- requests ---------------------------------------------------------------------------


@pytest.fixture
def connection(server: Server) -> Iterator[socket.socket]:
    address = urlsplit(server.url)
    with closing(socket.create_connection((address.hostname, address.port), 20)) as connection:
        yield connection


def request(path: str, message: dict[str, Any], *more: str) -> bytes:
    body = msgpack.packb(message)
    lines = [
        f"POST {API_PREFIX}/{path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/msgpack",
        *(f"Content-Length: {len(body)}" for _ in [0] if "Transfer-Encoding: chunked" not in more),
        *more,
    ]
    if "Transfer-Encoding: chunked" in more:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return "\r\n".join([*lines, "", ""]).encode() + body


def answers(connection: socket.socket, count: int) -> list[tuple[int, Any]]:
    """Return ``count`` answers; fail if data follows the last one."""
    found: list[tuple[int, Any]] = []
    body = bytearray()

    class Reader:
        def on_body(self, piece: bytes) -> None:
            body.extend(piece)

        def on_message_complete(self) -> None:
            found.append((parser.get_status_code(), loads(bytes(body), WireFormat.MSGPACK)))
            body.clear()

    parser = httptools.HttpResponseParser(Reader())
    while len(found) < count:
        received = connection.recv(2**16)
        assert received, f"the connection was closed after {len(found)} answers"
        parser.feed_data(received)
    connection.settimeout(0.05)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(20)
    return found


def steps(ask: Asking, count: int, *more: str) -> list[bytes]:
    """Return step requests that differ only in their sequence numbers, from 100 on."""
    return [
        request(
            "episode/vectorized_step",
            {"session_id": ask.id, "sequence": 100 + number, "actions": [0, 1]},
            *more,
        )
        for number in range(count)
    ]


def counts(found: list[tuple[int, Any]]) -> list[int]:
    """Return the environments' step count in each answer."""
    assert [status for status, _ in found] == [200] * len(found), found
    return [int(message["infos"][0]["step"]) for _, message in found]


def begin(ask: Asking) -> None:
    """Create and reset two environments with long episodes."""
    made = ask.ask("create", env_id="Counting", num_envs=2, kwargs={"length": 10**6})
    assert made.status_code == 200
    assert ask.ask("vectorized_reset", seed=0).status_code == 200


@pytest.fixture
def stepped(server: Server) -> Iterator[Asking]:
    ask = Asking(server)
    begin(ask)
    yield ask
    ask.close()


@pytest.mark.parametrize("seed", range(6))
def test_requests_are_answered_alike_however_they_arrive(
    stepped: Asking, connection: socket.socket, seed: int
) -> None:
    rng = random.Random(seed)
    for first in range(3):  # one by one, so that the head is cached
        connection.sendall(steps(stepped, 3)[first])
        assert counts(answers(connection, 1)) == [first]
    stream = b"".join(steps(stepped, 9)[3:])
    cuts = sorted(rng.sample(range(1, len(stream)), rng.choice([0, 3, 30])))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        connection.sendall(stream[start:end])
    assert counts(answers(connection, 6)) == [3, 4, 5, 6, 7, 8]


def test_a_head_that_differs_is_read(stepped: Asking, connection: socket.socket) -> None:
    known, *others = steps(stepped, 5)
    connection.sendall(known)
    connection.sendall(others[0])
    assert counts(answers(connection, 2)) == [0, 1]
    for changed, status in (
        (others[1].replace(b"vectorized_step", b"vectorized_stop"), 404),
        (others[1].replace(b"application/msgpack", b"application/msgpoek"), 415),
        (others[1].replace(b"Host: localhost", b"Host: elsewhere"), 421),
    ):
        assert len(changed) == len(others[1])
        with closing(socket.create_connection(connection.getpeername(), 20)) as fresh:
            for _ in range(3):  # after the first, the head is cached
                fresh.sendall(others[0])
                assert fresh.recv(2**16).startswith(b"HTTP/1.1 200 ")
            fresh.sendall(changed)
            assert fresh.recv(2**16).startswith(b"HTTP/1.1 %d " % status)


def test_a_body_longer_or_shorter_than_the_last_one_is_whole(
    stepped: Asking, connection: socket.socket
) -> None:
    for number in (1, 2, 200, 70_000, 70_001, 2**40):  # numbers of 1 to 9 bytes
        message = {"session_id": stepped.id, "sequence": number, "actions": [0, 1]}
        connection.sendall(request("episode/vectorized_step", message))
        answers(connection, 1)
    assert counts(answers_to(connection, steps_from(stepped, 2**41))) == [6]


def steps_from(ask: Asking, number: int) -> bytes:
    message = {"session_id": ask.id, "sequence": number, "actions": [0, 1]}
    return request("episode/vectorized_step", message)


def answers_to(connection: socket.socket, sent: bytes) -> list[tuple[int, Any]]:
    connection.sendall(sent)
    return answers(connection, 1)


@pytest.mark.parametrize("more", ["Transfer-Encoding: chunked", "X-Nothing: at all"])
def test_bodies_in_chunks_are_read_as_such(
    stepped: Asking, connection: socket.socket, more: str
) -> None:
    for number, each in enumerate(steps(stepped, 4, more)):
        connection.sendall(each)
        assert counts(answers(connection, 1)) == [number]


def test_what_follows_a_refused_body_is_no_request(serve: ServerMaker) -> None:
    """An attacker must not be able to hide a request in a body."""
    server = serve(body=3000, kwargs=("length",))
    ask = Asking(server)
    begin(ask)
    first, second, hidden, last = steps(ask, 4)
    address = urlsplit(server.url)
    with closing(socket.create_connection((address.hostname, address.port), 20)) as connection:
        for each in (first, second):
            connection.sendall(each)
            answers(connection, 1)
        head, _, _ = first.partition(b"Content-Length")
        connection.sendall(head + b"Content-Length: 1000000\r\n\r\n")
        assert b" 413 " in connection.recv(2**16).partition(b"\r\n")[0]
        connection.sendall(hidden)
        assert connection.recv(2**16) == b""
    with closing(socket.create_connection((address.hostname, address.port), 20)) as connection:
        assert counts(answers_to(connection, last)) == [2]


@pytest.mark.parametrize("cut", [2, -5], ids=["of a head", "of a body"])
def test_the_rest_of_a_request_is_no_beginning(
    stepped: Asking, connection: socket.socket, cut: int
) -> None:
    known, parted, other = steps(stepped, 3)
    connection.sendall(known)
    assert counts(answers(connection, 1)) == [0]
    connection.sendall(parted[:cut])
    time.sleep(0.05)
    rest = parted[cut:] if cut > 0 else parted[cut:] + other
    connection.sendall(rest)
    assert counts(answers(connection, 1 if cut > 0 else 2)) == [1, 2][: 1 if cut > 0 else 2]
    connection.sendall(rest)
    assert connection.recv(2**16).startswith(b"HTTP/1.1 400 ")


@pytest.mark.slow("waits for longer than a head may take")
def test_a_head_that_waits_for_slow_requests_is_not_late(serve: ServerMaker) -> None:
    server = serve({"Slow": SlowStepEnv}, head=1.5)
    ask = Asking(server).begin()
    message = {"session_id": ask.id, "actions": [0], "steps": 40}  # two seconds
    slow = [request("episode/vectorized_step", {**message, "sequence": n}) for n in (1, 2, 3, 4)]
    address = urlsplit(server.url)
    with closing(socket.create_connection((address.hostname, address.port), 20)) as connection:
        connection.sendall(b"".join(slow[:3]) + slow[3][:30])
        found = answers(connection, 2)
        connection.sendall(slow[3][30:])
        found += answers(connection, 2)
    assert [status for status, _ in found] == [200] * 4


def test_the_health_check_is_answered_again_and_again(connection: socket.socket) -> None:
    for _ in range(4):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200 OK")
