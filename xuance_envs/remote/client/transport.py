"""HTTP/1.1 of clients over TCP, TLS and Unix sockets, directly or through a proxy."""

from __future__ import annotations

import io
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    RemoteDisconnected,
    UnknownProtocol,
)
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote

from xuance_envs._override import override
from xuance_envs.engine.system.current import system
from xuance_envs.remote.client.address import Address, proxy_of

# Limits on a response in bytes. MAX_FRAMING is for each piece of a body of unknown length.
MAX_HEAD, MAX_BODY, MAX_FRAMING = 1 << 16, 1 << 30, 1 << 21

_LONGEST_POLL = 86_400.0  # seconds; poll raises an error if it gets more than 24 days

_PIECE = 1 << 16
_HEAD_END = b"\r\n\r\n"
_MAX_KNOWN_HEADS = 64  # per connection

# Whether to check the server's certificate, or the certificate authorities to check it against.
Verify = bool | str | Path | ssl.SSLContext


class ConnectError(OSError):
    """The request was not sent."""


class InvalidResponseError(HTTPException):
    """The response cannot be used; a retry would not help."""


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes


class HttpTransport:
    """Persistent connections to one server; thread-safe. Environment variables set the proxy."""

    def __init__(self, server: Address, headers: Mapping[str, str], verify: Verify = True) -> None:
        self._server = server
        self._proxy = proxy = proxy_of(server)
        self._tls = _tls_context(verify) if server.scheme == "https" else None
        self._base = quote(server.path, safe="/%:@!$&'()*+,;=~")
        self._proxy_login: dict[str, str] = {}
        fields = {"Host": server.netloc or "localhost", **headers}
        self.route = "" if proxy is None else f" through the proxy {proxy}"
        if proxy is not None and proxy.login:
            self._proxy_login["Proxy-Authorization"] = proxy.login
        if server.scheme == "unix":
            self._base = ""
        elif proxy is not None and self._tls is None:
            self._base = f"http://{server.netloc}{self._base}"
            fields |= self._proxy_login
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._idle: list[_Connection] = []
        self._closed = False

    def exchange(
        self, method: str, path: str, content: bytes | None, deadline: float, connect: float
    ) -> Response:
        """Send a request and return the response; connecting takes at most ``connect`` seconds."""
        head = f"{method} {self._base}{path} HTTP/1.1\r\n{self._fields}"
        if content is not None:
            head += f"Content-Length: {len(content)}\r\n"
        message = b"%b\r\n%b" % (head.encode("ascii"), content or b"")
        connection = self._take_idle() or self._connect(min(connect, _seconds_until(deadline)))
        keep_alive = False
        try:
            response, keep_alive = connection.exchange(method, message, deadline)
            return response
        finally:
            if keep_alive:
                self._idle.append(connection)
            else:
                connection.disconnect()
            if self._closed:  # during the request, by another thread
                self.close()

    def close(self) -> None:
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().disconnect()

    def _take_idle(self) -> _Connection | None:
        with suppress(IndexError):
            while not (connection := self._idle.pop()).is_unused():
                connection.disconnect()
            return connection
        return None

    def _connect(self, timeout: float) -> _Connection:
        try:
            if self._server.scheme == "unix":
                opened = system.unix_socket()
                connection = _Connection(opened)  # closes it after an error
                opened.settimeout(timeout)
                opened.connect(self._server.path)
                opened.setblocking(False)
                return connection
            target = (self._proxy or self._server).netloc
            opening = HTTPConnection(target, timeout=timeout)
            if self._tls is not None:
                opening = HTTPSConnection(target, timeout=timeout, context=self._tls)
                if self._proxy is not None:
                    opening.set_tunnel(self._server.netloc, headers=self._proxy_login)
            try:
                opening.connect()
            except BaseException:
                opening.close()  # its socket may already be connected to the proxy
                raise
            opening.sock.setblocking(False)
            return _Connection(opening.sock)
        except (OSError, UnicodeError, HTTPException) as error:
            # Python 3.10 keeps the socket of a refused tunnel open in a frame of the traceback.
            raise ConnectError(str(error)) from error.with_traceback(None)


def _tls_context(verify: Verify) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    path = None if isinstance(verify, bool) else Path(verify)
    try:
        if path is not None and path.is_dir():
            return ssl.create_default_context(capath=path)
        context = ssl.create_default_context(cafile=path)
    except OSError as error:
        expected = "a bool, an SSL context, or a file or folder of CA certificates"
        raise ValueError(f"verify: expected {expected}, got {str(verify)!r}: {error}") from None
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _seconds_until(deadline: float) -> float:
    seconds = deadline - monotonic()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


