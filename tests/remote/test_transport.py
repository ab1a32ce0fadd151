"""The transport for plain HTTP: correct, malformed and missing responses."""

from __future__ import annotations

import functools
import gc
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from http.client import BadStatusLine, HTTPException, RemoteDisconnected, UnknownProtocol
from time import monotonic, sleep

import pytest

from xuance_envs.errors import RemoteUnreachableError
from xuance_envs.remote.client import api_client
from xuance_envs.remote.client import transport as transport_module
from xuance_envs.remote.client.address import Address, redacted
from xuance_envs.remote.client.transport import (
    ConnectError,
    HttpTransport,
    InvalidResponseError,
    Response,
)

address = functools.partial(Address.parse, schemes=("http", "https"))

Turn = Sequence[bytes | float]
"""What to send in answer to one request: pieces, with pauses in seconds in between."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-One: 1\r\n\r\nhi"


class Scripted:
    """Server that executes a script for each connection, and then closes the connection."""

    def __init__(self, connections: Sequence[Sequence[Turn]]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._connections = connections
        self.requests: list[bytes] = []
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.url = address(f"http://127.0.0.1:{self._socket.getsockname()[1]}")

    def _serve(self) -> None:
        for turns in self._connections:
            connection, _ = self._socket.accept()
            with connection, suppress(OSError):  # the client has disconnected
                for turn in turns:
                    self._answer(connection, turn)
            self.closed.set()

    def _answer(self, connection: socket.socket, turn: Turn) -> None:
        request = b""
        while b"\r\n\r\n" not in request or not request.endswith((b"end", b"\r\n\r\n")):
            if not (piece := connection.recv(1 << 16)):
                return
            request += piece
        self.requests.append(request)
        for part in turn:
            if isinstance(part, bytes):
                connection.sendall(part)
            else:
                threading.Event().wait(part)

    def close(self) -> None:
        self._socket.close()


Script = Callable[..., tuple[HttpTransport, Scripted]]


@pytest.fixture
def script() -> Iterator[Script]:
    made: list[tuple[HttpTransport, Scripted]] = []

    def script(*connections: Sequence[Turn]) -> tuple[HttpTransport, Scripted]:
        server = Scripted(connections)
        transport = HttpTransport(server.url._replace(path="/a"), {"X-Two": "2"})
        assert isinstance(transport, HttpTransport)
        made.append((transport, server))
        return made[-1]

    yield script
    for transport, server in made:
        transport.close()
        server.close()


def ask(
    transport: HttpTransport, server: Scripted, content: bytes = b"end", seconds: float = 10
) -> Response:
    return transport.exchange("POST", "/b?c=d", content, monotonic() + seconds, seconds)


def test_a_request_and_its_response(script: Script) -> None:
    transport, server = script([[OK]])
    response = ask(transport, server)
    assert (response.status, response.body, response.headers["x-one"]) == (200, b"hi", "1")
    head, body = server.requests[0].split(b"\r\n\r\n")
    first, *headers = head.lower().split(b"\r\n")
    assert first == b"post /a/b?c=d http/1.1"
    port = server.url.netloc.split(":")[1].encode()
    assert sorted(headers) == [b"content-length: 3", b"host: 127.0.0.1:%b" % port, b"x-two: 2"]
    assert body == b"end"


def test_a_connection_the_server_will_close_is_not_used_again(script: Script) -> None:
    last = OK.replace(b"X-One: 1", b"Connection: close")
    transport, server = script([[last], [OK]], [[OK]])
    assert [ask(transport, server).body for _ in range(2)] == [b"hi"] * 2
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "turn",
    [
        [OK[:20], 0.05, OK[20:-1], 0.05, OK[-1:]],
        [bytes([byte]) for byte in OK],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n",
            b"1\r\ni\r\n0\r\n\r\n",
        ],
        [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n", OK],
        [b"HTTP/1.0 200 OK\r\n\r\nh", b"i"],  # the end of the connection ends the body
    ],
    ids=["in pieces", "byte by byte", "chunked", "after interim ones", "until the end"],
)
def test_forms_of_a_response(script: Script, turn: Turn) -> None:
    transport, server = script([turn], [[OK]])
    for _ in range(2):
        response = ask(transport, server)
        assert (response.status, response.body) == (200, b"hi")
        assert server.closed.wait(10)


@pytest.mark.parametrize("turn", [[], [OK[:20]], [OK[:-1]]], ids=["none", "a head", "a body"])
def test_a_response_that_breaks_off(script: Script, turn: Turn) -> None:
    transport, server = script([turn], [[OK]])
    with pytest.raises(RemoteDisconnected, match="closed the connection"):
        ask(transport, server)
    assert ask(transport, server).body == b"hi"


def test_another_version_of_http(script: Script) -> None:
    transport, server = script([[OK.replace(b"HTTP/1.1", b"HTTP/3.0")]])
    with pytest.raises(UnknownProtocol, match=r"HTTP/3\.0"):
        ask(transport, server)


@pytest.mark.parametrize("length", [b"-7", b"x", b""])
def test_a_chunk_of_no_length(script: Script, length: bytes) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    transport, server = script([[chunked + length + b"\r\nhi\r\n0\r\n\r\n"]])
    with pytest.raises(HTTPException):
        ask(transport, server)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x16\x03\x01\x00", b"HTTP/1.1 x"])
def test_something_else_that_answers(script: Script, answer: bytes) -> None:
    transport, server = script([[answer]])
    with pytest.raises(BadStatusLine):
        ask(transport, server)


def test_the_time_is_that_of_all_pieces_together(script: Script) -> None:
    transport, server = script([[piece for byte in OK for piece in (bytes([byte]), 0.1)]], [[OK]])
    start = monotonic()
    with pytest.raises(TimeoutError):
        ask(transport, server, seconds=0.5)
    assert monotonic() - start < 5
    assert ask(transport, server).body == b"hi", "the rest of the late answer came here"


def test_a_reply_that_came_while_the_client_was_suspended(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, server = script([[OK]])
    original = transport_module._Stream.send

    def send(stream: transport_module._Stream, message: bytes) -> None:
        original(stream, message)
        sleep(0.6)

    monkeypatch.setattr(transport_module._Stream, "send", send)
    assert ask(transport, server, seconds=0.5).body == b"hi"


def test_a_request_that_is_not_taken(script: Script) -> None:
    transport, server = script([[2.0, OK]])
    with pytest.raises(TimeoutError):
        ask(transport, server, content=bytes(1 << 26), seconds=0.5)


def test_one_response_belongs_to_one_request(script: Script) -> None:
    transport, server = script([[OK + OK.replace(b"hi", b"no")]], [[OK]])
    with pytest.raises(InvalidResponseError, match="one response to a request, got a second one"):
        ask(transport, server)
    assert server.closed.wait(10), "nobody can tell whose what comes next there is"
    assert ask(transport, server).body == b"hi"


def test_a_response_that_nobody_asked_for_is_not_taken_for_the_next_one(script: Script) -> None:
    transport, server = script([[OK, 0.1, OK.replace(b"hi", b"no")], [OK]], [[OK]])
    assert ask(transport, server).body == b"hi"
    threading.Event().wait(0.3)
    assert ask(transport, server).body == b"hi"


ENDLESS = {
    "a header": [b"HTTP/1.1 200 OK\r\nX: "],
    "headers": [b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n" * 100] * 10_000],
    "interim ones": [b"HTTP/1.1 100 Continue\r\n\r\n" * 100] * 10_000,
    "a chunk's extension": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;"],
    "trailers": [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        *[b"X: y\r\n" * 100] * 10_000,
    ],
}


@pytest.mark.parametrize("start", ENDLESS.values(), ids=ENDLESS)
def test_a_head_is_bounded(script: Script, start: list[bytes]) -> None:
    rest = [] if len(start) > 2 else [b"x" * 2**16] * 100
    transport, server = script([[*start, *rest]])
    with pytest.raises(InvalidResponseError, match="head of at most 64 KiB"):
        ask(transport, server)


@pytest.mark.parametrize("length", [b"Content-Length: 5000", b"Transfer-Encoding: chunked"])
def test_a_body_is_bounded(script: Script, monkeypatch: pytest.MonkeyPatch, length: bytes) -> None:
    monkeypatch.setattr(transport_module, "MAX_BODY", 4096)
    body = b"1f4\r\n%b\r\n" % bytes(500) * 10 if b"chunked" in length else bytes(5000)
    transport, server = script([[b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % length, body]])
    with pytest.raises(InvalidResponseError, match="response of at most 4 KiB"):
        ask(transport, server)


def test_a_refusal_before_the_whole_request_has_come() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    def refuse() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(refusal)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 20):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=refuse, daemon=True).start()
        url = address(f"http://127.0.0.1:{listening.getsockname()[1]}")
        transport = HttpTransport(url, {})
        response = transport.exchange("POST", "/", bytes(1 << 24), monotonic() + 9, 9)
        assert response.status == 413
        transport.close()


def test_no_server(script: Script) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = address(f"http://127.0.0.1:{taken.getsockname()[1]}")
    for unreachable in (url, address("http://no-such-host.invalid")):
        with pytest.raises(ConnectError):
            HttpTransport(unreachable, {}).exchange("GET", "/", None, monotonic() + 5, 5)


@pytest.mark.parametrize(
    "proxy",
    [
        *("ftp://user:secret@x", "http://user:secret@", "http://xn--/"),
        *("https://127.0.0.1:1", "socks5://127.0.0.1:1"),
    ],
)
def test_a_proxy_that_is_none_is_said_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(ValueError, match="http_proxy: expected an address") as caught:
        HttpTransport(address("http://example.com"), {})
    assert "secret" not in str(caught.value)


def test_a_proxy_that_is_not_there_is_said_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr(api_client, "RETRIES", 0)
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        port = nobody.getsockname()[1]
    monkeypatch.setenv("http_proxy", f"user:secret@127.0.0.1:{port}")
    with pytest.raises(RemoteUnreachableError) as caught:
        api_client.ApiClient("http://example.invalid", None, 5.0).check_version()
    assert f"reached through the proxy http://127.0.0.1:{port}: Connect" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_authorities_that_cannot_be_read_are_said() -> None:
    with pytest.raises(ValueError, match=r"verify: expected .*no-such-file"):
        HttpTransport(address("https://example.org"), {}, "/no-such-file")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:se/c@ret@host:1/x", "http://host:1/x"),
        ("user:secret@host", "host"),
        ("http://host/x", "http://host/x"),
    ],
)
def test_addresses_are_shown_without_passwords(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_connections_that_are_forgotten_are_closed(script: Script) -> None:
    _, server = script([[OK], [OK]])
    transport = HttpTransport(server.url._replace(path="/a"), {})
    ask(transport, server)
    assert not server.closed.wait(0.1)
    del transport
    gc.collect()  # a warning about an open connection would be an error
    assert server.closed.wait(10)


def test_close_during_a_request_closes_its_connection_after_the_response(script: Script) -> None:
    transport, server = script([[0.2, OK], [OK]])
    asking = threading.Thread(target=ask, args=(transport, server))
    asking.start()
    transport.close()
    asking.join()
    assert len(server.requests) == 1
    assert server.closed.wait(10)


@pytest.mark.parametrize("answer", [0.5, b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n"])
def test_a_tunnel_that_fails_closes_its_connection(
    script: Script, monkeypatch: pytest.MonkeyPatch, answer: bytes | float
) -> None:
    _, proxy = script([[answer], [OK]])
    monkeypatch.setenv("https_proxy", f"http://{proxy.url.netloc}")
    transport = HttpTransport(address("https://envs.invalid"), {})
    with pytest.raises(ConnectError) as caught:
        transport.exchange("GET", "/", None, monotonic() + 10, 0.2)
    assert proxy.closed.wait(10)
    assert caught.value.__cause__
