"""Expensive requests of attackers: refusing them is cheap, and no other client waits."""

from __future__ import annotations

import gc
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
from gymnasium import spaces
from pressure import seconds_stalled
from remote_envs import SERVED, CountingEnv, SlowStepEnv
from serving import API_PREFIX, Asking, ServedProcess, ServerMaker, make_server, wait_until

from xuance_envs.engine.by_value import ByValueUnpickler
from xuance_envs.remote.server import Server
from xuance_envs.remote.server.access import Permissions
from xuance_envs.remote.server.hosting.hosted_vec_env import HostedVecEnv
from xuance_envs.remote.server.http import connection_manager, http_protocol, listener
from xuance_envs.remote.server.http.messages import RequestModel
from xuance_envs.remote.server.limits import ByteBudget
from xuance_envs.remote.server.routes.api import Api
from xuance_envs.remote.settings import Catalogue, Settings
from xuance_envs.remote.wire.formats import WireFormat, dumps
from xuance_envs.remote.wire.values import MAX_COLLIDING

ROOT = Path(__file__).resolve().parents[2]
MSGPACK = {"Content-Type": "application/msgpack"}
PATIENCE = 2.5
"""Seconds that nobody else waits while CPUs are free; without bounds it was from 4 to 28."""


@pytest.fixture(scope="module")
def served() -> Iterator[ServedProcess]:
    served = ServedProcess(
        *("--env", "CartPole-v1", "--no-access-log", "--max-sessions-per-token", "64"),
        *("--allow-host", "allowed.example", "--allow-option", "a"),
    )
    yield served
    served.close()


@pytest.fixture
def session(served: ServedProcess) -> Iterator[tuple[httpx.Client, str]]:
    with httpx.Client(base_url=served.url + API_PREFIX, timeout=60) as client:
        session_id = client.post("session/create", json={}).json()["session_id"]
        assert client.post("episode/create", json={"session_id": session_id}).status_code == 200
        yield client, session_id
        client.delete(f"session/{session_id}")


def resident_mib(pid: int, name: str = "VmRSS") -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) // 1024


def forget_peak(pid: int) -> None:
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


@contextmanager
def nobody_waits(served: ServedProcess) -> Iterator[None]:
    """Send requests from another client; raise if a reply is slow or the server's memory grows."""
    longest, over = 0.0, threading.Event()
    forget_peak(served.pid)
    before = resident_mib(served.pid)

    def ask() -> None:
        nonlocal longest
        with httpx.Client(base_url=served.url, timeout=60) as client:
            while not over.is_set():
                start = time.monotonic() - seconds_stalled() / 2
                assert client.get("/healthz").status_code == 200
                longest = max(longest, time.monotonic() - seconds_stalled() / 2 - start)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()
    assert longest < PATIENCE
    assert resident_mib(served.pid, "VmHWM") - before < 400


COLLIDING = [k * (2**61 - 1) for k in range(4000)]
"""Integers of one hash: 80,000 of them in a set took 28 s, and a body holds 20 times as many."""


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("set", lambda: COLLIDING * 5),
        ("frozenset", lambda: COLLIDING * 5),
        ("dict", lambda: [[key, 0] for key in COLLIDING]),
        ("dict", lambda: [[{"$": "tuple", "items": [key]}, 0] for key in COLLIDING]),
    ],
    ids=["set", "frozenset", "dict", "keys that are tuples"],
)
def test_keys_that_collide_are_refused(
    served: ServedProcess,
    session: tuple[httpx.Client, str],
    kind: str,
    items: Callable[[], list[Any]],
) -> None:
    client, session_id = session
    value = {"$": kind, "items": items()}
    with nobody_waits(served):
        message = {"session_id": session_id, "options": {"a": [value]}}
        answer = client.post("episode/vectorized_reset", json=message)
    assert answer.status_code == 422
    assert "expected only strings or bytes" in answer.text