class _Stream(io.RawIOBase):
    """Stream of the responses of a connection; it closes the socket when garbage-collected."""

    def __init__(self, connected: socket.socket) -> None:
        if isinstance(connected, ssl.SSLSocket):
            # A connection that ends without TLS's close_notify may have cut off a response.
            connected.suppress_ragged_eofs = False  # type: ignore[attr-defined]
        self.socket = connected
        self._poll = system.poll()
        self.deadline = 0.0
        self.budget = 0  # bytes that may still arrive
        self.may_end = self.is_complete = False

    def wait(self, events: int) -> None:
        self._poll.register(self.socket, events)
        # After the deadline, look once more: this process may have been suspended meanwhile.
        seconds = self.deadline - monotonic()
        while not self._poll.poll(max(0.0, min(seconds, _LONGEST_POLL)) * 1e3):
            seconds = _seconds_until(self.deadline)

    def _transfer(self, transfer: Callable[..., int], events: int, *arguments: Any) -> int:
        while True:
            try:
                return transfer(*arguments)
            except ssl.SSLWantReadError:
                self.wait(system.POLLIN)
            except ssl.SSLWantWriteError:
                self.wait(system.POLLOUT)
            except BlockingIOError:
                self.wait(events)

    def send(self, message: bytes) -> None:
        view = memoryview(message)
        while view:
            view = view[self._transfer(self.socket.send, system.POLLOUT, view) :]

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int | None:
        if self.is_complete:
            return None
        if not self.budget:
            raise _too_large("response head", MAX_HEAD)
        room = min(len(buffer), self.budget)
        size = self._transfer(self.socket.recv_into, system.POLLIN, buffer, room)
        if not size and not self.may_end:
            text = "the server closed the connection before the response was complete"
            raise RemoteDisconnected(text)
        self.budget -= size
        return size

    @override
    def close(self) -> None:
        self.socket.close()
        super().close()


class _Connection(io.BufferedReader):
    def __init__(self, connected: socket.socket) -> None:
        self.stream = _Stream(connected)
        self._heads: dict[bytes, tuple[Mapping[str, str], int]] = {}
        super().__init__(self.stream, _PIECE)

    def makefile(self, _: str) -> _Connection:
        """Return the file from which ``http.client`` reads a response."""
        return self

    @override
    def close(self) -> None:
        """Do nothing: a response closes its file at its end."""

    @override
    def flush(self) -> None:
        """Do nothing: a response flushes its file when it is freed, even after a disconnect."""

    def disconnect(self) -> None:
        self.stream.close()

    def is_unused(self) -> bool:
        """Return whether the server has neither closed the connection nor sent anything."""
        try:
            self.stream.socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def exchange(self, method: str, message: bytes, deadline: float) -> tuple[Response, bool]:
        """Send a request; return the response and whether the connection can be kept."""
        self.stream.deadline = deadline
        try:
            self.stream.send(message)
            self.stream.wait(system.POLLIN)
        except TimeoutError:
            raise
        except OSError as error:
            # A server may refuse a request early: it replies and closes the connection.
            try:
                return self._receive(method)
            except (OSError, HTTPException):
                raise error from None
        return self._receive(method)

    def _receive(self, method: str) -> tuple[Response, bool]:
        stream = self.stream
        stream.budget, stream.may_end, stream.is_complete = MAX_HEAD, False, False
        buffered = self.peek()
        head = buffered[: buffered.find(_HEAD_END) + len(_HEAD_END)]
        if (known := self._heads.get(head)) is not None:
            headers, length = known
            self.read(len(head))
            stream.budget = sys.maxsize
            response, keep_alive = Response(200, headers, self.read(length)), True
        else:
            response, keep_alive = self._parse(method, head)
        stream.is_complete = True
        if self.peek():
            raise InvalidResponseError("expected one response to a request, got a second one")
        return response, keep_alive

    def _parse(self, method: str, head: bytes) -> tuple[Response, bool]:
        try:
            response = self._final_response(method)
            body = self._body_of(response)
        except (BadStatusLine, IncompleteRead, InvalidResponseError, UnknownProtocol):
            raise
        except HTTPException as error:  # http.client limits lines and the number of headers
            raise _too_large("response head", MAX_HEAD) from error
        except ValueError as error:  # a negative length of a chunk
            raise BadStatusLine(f"malformed body: {error}") from error
        headers = {name.lower(): value for name, value in reversed(response.headers.items())}
        keep_alive, is_whole = not response.will_close, head.endswith(_HEAD_END)
        if keep_alive and is_whole and head.startswith(b"HTTP/1.1 200 ") and not response.chunked:
            if len(self._heads) == _MAX_KNOWN_HEADS:
                self._heads.clear()
            self._heads[head] = headers, len(body)
        return Response(response.status, headers, body), keep_alive

    def _final_response(self, method: str) -> HTTPResponse:
        """Read a response's head, after the heads of interim responses."""
        while True:
            response = HTTPResponse(self, method=method)  # type: ignore[arg-type]  # calls makefile
            response.begin()
            if response.headers.defects:
                raise BadStatusLine(f"malformed headers: {response.headers.defects}")
            if response.status >= 200:
                return response

    def _body_of(self, response: HTTPResponse) -> bytes:
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            text = f"expected a response without content encoding, got {encoding!a}"
            raise InvalidResponseError(text)
        stream = self.stream
        if response.length is not None:
            if response.length > MAX_BODY:
                raise _too_large("response", MAX_BODY)
            stream.budget = sys.maxsize
            return response.read()
        stream.may_end = not response.chunked
        body = bytearray()
        while True:
            stream.budget = MAX_FRAMING
            piece = response.read(min(_PIECE, MAX_BODY + 1 - len(body)))
            if not piece:
                return bytes(body)
            body += piece
            if len(body) > MAX_BODY:
                raise _too_large("response", MAX_BODY)


def _too_large(what: str, limit: int) -> InvalidResponseError:
    return InvalidResponseError(f"expected a {what} of at most {limit >> 10} KiB, got more")
