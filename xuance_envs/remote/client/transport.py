"""HTTP transports of clients: plain HTTP through sockets, everything else through httpx.

httpx parses HTTP in Python, which takes as long as stepping dozens of environments. The plain
transport uses llhttp, uvicorn's parser. Both transports raise httpx's exceptions.
"""

from __future__ import annotations

import re
import socket
import ssl
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import httptools
import httpx

from xuance_envs._override import override

# Limits on a response in bytes; MAX_CHUNK_FRAMING is per chunk of a chunked body.
MAX_HEAD = 1 << 16
MAX_BODY = 1 << 30
MAX_CHUNK_FRAMING = 32

_CHUNK = 1 << 18

Verify = bool | str | Path | ssl.SSLContext
"""Whether to check the server's certificate, or the certificate authorities to check it against."""


class InvalidResponseError(httpx.TransportError):
    """A response that cannot be used; a retry would not help."""


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpTransport(ABC):
    def __init__(self, url: httpx.URL, headers: Mapping[str, str]) -> None:
        self._base = str(url).rstrip("/")
        self._headers = dict(headers)
        self._urls: dict[str, httpx.URL] = {}
        self.route = ""

    @abstractmethod
    def exchange(
        self, method: str, path: str, content: bytes | None, deadline: float, connect: float
    ) -> Response:
        """Send a request and return the response; connecting takes at most ``connect`` seconds."""

    @abstractmethod
    def close(self) -> None:
        pass

    def _url(self, path: str) -> httpx.URL:
        url = self._urls.get(path)
        if url is None:  # cached, because parsing a URL takes a large part of a step's time
            url = self._urls[path] = httpx.URL(f"{self._base}{path}")
        return url


def make_transport(
    url: httpx.URL, headers: Mapping[str, str], verify: Verify = True
) -> HttpTransport:
    """Create a transport; it uses the proxy set in environment variables, if any."""
    proxy = _proxy_for(url)
    if url.scheme == "http" and proxy is None:
        return PlainTransport(url, headers)
    return HttpxTransport(url, headers, verify, proxy)


def redacted(url: str) -> str:
    """Remove user and password from an address, to display it."""
    return re.sub(r"^([a-z][a-z0-9+.-]*://)?.*@", r"\1", url, flags=re.DOTALL | re.IGNORECASE)


def _ssl_verify(verify: Verify) -> bool | ssl.SSLContext:
    if isinstance(verify, bool | ssl.SSLContext):
        return verify
    path = Path(verify)
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ValueError(
            f"verify: expected a bool, an SSL context, or a file or folder of CA certificates, "
            f"got {str(verify)!r}: {error}"
        ) from None


def _proxy_for(url: httpx.URL) -> httpx.URL | None:
    if urllib.request.proxy_bypass(f"{url.host}:{url.port}" if url.port else url.host):
        return None
    address = urllib.request.getproxies().get(url.scheme)
    if not address:
        return None
    try:
        proxy = httpx.URL(address if "://" in address else f"http://{address}")
        if proxy.scheme in ("http", "https", "socks5", "socks5h") and proxy.host:
            return proxy
    except (httpx.InvalidURL, UnicodeError):
        pass
    raise ValueError(
        f"environment variable {url.scheme}_proxy: expected an address such as http://host:3128, "
        f"got {redacted(address)!r}"
    )


class HttpxTransport(HttpTransport):
    def __init__(
        self,
        url: httpx.URL,
        headers: Mapping[str, str],
        verify: Verify = True,
        proxy: httpx.URL | None = None,
    ) -> None:
        super().__init__(url, headers)
        if proxy is not None:
            self.route = f" through the proxy {redacted(str(proxy))}"
        self._transport = httpx.HTTPTransport(verify=_ssl_verify(verify), proxy=proxy)

    @override
    def exchange(
        self, method: str, path: str, content: bytes | None, deadline: float, connect: float
    ) -> Response:
        remaining = max(1e-3, deadline - monotonic())
        limits = {
            "connect": min(remaining, connect),
            "read": remaining,
            "write": remaining,
            "pool": remaining,
        }
        request = httpx.Request(
            method,
            self._url(path),
            headers=self._headers,
            content=content,
            extensions={"timeout": limits},
        )
        response = self._transport.handle_request(request)
        try:
            _check_encoding(response.headers.get("content-encoding"))
            body = _body_of(response, deadline)
        finally:
            response.close()
        return Response(response.status_code, response.headers, body)

    @override
    def close(self) -> None:
        self._transport.close()


def _check_encoding(encoding: str | None) -> None:
    if encoding not in (None, "identity"):
        raise InvalidResponseError(
            f"expected a response without content encoding, got {encoding!a}"
        )


def _body_of(response: httpx.Response, deadline: float) -> bytes:
    pieces: list[bytes] = []
    size = 0
    for piece in response.iter_raw():
        size += len(piece)
        if size > MAX_BODY:
            raise _too_large("response", MAX_BODY)
        pieces.append(piece)
        if monotonic() > deadline:
            raise httpx.ReadTimeout("the response was not complete in time")
    return b"".join(pieces)


def _too_large(what: str, limit: int) -> InvalidResponseError:
    return InvalidResponseError(f"expected a {what} of at most {limit >> 10} KiB, got more")


class _ClientSocket(socket.socket):
    """Socket that closes when garbage-collected, because an interrupt may prevent storing it."""

    def __del__(self) -> None:
        self.close()