@pytest.mark.parametrize(
    "message",
    [
        lambda: {"seed": [""] * 480_000},
        lambda: {"episode_ids": [None] * 480_000},
        lambda: {f"odd{k}": 0 for k in range(200_000)},
        lambda: {"options": {str(k): 0 for k in range(200_000)}},
    ],
    ids=["seeds", "ids", "unknown", "options"],
)
def test_the_first_fault_ends_it(
    served: ServedProcess,
    session: tuple[httpx.Client, str],
    message: Callable[[], dict[str, Any]],
) -> None:
    client, session_id = session
    body = msgpack.packb({"session_id": session_id, **message()})
    with nobody_waits(served):
        start = time.monotonic() - seconds_stalled() / 2
        answer = client.post("episode/vectorized_reset", content=body, headers=MSGPACK)
        assert time.monotonic() - seconds_stalled() / 2 - start < PATIENCE
    assert (answer.status_code, len(answer.content) < 2000) == (422, True)


MANY = 14 * 2**20


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (lambda: b"\xdd" + MANY.to_bytes(4, "big") + b"\x80" * MANY, "application/msgpack"),
        (lambda: b"[" + b"{}," * (MANY // 3) + b"0]", "application/json"),
    ],
    ids=["msgpack", "json"],
)
def test_values_are_counted_before_they_are_made(
    served: ServedProcess,
    session: tuple[httpx.Client, str],
    body: Callable[[], bytes],
    content_type: str,
) -> None:
    url = f"{served.url}{API_PREFIX}/episode/vectorized_step"
    content = body()
    headers = {"Content-Type": content_type}
    answers: list[httpx.Response] = []

    def send() -> None:
        answers.append(httpx.post(url, content=content, headers=headers, timeout=60))

    with nobody_waits(served):
        threads = [threading.Thread(target=send) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {answer.status_code for answer in answers} == {413}
    assert "at most 500000 values" in answers[0].text


def test_a_large_body_is_not_read_without_a_session(serve: ServerMaker) -> None:
    server = serve(tokens=("a", "b"))
    ask = Asking(server, "a")
    url = f"{server.url}{API_PREFIX}/episode/vectorized_step"
    for token, status in (("none", 401), ("b", 404), ("a", 400)):
        headers = {"Authorization": f"Bearer {token}", **MSGPACK}
        answer = httpx.post(url, content=b"\xc1" * 100_000, headers=headers)
        assert answer.status_code == status, answer.text
    assert ask.close().status_code == 200


@pytest.fixture(scope="module")
def two_tokens() -> Iterator[Server]:
    server = make_server(tokens=("a", "b"), bodies=2**20)
    yield server
    server.close()


ROUTES = sorted(Api(Settings(Catalogue(SERVED))).post_routes)


@pytest.mark.parametrize("query", ["", "?a=b"], ids=["path", "path and query"])
@pytest.mark.parametrize("path", ROUTES, ids=[path.rpartition("/")[2] for path in ROUTES])
def test_no_route_reads_a_large_body_without_room_for_it(
    two_tokens: Server, path: str, query: str
) -> None:
    asking = [Asking(two_tokens, token) for token in ("a", "b")]
    head = f"POST {path}{query} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2**23}\r\n"
    head += "Content-Type: application/json\r\nExpect: 100-continue\r\n"
    heads = [f"{head}Authorization: Bearer {token}\r\n\r\n".encode() for token in ("a", "b")]
    with closing(connect(two_tokens.url)) as first, closing(connect(two_tokens.url)) as second:
        first.sendall(heads[0])
        if path.endswith(("session/create", "episode/statistics")):
            assert status_of(first) == 413
        else:
            assert status_of(first) == 100, "this one has all the room"
            second.sendall(heads[1])
            assert not select.select([second], [], [], 0.3)[0]
            first.close()
            assert status_of(second) == 100
    for ask in asking:
        assert ask.close().status_code == 200


# --- heads, and connections ---------------------------------------------------------------------


def connect(url: str) -> socket.socket:
    host, port = url.rpartition("/")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def is_closed(connection: socket.socket) -> bool:
    """Wait for data and return whether the connection was closed instead."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def status_of(connection: socket.socket) -> int:
    return int(connection.recv(1000).split()[1])


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET / HTTP/1.1\r\n", b"x-header: " + b"y" * 1000 + b"\r\n"),
        (b"GET / HTTP/1.1\r\nx-header: ", b"y" * 2**16),
        (b"GET /", b"y" * 2**16),
        (b"GET / HTTP/1.1\r\n", b"a:b\r\n"),
    ],
    ids=["many headers", "one header", "a path", "short headers"],
)
def test_a_head_is_bounded(serve: ServerMaker, start: bytes, more: bytes) -> None:
    server = serve()
    with closing(connect(server.url)) as connection:
        connection.sendall(start + more * (2**16 // len(more) + 200))
        assert status_of(connection) == 431
        connection.sendall(more * 10)  # the server discards it
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_thousands_of_pipelined_requests_are_served(serve: ServerMaker) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Padding: %b\r\n\r\n" % (b"y" * 97)
    count = 6000
    with closing(connect(serve().url)) as connection:
        sender = threading.Thread(target=connection.sendall, args=(request * count,))
        sender.start()
        answers = b""
        while answers.count(b"HTTP/1.1 ") < count and (piece := connection.recv(2**16)):
            answers += piece
        sender.join()
    assert answers.count(b"HTTP/1.1 200 OK") == count


def test_a_head_after_pipelined_requests_is_bounded(serve: ServerMaker) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with closing(connect(serve().url)) as connection:
        connection.sendall(request * 1000 + b"GET / HTTP/1.1\r\nX-Header: " + b"y" * 2**18)
        answers = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(2**16):
                answers += piece
    assert b"HTTP/1.1 431 " in answers


@pytest.mark.parametrize(
    "header",
    [
        *("Authorization: Bearer a", "Authorization: Bearer b", "Content-Length: 2"),
        *("Content-Type: application/json", "Host: localhost", "Origin: http://localhost"),
        "Transfer-Encoding: chunked",
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
def test_a_header_that_must_be_single_is_refused_twice(
    two_tokens: Server, method: str, header: str
) -> None:
    ask = Asking(two_tokens, "a")
    path = {"POST": "session/create", "DELETE": f"session/{ask.id}", "GET": "sessions"}[method]
    name = header.partition(":")[0]
    lines = [
        f"{method} {API_PREFIX}/{path} HTTP/1.1",
        *("Host: localhost", "Authorization: Bearer a", "Content-Type: application/json"),
        "Content-Length: 2",
    ]
    lines = [each for each in lines if name != "Transfer-Encoding" or "Length" not in each]
    lines += [header] * (1 + (name not in "\n".join(lines)))
    with closing(connect(two_tokens.url)) as connection:
        connection.sendall("\r\n".join([*lines, "", "{}"]).encode())
        assert status_of(connection) == 400
    assert ask.ask("vectorized_reset").status_code == 409, "the session is still open"
    assert httpx.get(f"{two_tokens.url}/status.json").json()["sessions"] == 1
    ask.close()


def test_a_head_has_its_time(serve: ServerMaker, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(head=0.2)
    with (
        closing(connect(server.url)) as silent,
        closing(connect(server.url)) as half,
        closing(connect(server.url)) as second,
    ):
        half.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status_of(second) == 200
        second.sendall(b"\r\n\r\n")  # data, but no head
        for connection in (silent, half, second):
            assert is_closed(connection)
    assert "no complete request head within 0.2 s" in caplog.text


def test_a_connection_that_pauses_for_long_is_closed(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "KEEP_ALIVE_TIMEOUT", 0.1)
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with closing(connect(serve().url)) as connection:
        connection.sendall(request * 2)
        answers = b""
        while piece := connection.recv(2**16):
            answers += piece
    assert answers.count(b"HTTP/1.1 200 OK") == 2


def test_connections_that_do_nothing_make_room(
    serve: ServerMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(connections=20)
    with httpx.Client(base_url=server.url, timeout=20) as client:
        assert client.get("/healthz").status_code == 200
        half_open = [connect(server.url) for _ in range(60)]
        for connection in half_open:
            with suppress(OSError):  # it had to make room already
                connection.sendall(b"GET / HT")
        assert httpx.get(f"{server.url}/healthz", timeout=20).status_code == 200
        for connection in half_open:
            connection.close()
    assert "closed an idle connection: the limit is 20" in caplog.text


DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


def stalled(stack: ExitStack, server: Server) -> socket.socket:
    """Return a connection that has sent many requests and reads no reply."""
    connection = stack.enter_context(closing(connect(server.url)))
    connection.setblocking(False)
    with suppress(OSError):
        while True:
            connection.send(DOCUMENT * 1000)
    return connection


def test_replies_that_nobody_reads_are_few_and_make_room(
    serve: ServerMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(connections=20)
    with ExitStack() as stack:
        unread = [stalled(stack, server) for _ in range(20)]
        served: Any = server._server.server_state.connections
        wait_until(lambda: sum(each.transport.get_write_buffer_size() > 0 for each in served) == 20)
        for each in served:
            assert len(each.pipeline) <= 1
            assert each.transport.get_write_buffer_size() < 2**17
            assert each._written < 2**20  # the kernel would take megabytes by default
        for _ in range(30):
            assert httpx.get(f"{server.url}/healthz", timeout=20).status_code == 200
        assert "closed an idle connection: the limit is 20" in caplog.text
        del unread


@pytest.mark.parametrize("tls", [False, True])
def test_unread_replies_have_a_limit_over_all_connections(
    serve: ServerMaker,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tls: bool,
) -> None:
    monkeypatch.setattr(connection_manager, "MAX_UNREAD", 2**20)
    certfile, keyfile = certificate
    server = serve(address={"certfile": certfile, "keyfile": keyfile} if tls else None)
    context: Any = ssl.create_default_context(cafile=certfile)
    with ExitStack() as stack:
        for _ in range(24):
            connection = stack.enter_context(closing(connect(server.url)))
            if tls:
                connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
                stack.enter_context(closing(connection))
            connection.sendall(DOCUMENT * 500)
        wait_until(lambda: "too many replies have not been read" in caplog.text)
        manager = next(iter(server._server.server_state.connections)).manager
        assert 2**19 < sum(manager._unread.values()) <= 2**20
        assert httpx.get(f"{server.url}/healthz", verify=context, timeout=20).status_code == 200
    wait_until(lambda: not manager._unread)


def test_pipelined_requests_have_a_limit_over_all_connections(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_UNPARSED", 2**17)
    server = serve()
    with ExitStack() as stack:
        for _ in range(10):
            stalled(stack, server)
        wait_until(lambda: "too many pipelined requests are waiting" in caplog.text)
        manager = next(iter(server._server.server_state.connections)).manager
        assert 0 < manager.unparsed_bytes <= 2**17
        assert httpx.get(f"{server.url}/healthz", timeout=20).status_code == 200
    wait_until(lambda: manager.unparsed_bytes == 0)


def test_a_request_with_a_token_is_not_closed_for_others_without(serve: ServerMaker) -> None:
    server = serve({"Slow": SlowStepEnv}, tokens=("a",), connections=8)
    ask = Asking(server, "a").begin()
    answers: list[httpx.Response] = []
    step = partial(ask.ask, "vectorized_step", actions=[0], steps=40)
    thread = threading.Thread(target=lambda: answers.append(step()))
    thread.start()
    with ExitStack() as stack:
        while thread.is_alive():
            stalled(stack, server)
            time.sleep(0.05)
    thread.join()
    assert answers[0].status_code == 200


def test_pipelined_replies_go_on_when_they_are_read(serve: ServerMaker) -> None:
    server = serve()
    expected = httpx.get(f"{server.url}/openapi.json").content
    count = 700
    with closing(connect(server.url)) as connection:
        connection.sendall(DOCUMENT * count)
        served: Any = server._server.server_state.connections
        wait_until(lambda: any(each.transport.get_write_buffer_size() for each in served))
        answers = bytearray()
        while answers.count(b"HTTP/1.1 ") < count or not answers.endswith(expected):
            piece = connection.recv(2**20)
            assert piece
            answers += piece
    assert answers.count(expected) == count


def test_the_openapi_document_is_made_once(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it was made again")

    monkeypatch.setattr(RequestModel, "model_json_schema", fail)
    plain = httpx.get(f"{server.url}/openapi.json")
    assert plain.status_code == 200
    assert httpx.get(f"{server.url}/openapi.json?a").content == plain.content
    head = httpx.head(f"{server.url}/openapi.json")
    assert head.headers["content-length"] == f"{len(plain.content)}"


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "begun"])
def test_connections_without_a_handshake_make_room(
    serve: ServerMaker,
    certificate: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
    start: bytes,
) -> None:
    certfile, keyfile = certificate
    server = serve(connections=20, address={"certfile": certfile, "keyfile": keyfile})
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(connect(server.url))) for _ in range(60)]
        for connection in silent:
            with suppress(OSError):  # it had to make room already
                connection.sendall(start)
        closed = select.select(silent, [], [], 5)[0]
        assert closed
        assert all(map(is_closed, closed))
        trusted = ssl.create_default_context(cafile=certfile)
        health = httpx.get(f"{server.url}/healthz", verify=trusted, timeout=20)
        assert health.status_code == 200
    assert "closed an idle connection: the limit is 20" in caplog.text


def test_connections_without_a_handshake_take_little_memory(
    serve: ServerMaker, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    certfile, keyfile = certificate
    server = serve(address={"certfile": certfile, "keyfile": keyfile})
    context = ssl.create_default_context(cafile=certfile)

    def tls_states() -> int:
        gc.collect()  # connections that have ended, also of earlier tests
        return sum(issubclass(type(each), ssl.SSLObject) for each in gc.get_objects())

    with ExitStack() as stack:
        silent = [stack.enter_context(closing(connect(server.url))) for _ in range(20)]
        assert httpx.get(f"{server.url}/healthz", verify=context, timeout=20).status_code == 200
        # The server accepted the silent ones before that one, whose end it may still have to see.
        wait_until(lambda: tls_states() == 0)
        for connection in silent[:5]:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01")
        wait_until(lambda: tls_states() == 5)
        started = []
        start = listener.TlsHandshake.start
        monkeypatch.setattr(
            listener.TlsHandshake, "start", lambda *given: (started.append(1), start(*given))
        )
        for connection in silent[5:]:
            connection.close()
        assert httpx.get(f"{server.url}/healthz", verify=context, timeout=20).status_code == 200
        assert len(started) == 1  # that of the request


def test_too_many_unfinished_handshakes_replace_the_oldest(
    serve: ServerMaker,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(listener, "MAX_HANDSHAKES", 4)
    certfile, keyfile = certificate
    server = serve(address={"certfile": certfile, "keyfile": keyfile})
    context = ssl.create_default_context(cafile=certfile)
    with ExitStack() as stack:
        begun = []
        for _ in range(6):
            begun.append(stack.enter_context(closing(connect(server.url))))
            begun[-1].sendall(b"\x16\x03\x01\x02\x00\x01")
            assert httpx.get(f"{server.url}/healthz", verify=context, timeout=20).status_code == 200
        assert all(map(is_closed, begun[:2]))
        assert not select.select(begun[3:], [], [], 0.0)[0]
    assert "ended a TLS handshake: 4 others have begun" in caplog.text


def test_a_handshake_has_the_time_of_a_head(
    serve: ServerMaker, certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    certfile, keyfile = certificate
    server = serve(head=0.2, address={"certfile": certfile, "keyfile": keyfile})
    with closing(connect(server.url)) as silent, closing(connect(server.url)) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert is_closed(silent)
        plain.recv(1000)  # a TLS alert, if any
        assert is_closed(plain)
    assert "closed a connection: its TLS handshake failed" in caplog.text


def test_what_comes_with_the_end_of_a_handshake_is_not_lost(
    serve: ServerMaker, certificate: tuple[Path, Path]
) -> None:
    certfile, keyfile = certificate
    server = serve(address={"certfile": certfile, "keyfile": keyfile})
    context = ssl.create_default_context(cafile=certfile)
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sent, server_hostname="127.0.0.1")
    with closing(connect(server.url)) as connection:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(sent.read())
                received.write(connection.recv(2**16))
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.sendall(sent.read())  # the last handshake message and a request in one piece
        answer = b""
        while b"ok" not in answer:
            received.write(connection.recv(2**16))
            with suppress(ssl.SSLWantReadError):  # a session ticket arrived first
                answer += tls.read()
    assert answer.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:8001.evil.example"}, 403),
        ({"Host": "127.0.0.1:8001.evil.example"}, 421),
        ({"Host": "127.0.0.1:"}, 421),
        ({"Host": "[::1].evil.example"}, 421),
        ({"Host": "evil.example:1]:8001"}, 421),
        ({"Host": "localhost:9", "Origin": "http://localhost:3"}, 200),
        ({"Host": "[::1]:8001"}, 200),
        ({"Host": "Allowed.example"}, 200),
    ],
)
def test_without_tokens_only_its_own_address_is_served(
    served: ServedProcess, headers: dict[str, str], status: int
) -> None:
    for method, path in (("POST", f"{API_PREFIX}/session/create"), ("GET", "/status.json")):
        body = {"json": {}} if method == "POST" else {}
        answer = httpx.request(method, served.url + path, headers=headers, **body)
        assert answer.status_code == status, answer.text


def test_with_tokens_any_host_is_served(serve: ServerMaker) -> None:
    server = serve(tokens=("a",))
    headers = {"Host": "anywhere.example", "Authorization": "Bearer a"}
    answer = httpx.post(f"{server.url}{API_PREFIX}/session/create", json={}, headers=headers)
    assert answer.status_code == 200


# --- answers ------------------------------------------------------------------------------------


class LargeEnv(CountingEnv):
    """Environment with large observations and attributes."""

    size = 2**18

    def __init__(self, env_seed=0):
        super().__init__(env_seed)
        self.observation_space = spaces.Box(0, 1, (self.size,), np.float64)
        self.many = list(range(400_000))

    def observe(self):
        return np.full(self.size, 1 / 3)

    def render(self):
        return np.zeros((1000, 1000, 3), np.uint8)


def large(serve: ServerMaker, **limits: Any) -> Asking:
    allowed = Permissions(gets=frozenset({"many"}))
    server = serve({"Large": LargeEnv}, allow=allowed, **limits)
    ask = Asking(server)
    assert ask.ask("create", num_envs=1, auto_reset=True).status_code == 200
    return ask


def test_an_answer_counts_as_it_is_written(serve: ServerMaker) -> None:
    ask = large(serve, reply=5 * 2**20)
    many = {"operation": "get_attr", "name": "many"}
    for form, reset, render in (("json", 413, 413), ("msgpack", 200, 200)):
        ask.client.headers["accept"] = f"application/{form}"
        assert ask.ask("vectorized_reset").status_code == reset, "2 MiB, up to 6.5 as JSON"
        assert ask.ask("call", operation="render").status_code == render, "3 MB, 6 as JSON"
        assert ask.ask("call", **many).status_code == 200
    assert ask.ask("vectorized_step", actions=[0]).status_code == 200


def test_a_large_reply_is_built_in_memory_that_is_reserved(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    building: list[int] = []
    reserve = ByteBudget.reserve

    @asynccontextmanager
    async def count(self: ByteBudget, size: int, timeout: float) -> AsyncIterator[None]:
        async with reserve(self, size, timeout):
            if timeout == 54.0:  # not for the sending of a reply
                building.append(size)
            yield

    monkeypatch.setattr(ByteBudget, "reserve", count)
    server = serve({"Large": LargeEnv}, request=54.0)
    ask = Asking(server)
    assert ask.ask("create", auto_reset=True).status_code == 200
    for path, message in (
        ("vectorized_reset", {}),
        ("vectorized_step", {"actions": [0]}),
        ("states", {"operation": "clone", "sources": ask.episodes, "episode_ids": ask.episodes}),
    ):
        assert ask.ask(path, **message).status_code == 200
        assert len(building) == 1
        assert building.pop() >= 8 * LargeEnv.size
    student = Asking(server).begin("Large")
    assert len(building) == 1, "its reset"
    assert student.ask("vectorized_step", actions=[0], steps=2).status_code == 200
    assert building.pop() == 2 * building.pop()


def graph(size: int) -> spaces.GraphInstance:
    return spaces.GraphInstance(np.zeros((size // 8, 1)), None, None)


OBJECTS: dict[str, tuple[spaces.Space[Any], Callable[[int], Any]]] = {
    "Text": (spaces.Text(10**5, charset="x"), lambda size: "x" * size),
    "Graph": (spaces.Graph(spaces.Box(0, 1, (1,), np.float64), None), graph),
    "Sequence": (
        spaces.Sequence(spaces.Box(0, 1, (50,), np.float64)),
        lambda size: tuple(np.zeros((size // 400, 50))),
    ),
    "Dict": (
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Text(10**5, charset="x")}),
        lambda size: {"a": 0, "b": "x" * size},
    ),
}
"""Spaces whose observations have no fixed size, and observations of some bytes."""


class SizedEnv(CountingEnv):
    """Environment whose observation has 100 bytes, or as many hundreds as its action."""

    def __init__(self, kind, env_seed=0, first=1):
        super().__init__(env_seed, length=10**6)
        self.action_space = spaces.Discrete(1000)
        self.observation_space, self.make = OBJECTS[kind]
        self.size = first

    def step(self, action):
        self.size = int(action)
        return super().step(action)

    def observe(self):
        return self.make(100 * self.size)


@pytest.mark.parametrize(
    ("kind", "auto_reset", "workers"),
    [
        *((kind, True, 1) for kind in OBJECTS),
        ("Text", False, 1),
        ("Text", True, 2),
        ("Text", False, 2),
        *(
            pytest.param(kind, False, 1, marks=pytest.mark.long)
            for kind in OBJECTS
            if kind != "Text"
        ),
    ],
)
def test_objects_are_counted_before_they_reach_the_server(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch, kind: str, auto_reset: bool, workers: int
) -> None:
    arrived: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        receive = getattr(HostedVecEnv, name)

        def receive_and_count(*args: Any, **keywords: Any) -> Any:
            result = receive(*args, **keywords)
            arrived.append(name)
            return result

        return receive_and_count

    for name in ("call", "finish_step"):
        monkeypatch.setattr(HostedVecEnv, name, counted(name))
    ask = Asking(serve({"Sized": partial(SizedEnv, kind)}, reply=40_000, workers=2))
    ask.client.headers["accept"] = "application/msgpack"
    ask.ask("create", num_envs=4, auto_reset=auto_reset, num_workers=workers)
    assert ask.ask("vectorized_reset").status_code == 200
    steps = 1 if auto_reset else 10
    small, large = ([size // steps] * 4 for size in (80, 120))
    for _ in range(3):  # each reply on its own
        answer = ask.ask("vectorized_step", actions=small, steps=steps)
        assert answer.status_code == 200, answer.text
    assert len(arrived) == 3
    refused = ask.ask("vectorized_step", actions=large, steps=steps)
    assert refused.status_code == (409 if auto_reset else 413)
    assert b"would exceed the 40000 bytes" in refused.content
    assert len(arrived) == 3, "the worker refuses it"
    if not auto_reset:
        assert ask.ask("vectorized_step", actions=small, steps=steps).status_code == 409
        assert ask.ask("vectorized_reset").status_code == 200
        assert ask.ask("vectorized_step", actions=small, steps=steps).status_code == 200


@pytest.mark.parametrize("auto_reset", [False, True], ids=["repeated", "stepped"])
def test_objects_of_first_observations_are_counted(serve: ServerMaker, auto_reset: bool) -> None:
    ask = Asking(serve({"Sized": partial(SizedEnv, "Text", first=80)}, reply=40_000))
    ask.ask("create", num_envs=4, auto_reset=auto_reset)
    for _ in range(3):  # each reply on its own
        assert ask.ask("vectorized_reset").status_code == 200
    ask.ask("create", num_envs=6, auto_reset=auto_reset)
    refused = ask.ask("vectorized_reset", episode_ids=ask.episodes[4:])
    assert refused.status_code == 409
    assert b"would exceed the 40000 bytes" in refused.content


@pytest.mark.parametrize("auto_reset", [False, True], ids=["repeated", "stepped"])
def test_objects_of_loaded_states_are_counted(serve: ServerMaker, auto_reset: bool) -> None:
    ask = Asking(serve({"Sized": partial(SizedEnv, "Text")}, reply=40_000)).begin(
        num_envs=4, auto_reset=auto_reset
    )
    assert ask.ask("vectorized_step", actions=[200, 1, 1, 1]).status_code == 200
    saved = ask.ask("states", operation="save").json()["states"]
    first, *others = ask.episodes
    clone = partial(ask.ask, "states", operation="clone", sources=[first])
    load = partial(ask.ask, "states", operation="load")

    def check_refused() -> None:
        for refused in (clone(episode_ids=others), load(states=saved[:1] * 4)):
            assert refused.status_code == 413
            assert "would exceed the 40000 bytes" in refused.text

    check_refused()
    assert load(states=saved).status_code == 200
    check_refused()
    assert clone(episode_ids=others[:1]).status_code == 200
    assert load(states=saved).status_code == 200


@pytest.mark.parametrize(
    "message",
    [np.full((1000, 1000), 1 / 3), {"infos": [{"a": list(range(1000)), "b": 1 / 3}] * 4000}],
    ids=["array", "infos"],
)
def test_others_go_on_while_an_answer_is_written(message: Any) -> None:
    expected = json.loads(dumps({"a": message}, WireFormat.JSON))
    written: list[bytes] = []
    thread = threading.Thread(
        target=lambda: written.append(dumps({"a": message}, WireFormat.JSON, 2**30))
    )
    turns = 0
    thread.start()
    while thread.is_alive():
        time.sleep(1e-4)
        turns += 1
    assert json.loads(written[0]) == expected
    assert turns > 10, "of one call it would be one or two"


def test_long_lists_are_written_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    packer = msgpack.Packer
    largest = 0

    class Measuring:
        def __init__(self, **options: Any) -> None:
            self._packer = packer(**options)

        def pack(self, node: Any) -> Any:
            nonlocal largest
            largest = max(largest, values_in(node))
            return self._packer.pack(node)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._packer, name)

    monkeypatch.setattr(msgpack, "Packer", Measuring)
    infos = [{"a": [k / 7 for k in range(20_000)], "b": "c"}] * 64
    message = {"infos": infos, "numbers": {str(k): [k] * 9 for k in range(5_000)}}
    written: list[bytes] = []
    thread = threading.Thread(  # each thread has its own encoder
        target=lambda: written.append(dumps(message, WireFormat.MSGPACK, 2**30))
    )
    thread.start()
    thread.join()
    assert written == [packer().pack(message)]
    assert 0 < largest <= 2**14


def values_in(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(values_in, value)) if isinstance(value, list | tuple) else 1


class InfoEnv(CountingEnv):
    """Environment with many numbers in its infos."""

    def step(self, action):
        return (*super().step(action)[:4], {"many": [k / 7 for k in range(20_000)]})


def test_infos_of_several_environments_are_read_one_by_one(
    serve: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve({"Info": InfoEnv}, allow=Permissions(infos=frozenset({"*"})))
    ask = Asking(server).begin(num_envs=8)
    largest = 0
    read = ByValueUnpickler.load

    def read_and_measure(self: ByValueUnpickler) -> Any:
        nonlocal largest
        result = read(self)
        largest = max(largest, values_in(result))
        return result

    monkeypatch.setattr(ByValueUnpickler, "load", read_and_measure)
    infos = ask.ask("vectorized_step", actions=[0] * 8).json()["infos"]
    assert [len(info["many"]) for info in infos] == [20_000] * 8
    assert 20_000 <= largest < 40_000


def test_large_answers_are_kept_as_long_as_there_is_room(serve: ServerMaker) -> None:
    server = serve({"Large": LargeEnv}, kept=5 * 2**20)
    asking = [Asking(server) for _ in range(3)]
    for ask in asking:
        ask.client.headers["accept"] = "application/msgpack"
        ask.ask("create", auto_reset=True)
        assert ask.ask("vectorized_reset", sequence=7).status_code == 200
    codes = [ask.ask("vectorized_reset", sequence=7).status_code for ask in asking]
    assert codes == [409, 200, 200], "the first one's made room"
    refused = asking[0].ask("vectorized_reset", sequence=7)
    assert msgpack.unpackb(refused.content)["error"]["code"] == "gone"
    assert asking[0].ask("vectorized_reset", sequence=8).status_code == 200


def test_who_does_not_take_an_answer_is_cut_off(
    serve: ServerMaker, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve({"Large": LargeEnv}, write=0.5)
    ask = Asking(server)
    ask.client.headers["accept"] = "application/msgpack"
    ask.ask("create", num_envs=8, auto_reset=True)
    body = json.dumps({"session_id": ask.id}).encode()
    head = (
        f"POST {API_PREFIX}/episode/vectorized_reset HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nAccept: application/msgpack\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with closing(connect(server.url)) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: "its client did not read a reply within 0.5 s" in caplog.text)
    assert ask.ask("vectorized_reset").status_code == 200


def test_keys_up_to_a_number_may_be_anything(serve: ServerMaker) -> None:
    ask = Asking(serve(allow=Permissions(options=frozenset({"a"}))))
    ask.ask("create", env_id="Counting")
    for count, status in ((MAX_COLLIDING, 200), (MAX_COLLIDING + 1, 422)):
        options = {"a": {"$": "dict", "items": [[key, 0] for key in range(count)]}}
        assert ask.ask("vectorized_reset", options=options).status_code == status
    texts = [str(key) for key in range(1000)]
    pairs = [[text, 0] for text in texts]
    for kind, items, status in (
        ("set", texts, 200),
        ("dict", pairs, 200),
        ("dict", texts, 422),
        ("dict", [5, *pairs], 422),
    ):
        options = {"a": {"$": kind, "items": items}}
        assert ask.ask("vectorized_reset", options=options).status_code == status
