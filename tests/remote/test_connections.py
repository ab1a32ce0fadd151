"""How clients connect: TLS, proxies, Unix sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from serving import ServerMaker

from xuance_envs import errors
from xuance_envs.remote.client import api_client
from xuance_envs.remote.client.api_client import ApiClient
from xuance_envs.remote.client.remote_vec_env import RemoteVecEnv
from xuance_envs.remote.wire.constants import PROTOCOL_VERSION

VERSION = b'{"name": "xuance_envs", "protocol": %d, "version": "9"}' % PROTOCOL_VERSION
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
OK = HEAD + b"Content-Length: %d\r\n\r\n" % len(VERSION) + VERSION

Files = tuple[Path, Path]


class Answering:
    """Server that gives the same reply to all requests, and records them.

    ``tunnel`` makes it a proxy: it replies to CONNECT and then relays all bytes.
    """

    def __init__(
        self,
        reply: bytes = OK,
        tls: ssl.SSLContext | None = None,
        *,
        tunnel: bool = False,
        requests_per_connection: int = 100,
    ) -> None:
        self._listener = socket.create_server(("", 0))
        self._reply, self._tls, self._tunnel = reply, tls, tunnel
        self._requests_per_connection = requests_per_connection
        self.port = self._listener.getsockname()[1]
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                for _ in range(self._requests_per_connection):
                    if not (request := connection.recv(1 << 16)):
                        break
                    self.requests.append(request)
                    connection.sendall(self._reply)
                    if self._tunnel and self._reply.startswith(b"HTTP/1.1 200"):
                        relay(connection, request.split()[1].decode())
        self.closed.set()

    def close(self) -> None:
        with suppress(OSError):  # accept() would wait on, on a descriptor that may be another's
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def relay(connection: socket.socket, target: str) -> None:
    host, port = target.split(":")
    with socket.create_connection((host, int(port))) as other:
        back = threading.Thread(target=pass_on, args=(other, connection), daemon=True)
        back.start()
        pass_on(connection, other)
        back.join(10)


def pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Create servers; no variable of the environment names a proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(api_client, "RETRY_PAUSE", 0.01)
    made: list[Answering] = []

    def answering(*args: Any, **options: Any) -> Answering:
        made.append(Answering(*args, **options))
        return made[-1]

    yield answering
    for each in made:
        each.close()


def server_context(certificate: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def ask(url: str, times: int = 1, **options: Any) -> ApiClient:
    client = ApiClient(url, None, 10.0, **options)
    for _ in range(times):
        assert client.check_version() == "9"
    return client


# --- TLS ----------------------------------------------------------------------------------------


def test_a_client_shows_its_certificate(answering: Any, certificate: Files) -> None:
    demanding = server_context(certificate)
    demanding.verify_mode = ssl.CERT_REQUIRED
    demanding.load_verify_locations(certificate[0])
    server = answering(OK, demanding)
    with_own = ssl.create_default_context(cafile=certificate[0])
    with_own.load_cert_chain(*certificate)
    ask(server.url, verify=with_own).close()
    with pytest.raises(errors.RemoteUnreachableError):
        ask(server.url, verify=certificate[0])


@pytest.mark.parametrize("verify", [True, "another address"])
def test_a_certificate_of_another_is_refused(
    answering: Any, certificate: Files, verify: Any
) -> None:
    server = answering(OK, server_context(certificate))
    url = server.url
    if verify is not True:  # the right authority, but the certificate is not for this address
        verify, url = certificate[0], url.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(errors.RemoteUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(url, verify=verify)
    assert not server.requests


def test_connections_with_tls_are_used_again(answering: Any, certificate: Files) -> None:
    server = answering(OK, server_context(certificate))
    ask(server.url, 5, verify=certificate[0]).close()
    assert (server.connections, len(server.requests)) == (1, 5)


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_connection_that_the_server_closed_is_replaced(
    answering: Any, certificate: Files, tls: bool
) -> None:
    context = server_context(certificate) if tls else None
    server = answering(OK, context, requests_per_connection=1)
    client = ApiClient(server.url, None, 10.0, certificate[0])
    for _ in range(3):
        server.closed.clear()
        client.request("GET", "/api/v1/version")  # a request that must not be repeated
        assert server.closed.wait(10)
    assert (server.connections, len(server.requests)) == (3, 3)
    client.close()


def test_a_silent_tls_handshake_takes_the_time_of_a_connection(
    answering: Any, certificate: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "CONNECT_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        start = monotonic()
        with pytest.raises(errors.RemoteUnreachableError):
            ask(url, verify=certificate[0])
        assert monotonic() - start < 5


def test_a_response_that_tls_did_not_end_is_not_taken_for_a_whole_one(
    answering: Any, certificate: Files
) -> None:
    """Let the connection end the body, and cut it off without the end that TLS has."""
    server = answering(HEAD + b"\r\n" + VERSION, server_context(certificate), tunnel=False)
    server._requests_per_connection = 1
    with pytest.raises(errors.RemoteUnreachableError, match=r"EOF|closed"):
        ask(server.url, verify=certificate[0])


# --- proxies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("login", ["", "user:pass%20word@"])
def test_http_goes_through_a_proxy(
    answering: Any, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    proxy = answering()
    monkeypatch.setenv("http_proxy", f"http://{login}127.0.0.1:{proxy.port}")
    ask("http://envs.invalid/a", 2).close()
    first, *fields = proxy.requests[1].lower().split(b"\r\n")
    assert first == b"get http://envs.invalid/a/api/v1/version http/1.1"
    assert b"host: envs.invalid" in fields
    given = [field for field in fields if field.startswith(b"proxy-authorization")]
    assert given == ([b"proxy-authorization: basic dxnlcjpwyxnzihdvcmq="] if login else [])
    assert proxy.connections == 1


@pytest.mark.parametrize("login", ["", "user:password@"])
def test_https_goes_through_a_tunnel(
    answering: Any, certificate: Files, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    server = answering(OK, server_context(certificate))
    proxy = answering(b"HTTP/1.1 200 Connection established\r\n\r\n", tunnel=True)
    monkeypatch.setenv("https_proxy", f"{login}127.0.0.1:{proxy.port}")
    ask(server.url, 3, verify=certificate[0]).close()
    assert len(server.requests) == 3
    (tunnel,) = proxy.requests
    assert tunnel.startswith(b"CONNECT 127.0.0.1:%d HTTP/1." % server.port)
    assert (b"Proxy-Authorization: Basic dXNlcjpwYXNzd29yZA==\r\n" in tunnel) == bool(login)
    assert not any(b"Proxy-Authorization" in request for request in server.requests)


def test_a_proxy_that_refuses_a_tunnel_is_named(
    answering: Any, certificate: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = answering(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n", tunnel=True)
    monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{proxy.port}")
    with pytest.raises(errors.RemoteUnreachableError) as caught:
        ask("https://envs.invalid", verify=certificate[0])
    assert f"through the proxy http://127.0.0.1:{proxy.port}" in str(caught.value)
    assert "407" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "proxied"),
    [
        ({"HTTP_PROXY": "{proxy}"}, True),
        ({"https_proxy": "{proxy}"}, False),
        ({"http_proxy": "{proxy}", "no_proxy": "127.0.0.1"}, False),
        ({"http_proxy": "{proxy}", "NO_PROXY": "example.org, 127.0.0.1:{port}"}, False),
        ({"http_proxy": "{proxy}", "no_proxy": "*"}, False),
        ({"http_proxy": "{proxy}", "no_proxy": "example.org"}, True),
    ],
)
def test_variables_choose_the_proxy(
    answering: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], proxied: bool
) -> None:
    proxy, server = answering(), answering()
    for name, value in variables.items():
        given = value.format(proxy=f"http://127.0.0.1:{proxy.port}", port=server.port)
        monkeypatch.setenv(name, given)
    ask(server.url).close()
    assert (len(proxy.requests), len(server.requests)) == ((1, 0) if proxied else (0, 1))


# --- Unix sockets -------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no unix sockets here")
def test_a_unix_socket_is_an_address(
    serve: ServerMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = serve(address={"unix": tmp_path / "envs.sock"})
    with RemoteVecEnv(server.url, "Counting", 2) as envs:
        envs.reset()
        assert envs.step([1, 2])[1].tolist() == [1, 2]
    with pytest.raises(errors.RemoteUnreachableError, match=rf"unix:{tmp_path}/none: cannot be"):
        ask(f"unix:{tmp_path}/none")


def hosts(requests: Sequence[bytes]) -> list[bytes]:
    return [line for each in requests for line in each.split(b"\r\n") if line[:5] == b"Host:"]


@pytest.mark.parametrize("path", ["", "/", "/a b/é", "/a%20b"])
def test_paths_are_quoted_once(answering: Any, path: str) -> None:
    server = answering()
    ask(server.url + path).close()
    expected = {"/a b/é": "/a%20b/%C3%A9", "/": ""}.get(path, path)
    assert server.requests[0].startswith(f"GET {expected}/api/v1/version HTTP/1.1".encode())
    assert hosts(server.requests) == [b"Host: 127.0.0.1:%d" % server.port]
