"""Requests and replies: heads, the exchange on a connection, and stored replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from time import perf_counter
from typing import Any, NamedTuple

from xuance_envs.remote.server.limits import ByteBudget
from xuance_envs.remote.server.settings import Limits
from xuance_envs.remote.wire.failures import RefusedError, body_too_large
from xuance_envs.remote.wire.formats import WireFormat, dumps

CONTENT_TYPES = {
    b"application/json": WireFormat.JSON,
    b"application/msgpack": WireFormat.MSGPACK,
    b"application/x-msgpack": WireFormat.MSGPACK,
    b"application/vnd.msgpack": WireFormat.MSGPACK,
}

# Headers that must not repeat, because a proxy and the server could read different ones.
SINGLE_HEADERS = frozenset(
    b"authorization content-length content-type host origin transfer-encoding".split()
)

LARGE_REPLY = 64 * 2**10  # bytes from which a reply counts as large
SMALL_BODY = 32 * 2**10  # maximum bytes of a body that is decoded in the event loop
SHARED_BODY = 4 * 2**10  # bytes from which head and body are written one by one, without a copy
WRITE_CHUNK = 256 * 2**10  # maximum bytes of a reply to pass to the transport at a time
NO_OWNER = "-"  # owner that the log shows for a request without a valid token

_REFUSAL_HEADERS = {401: (("www-authenticate", "Bearer"),)}
_REFUSAL_HEADERS |= dict.fromkeys((429, 503), (("retry-after", "1"),))

Headers = Sequence[tuple[bytes, bytes]]
Handler = Callable[["RequestCycle"], Awaitable["Reply"]]


class Reply(NamedTuple):
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class RequestHead:
    """Parsed head of a request; requests with equal heads share one object."""

    def __init__(self, path: str, headers: Headers, method: str = "POST") -> None:
        self.path = path
        self.headers = headers
        self.method = method
        fields = dict(headers)
        self.authorization = fields.get(b"authorization")
        length = fields.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() and len(length) < 19 else 0
        self.is_small = self.length <= SMALL_BODY
        content_type = fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
        self.body_format = CONTENT_TYPES.get(content_type)
        accept = fields.get(b"accept", b"").lower()
        accepted = (form for name, form in CONTENT_TYPES.items() if name in accept)
        self.reply_format = next(accepted, self.body_format or WireFormat.JSON)
        self.digest = f"{path} {self.reply_format.content_type}".encode()  # without the body


def refused(refusal: RefusedError, body_format: WireFormat = WireFormat.JSON) -> Reply:
    body = dumps(refusal.message(), body_format)
    headers = _REFUSAL_HEADERS.get(refusal.status, ())
    return Reply(refusal.status, body_format.content_type, body, headers)


def check_single(headers: Headers) -> RefusedError | None:
    """Return a refusal if a header of ``SINGLE_HEADERS`` is repeated, else None."""
    names = [name for name, _ in headers if name in SINGLE_HEADERS]
    if len(names) == len(set(names)):
        return None
    repeated = next(name for name in names if names.count(name) > 1).decode()
    return RefusedError(400, "header", f"expected one header {repeated!r}, got several: send one")


def check_host(headers: Headers, hosts: frozenset[bytes]) -> RefusedError | None:
    """Return a refusal if Host or Origin names a host that is not in ``hosts``, else None."""
    for name, value in headers:
        if name == b"host" or name == b"origin":
            address = value.lower().rpartition(b"://")[2]
            # An IPv6 address contains colons, but in brackets.
            has_port = b":" in address.rpartition(b"]")[2]
            host, _, port = address.rpartition(b":") if has_port else (address, b"", b"0")
            if host not in hosts or not port.isdigit():
                text = (
                    "a server without tokens accepts only requests to its own address, got "
                    f"{value[:100].decode('latin-1')!a}; the server's operator can allow another "
                    "name with --allow-host NAME"
                )
                return RefusedError(421 if name == b"host" else 403, name.decode(), text)
    return None


def encode_head(reply: Reply, keep_alive: bool) -> bytes:
    start = _head_start(reply.status, reply.content_type)
    if keep_alive and not reply.headers:
        return b"%b%d\r\n\r\n" % (start, len(reply.body))
    extra = b"" if keep_alive else b"connection: close\r\n"
    for name, value in reply.headers:
        extra += f"{name}: {value}\r\n".encode()
    return b"%b%d\r\n%b\r\n" % (start, len(reply.body), extra)


@cache
def _head_start(status: int, content_type: str) -> bytes:
    status_line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
    return f"{status_line}\r\ncontent-type: {content_type}\r\ncontent-length: ".encode()


class LargeReplies:
    """Budgets for large replies, and stored large replies for repeated requests."""

    def __init__(self, limits: Limits) -> None:
        self.build_budget = ByteBudget(limits.replies, "large replies")
        self.send_budget = ByteBudget(limits.replies, "large replies")
        self._max_bytes = limits.kept
        self.stored: dict[str, Reply] = {}  # by session
        self._bytes = 0

    def store(self, session: str, reply: Reply) -> None:
        """Store a session's only reply; drop the oldest stored replies if necessary."""
        self.stored[session] = reply
        self._bytes += len(reply.body)
        while self._bytes > self._max_bytes:
            self.discard(next(iter(self.stored)))

    def discard(self, session: str) -> None:
        if (reply := self.stored.pop(session, None)) is not None:
            self._bytes -= len(reply.body)


