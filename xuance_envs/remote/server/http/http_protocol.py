"""HTTP connections of a server: limits, parsing and replies; API messages bypass ASGI."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any
from urllib.parse import unquote

from httptools import parse_url
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from xuance_envs._override import override
from xuance_envs.engine.system.current import system
from xuance_envs.extras import require_attributes
from xuance_envs.remote.server.http.connection_manager import ConnectionManager
from xuance_envs.remote.server.http.requests import (
    NO_OWNER,
    RequestCycle,
    RequestHead,
    check_host,
    check_single,
    encode_head,
    refused,
)
from xuance_envs.remote.wire.failures import RefusedError

require_attributes(
    "uvicorn[standard]>=0.27,<0.55",
    HttpToolsProtocol,
    "app client connection_lost connection_made cycle data_received "
    "expect_100_continue flow headers loop on_headers_complete on_message_begin "
    "on_response_complete parser pause_writing pipeline resume_writing send_400_response "
    "server_state tasks transport url",
)

HEAD_END = b"\r\n\r\n"
MAX_HEAD = 64 * 2**10
MAX_HEADERS = 100
MAX_UNPARSED = 64 * 2**20  # bytes of pipelined requests that all connections together may hold
WRITE_BUFFER = 64 * 2**10  # bytes of unread replies at which no further request starts
TLS_WRITE = 16 * 2**10  # maximum bytes to encrypt at a time: a TLS record
TLS_BUFFERS = 192 * 2**10  # approximate bytes in lower buffers if a TLS client reads nothing
MIN_WRITE_PROGRESS = 2**20  # bytes a client must read per write timeout, or all if fewer remain
_UNAWAITED = asyncio.Event()  # shared by complete requests: creating one takes a microsecond

# Seconds.
DISCARD_PAUSE = 0.02  # between reads of a refused request, so that other requests are read first
KEEP_ALIVE_TIMEOUT = 75.0  # that a connection may be idle between requests
LINGER_TIMEOUT = 2.0  # to read on after a refusal, because closing at once would lose the reply


class ServerConnection(HttpToolsProtocol):
    cycle: Any  # of uvicorn, a RequestCycle, or None before the first request

    def __init__(self, manager: ConnectionManager, **options: Any) -> None:
        super().__init__(**options)
        self.requests = 0
        self.idle_since = monotonic()
        self.manager = manager
        self._head_bytes = 0
        self._in_head = False
        self._head_since: float | None = self.idle_since
        self._refusal: RefusedError | None = None
        self._written = 0
        self._write_progress = 0, self.idle_since
        self._last_request: tuple[bytes, int, RequestCycle] | None = None
        self._unparsed, self._position = b"", 0
        self._awaits_reader = False
        self._tls_poll: Any = None
        self._discards = False
        self.last_message: RequestCycle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITE_BUFFER)
        if transport.get_extra_info("sslcontext") is not None:
            self._tls_poll = system.poll()
            self._tls_poll.register(transport.get_extra_info("socket").fileno(), system.POLLOUT)
        if self.manager.is_closing:
            self.transport.close()
        elif not self.manager.add(self):
            self._refuse(RefusedError(503, "connections", "too many connections: try again later"))
            self.transport.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.manager.connections.discard(self)
        self.pipeline.clear()
        self._keep_unparsed(b"")
        super().connection_lost(exc)
        self.manager.count_unread(self)

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    @property
    def waiting_since(self) -> float | None:
        if self.transport.get_write_buffer_size():
            return self._write_progress[1]
        return self.idle_since if self.is_idle or not self.has_token else None

    @property
    def has_token(self) -> bool:
        return self.last_message is not None and self.last_message.owner != NO_OWNER

    @property
    def unread_bytes(self) -> int:
        if self.transport.is_closing():
            return 0
        waiting = self.transport.get_write_buffer_size()
        if self._tls_poll is not None:  # most of it has left the transport, but not the process
            return 0 if self._tls_poll.poll(0) else waiting + TLS_BUFFERS
        return waiting if self.flow.write_paused else 0

    def abort(self) -> None:
        self.manager.connections.discard(self)
        self.transport.abort()

    def check_timeouts(self, now: float) -> None:
        limits = self.manager.limits
        if self.flow.read_paused and self._head_since is not None:
            self._head_since = now  # the connection reads the rest after earlier requests
        if self._head_since is not None and now - self._head_since > limits.head:
            self.manager.disconnect(self, f"no complete request head within {limits.head:g} s")
            return
        if self.requests and self.is_idle and now - self.idle_since > KEEP_ALIVE_TIMEOUT:
            self.transport.close()
            return
        pending = self.transport.get_write_buffer_size()
        sent = self._written - pending
        if not pending or sent - self._write_progress[0] >= MIN_WRITE_PROGRESS:
            self._write_progress = sent, now
        elif now - self._write_progress[1] > limits.write:
            reason = f"its client did not read a reply within {limits.write:g} s"
            self.manager.disconnect(self, reason)

    @override
    def data_received(self, data: bytes) -> None:
        if self._discards:
            self.flow.pause_reading()
            self.loop.call_later(DISCARD_PAUSE, self._read_on)
            return
        before, begins = self.cycle, self._is_between_requests
        if begins and self._last_request is not None:
            head, size, cycle = self._last_request
            if len(data) == size and data.startswith(head):
                self._answer_again(cycle, data[len(head) :])
                return
        fits = len(data) <= MAX_HEAD - self._head_bytes and not self._unparsed
        if fits and data.count(HEAD_END) <= 1:
            self._feed(data)
            begun = begins and self.cycle is not before
            self._last_request = self._cacheable_head(data) if begun else None
            return
        self._last_request = None
        self._keep_unparsed(self._unparsed[self._position :] + data)
        self._parse()
        if self._unparsed and self.manager.unparsed_bytes > MAX_UNPARSED:
            self.manager.disconnect(self, "too many pipelined requests are waiting")

    def _keep_unparsed(self, data: bytes) -> None:
        self.manager.unparsed_bytes += len(data) - len(self._unparsed)
        self._unparsed, self._position = data, 0

    def _parse(self) -> None:
        """Parse received requests until one of them waits for the replies to earlier ones."""
        data = self._unparsed
        while self._position < len(data) and not self.pipeline and not self._discards:
            start, end = self._position, self._position + MAX_HEAD - self._head_bytes
            head_end = data.find(HEAD_END, start, end)
            if head_end >= 0:
                end = head_end + len(HEAD_END)
            self._position = end
            self._feed(data[start:end])
        if self._position >= len(data) or self._discards:
            self._keep_unparsed(b"")

    @property
    def _is_between_requests(self) -> bool:
        """Return whether the last request is answered and no further bytes have arrived."""
        return (
            self._head_since is None
            and self.cycle is not None
            and self.cycle.response_complete
            and not self.cycle.more_body
            and not self._unparsed
        )

    def _cacheable_head(self, data: bytes) -> tuple[bytes, int, RequestCycle] | None:
        """Return head, size and request cycle if ``data`` is one request with a reusable head."""
        cycle = self.cycle
        if type(cycle) is not RequestCycle or cycle.more_body or not cycle.keep_alive:
            return None
        end = data.find(HEAD_END) + len(HEAD_END)
        head = cycle.head
        if end + head.length != len(data) or cycle.expects_continue:
            return None
        if any(name == b"transfer-encoding" for name, _ in head.headers):
            return None
        return data[:end], len(data), cycle

    def _answer_again(self, last: RequestCycle, body: bytes) -> None:
        """Answer a request whose head equals the previous one, without parsing it."""
        self.requests += 1
        self.cycle = RequestCycle(
            self, last.head, True, False, last.handler, body, False, message_event=_UNAWAITED
        )
        self._start(self.cycle, self.app)

    def _feed(self, data: bytes) -> None:
        """Parse data, and count the bytes of an unfinished head towards the limit on heads."""
        requests = self.requests
        in_body = self.cycle is not None and self.cycle.more_body
        super().data_received(data)
        if self._in_head:
            # If the data also ends an earlier request, the number of the head's bytes is unknown.
            if self.requests == requests and not in_body:
                self._head_bytes += len(data)
            if self._head_bytes >= MAX_HEAD or len(self.headers) > MAX_HEADERS:
                self._refuse(_head_too_large())
        if self._head_since is None and (self._in_head or self.is_idle):
            self._head_since = monotonic()

    def on_message_begin(self) -> None:
        self._in_head = True
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes, self._head_since = False, 0, None
        self.requests += 1
        manager = self.manager
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        fits = size < MAX_HEAD and len(self.headers) <= MAX_HEADERS
        self._refusal = check_single(self.headers) if fits else _head_too_large()
        if self._refusal is None and manager.hosts is not None:
            self._refusal = check_host(self.headers, manager.hosts)
        if self._refusal is not None:
            raise self._refusal
        method, handler = self.parser.get_method(), manager.handler
        path = unquote(parse_url(self.url).path.decode("ascii"))
        route = manager.post_routes.get(path)
        if method == b"GET" and path in manager.static_handlers:
            route, handler = path, manager.static_handlers[path]
        if route is None or method == b"HEAD":
            self._delegate_to_app()
            return
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        idle = self.is_idle
        head = RequestHead(route, self.headers, method.decode())
        self.cycle = RequestCycle(self, head, keep_alive, self.expect_100_continue, handler)
        if idle and not self._unparsed:
            self._start(self.cycle, self.app)
            return
        self.flow.pause_reading()  # pipelined
        self.pipeline.appendleft((self.cycle, self.app))
        if idle:
            manager.start_pipelined(self.proceed)

    def _start(self, cycle: Any, app: Any) -> None:
        """Answer a request in a task that the server awaits on shutdown."""
        task = self.loop.create_task(cycle.run_asgi(app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _delegate_to_app(self) -> None:
        """Dispatch the request to the application through uvicorn's own handling."""
        url, headers, expects_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects_continue
        self.headers += headers
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.idle_since = monotonic()
        self.server_state.total_requests += 1
        if self._tls_poll is not None:
            self.manager.count_unread(self)
        if self.flow.write_paused:
            self.flow.pause_reading()
            self._awaits_reader = True
        elif self.pipeline:
            self.manager.start_pipelined(self.proceed)
        elif self._unparsed or self.flow.read_paused:
            self.proceed()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self.manager.count_unread(self)

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self.manager.count_unread(self)
        if self._awaits_reader:
            self._awaits_reader = False
            self.proceed()

    def proceed(self) -> None:
        """Start the next request after a reply; read the request first if necessary."""
        if self.transport.is_closing():
            return
        # As in uvicorn, but without a timer per request: check_timeouts closes idle connections.
        self.flow.resume_reading()
        if self.pipeline:
            self._start(*self.pipeline.pop())
        if self._unparsed:
            self._parse()
        if self.pipeline:
            self.flow.pause_reading()

    def write(self, data: bytes | memoryview) -> None:
        self._written += len(data)
        if self._tls_poll is None:
            self.transport.write(data)
            return
        view = memoryview(data)  # a connection's TLS buffer keeps the size of its largest write
        for first in range(0, len(view), TLS_WRITE):
            self.transport.write(view[first : first + TLS_WRITE])

    def linger(self) -> None:
        """Discard received data for a moment, then close the connection."""
        self._discards = True
        self.flow.resume_reading()
        self.loop.call_later(LINGER_TIMEOUT, self.transport.close)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, or one whose head failed a check."""
        self._refuse(self._refusal or RefusedError(400, "http", msg))

    def _refuse(self, refusal: RefusedError) -> None:
        """Send a refusal, stop reading requests and close."""
        if self._discards or self.transport.is_closing():
            return
        self._head_bytes = MAX_HEAD
        self._in_head, self._head_since = False, None
        self.manager.log_limit("refused a request", str(refusal))
        reply = refused(refusal)
        self.write(encode_head(reply, keep_alive=False) + reply.body)
        self.linger()


def _head_too_large() -> RefusedError:
    expected = f"a request head of less than {MAX_HEAD} bytes and at most {MAX_HEADERS} headers"
    return RefusedError(431, "head", f"expected {expected}")