class PlainTransport(HttpTransport):
    """HTTP/1.1 without TLS to one server, over persistent connections; thread-safe.

    It reads exactly one complete response of limited size per request.
    """

    def __init__(self, url: httpx.URL, headers: Mapping[str, str]) -> None:
        super().__init__(url, headers)
        self._address = url.host, url.port or 80
        self._idle: list[_ClientSocket] = []
        self._heads: dict[tuple[str, str], bytes] = {}

    @override
    def exchange(
        self, method: str, path: str, content: bytes | None, deadline: float, connect: float
    ) -> Response:
        head = self._heads.get((method, path))
        if head is None:
            head = self._heads[method, path] = self._head(method, path)
        length = b"" if content is None else b"Content-Length: %d\r\n" % len(content)
        message = b"%b%b\r\n%b" % (head, length, content or b"")
        remaining = max(1e-3, deadline - monotonic())
        connection = self._take_idle() or self._connect(min(remaining, connect))
        try:
            response, keep_alive = _exchange(connection, message, deadline)
        except BaseException:
            connection.close()
            raise
        if keep_alive:
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def _head(self, method: str, path: str) -> bytes:
        """Return a request's head without the body's length and the final line."""
        url = self._url(path)
        head = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method.encode(), url.raw_path, url.netloc)
        return head + "".join(
            f"{name}: {value}\r\n" for name, value in self._headers.items()
        ).encode("ascii")

    @override
    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> _ClientSocket | None:
        """Return an idle connection that the server has not closed."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            try:
                connection.setblocking(False)
                connection.recv(1)
            except BlockingIOError:
                return connection
            except OSError:
                pass
            connection.close()

    def _connect(self, timeout: float) -> _ClientSocket:
        failure: Exception | None = None
        try:
            for family, kind, protocol, _, address in socket.getaddrinfo(
                *self._address, type=socket.SOCK_STREAM
            ):
                try:
                    connection = _ClientSocket(family, kind, protocol)
                    connection.settimeout(timeout)
                    connection.connect(address)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                except OSError as error:
                    failure = error
                else:
                    return connection
        except (OSError, UnicodeError) as error:  # the host name is unknown or invalid
            failure = error
        if isinstance(failure, TimeoutError):
            raise httpx.ConnectTimeout(str(failure)) from failure
        raise httpx.ConnectError(str(failure)) from failure


def _exchange(connection: socket.socket, message: bytes, deadline: float) -> tuple[Response, bool]:
    """Send a request; return the response and whether the connection can be kept."""
    try:
        _set_timeout(connection, deadline)
        connection.sendall(message)
    except TimeoutError as error:
        raise httpx.WriteTimeout("the server did not receive the request in time") from error
    except OSError:
        # A server may refuse a request early: it replies and closes the connection.
        with suppress(httpx.TransportError):
            return _receive(connection, deadline)
        raise httpx.WriteError("the server closed the connection") from None
    return _receive(connection, deadline)


def _receive(connection: socket.socket, deadline: float) -> tuple[Response, bool]:
    parser = _ResponseParser()
    while not parser.is_complete:
        try:
            _set_timeout(connection, deadline)
            data = connection.recv(_CHUNK)
        except TimeoutError as error:
            raise httpx.ReadTimeout("no response in time") from error
        except OSError as error:
            raise httpx.ReadError(str(error)) from error
        if data:
            parser.feed(data)
        else:
            parser.end()
    return parser.response()


def _set_timeout(connection: socket.socket, deadline: float) -> None:
    connection.settimeout(max(1e-3, deadline - monotonic()))


class _ResponseParser:
    """Incremental parser of a response; httptools calls its ``on_*`` methods."""

    def __init__(self) -> None:
        self.is_complete = False
        self._head_complete = self._keep_alive = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()
        self._bytes_fed = self._chunks = 0
        self._error: InvalidResponseError | None = None
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._bytes_fed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise httpx.RemoteProtocolError(f"the response is not HTTP: {error}") from error
        # Everything but the body: heads, interim responses, chunk framing and trailers.
        if self._bytes_fed - len(self._body) > MAX_HEAD + MAX_CHUNK_FRAMING * self._chunks:
            self._error = _too_large("response head", MAX_HEAD)
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        lengths = {b"content-length", b"transfer-encoding"}
        if not self._head_complete or any(name.lower() in lengths for name, _ in self._headers):
            raise httpx.RemoteProtocolError(
                "the server closed the connection before the response was complete"
            )
        self.is_complete = True

    def response(self) -> tuple[Response, bool]:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._headers
        }
        _check_encoding(headers.get("content-encoding"))
        status = self._parser.get_status_code()
        return Response(status, headers, bytes(self._body)), self._keep_alive

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._error = InvalidResponseError(
                "expected one response to a request, got a second one"
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._head_complete = True
        self._keep_alive = self._parser.should_keep_alive()  # not available after the message

    def on_body(self, piece: bytes) -> None:
        if len(self._body) + len(piece) > MAX_BODY:
            self._error = _too_large("response", MAX_BODY)
        else:
            self._body += piece

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_message_complete(self) -> None:
        """Complete the response, or continue after an interim response."""
        if self._parser.get_status_code() >= 200:
            self.is_complete = True
        else:
            self._head_complete = False
            self._headers.clear()