@dataclass(eq=False, repr=False)
class RequestCycle:
    """A request that bypasses ASGI, and its reply, with the interface of uvicorn's cycles."""

    connection: Any  # a ServerConnection, whose module imports this one
    head: RequestHead
    keep_alive: bool
    expects_continue: bool
    handler: Handler
    body: bytes | bytearray = field(default_factory=bytearray)
    more_body: bool = True
    owner: str = NO_OWNER  # name for the log
    disconnected: bool = False
    response_complete: bool = False
    # Set by uvicorn when body data arrives or the client disconnects.
    message_event: asyncio.Event = field(default_factory=asyncio.Event)

    async def run_asgi(self, app: Any) -> None:
        """Read the request and answer it; uvicorn requires this name."""
        connection = self.connection
        manager = connection.manager
        start = perf_counter()
        status = 500
        if self.handler is manager.handler:
            connection.last_message = self
        try:
            reply = await self.handler(self)
            status = reply.status
            if len(reply.body) <= WRITE_CHUNK:
                self._send(reply)
            else:
                async with manager.reserve_send(connection, len(reply.body)):
                    await self._send_in_pieces(reply)
        except RefusedError as error:  # no budget to send the reply
            manager.disconnect(connection, str(error))
        except asyncio.CancelledError:  # the server is shutting down
            connection.abort()
            raise
        finally:
            head = self.head
            client = manager.proxies.client(connection.client, head.headers)
            manager.metrics.record_request(
                client, self.owner, head.method, head.path, status, start
            )

    async def read(self, limit: int, seconds: float) -> bytes:
        if self.expects_continue and self.more_body and not self.disconnected:
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.expects_continue = False
        if self.more_body:
            try:
                await asyncio.wait_for(self._wait_for_body(limit), seconds)
            except asyncio.TimeoutError:
                text = f"the request did not arrive completely within {seconds:g} s"
                raise RefusedError(408, "slow", text) from None
        if len(self.body) > limit:
            raise body_too_large(limit)
        body, self.body = self.body, b""
        return bytes(body)

    async def _wait_for_body(self, limit: int) -> None:
        while self.more_body and len(self.body) <= limit:
            if self.disconnected:
                text = "the client disconnected before the request was complete"
                raise RefusedError(400, "disconnected", text)
            self.connection.flow.resume_reading()
            await self.message_event.wait()
            self.message_event.clear()

    def _send(self, reply: Reply) -> None:
        self.keep_alive = self.keep_alive and not self.more_body
        if not self.disconnected:
            head = encode_head(reply, self.keep_alive)
            if len(reply.body) < SHARED_BODY:
                self.connection.write(head + reply.body)
            else:
                self.connection.write(head)
                self.connection.write(reply.body)
            self._end()

    async def _send_in_pieces(self, reply: Reply) -> None:
        connection, view = self.connection, memoryview(reply.body)
        self.keep_alive = self.keep_alive and not self.more_body
        connection.write(encode_head(reply, self.keep_alive))
        for first in range(0, len(view), WRITE_CHUNK):
            await connection.flow.drain()
            if self.disconnected:
                return
            connection.write(view[first : first + WRITE_CHUNK])
        self._end()

    def _end(self) -> None:
        self.response_complete = True
        if self.keep_alive:
            self.connection.on_response_complete()
        elif self.more_body:
            self.connection.linger()
        else:
            self.connection.transport.close()
