"""Connections: what each may cost, and how requests on them are read and answered.

What it guarantees:

- A head is bounded, in bytes and in headers, and so is the time it may take to arrive.
- Who does not take its answer is cut off.
- Each of these is said in the log, at most once a second.

Requests for the routes that take messages are answered here, without an ASGI application in
between, which takes as long as stepping several environments; all others by the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from xuance_envs.remote.failures import RefusedError
from xuance_envs.remote.serving.guard import Guard
from xuance_envs.remote.serving.requests import (
    Head,
    Reply,
    Request,
    foreign_host,
    head_of,
    refused,
)

__all__ = ["Connection"]

HEAD = 64 * 2**10
"""Bytes of a request's head."""

MAX_HEADERS = 100

PIECE = 256 * 2**10
"""Bytes of an answer that are given to a connection at a time."""

LEAST = 2**20
"""Bytes of an answer that have to be taken within the time there is for writing, or all of them."""

KEEP = 75.0
"""Seconds that a connection is kept between two requests."""

LINGER = 2.0
"""Seconds that a connection is still read from after a request was refused amid its body.

To close it at once would reset it, and the answer would be lost with it.
"""


class Connection(HttpToolsProtocol):
    """One connection.

    Args:
        guard: what it has in common with others.
        options: as uvicorn gives them.

    Attributes:
        guard: see above.
        requests: how many it has had.
        idle_since: since when there was nothing to do, where there is nothing.
    """

    def __init__(self, guard: Guard, **options: Any) -> None:
        super().__init__(**options)
        self.requests = 0
        self.idle_since = monotonic()
        self.guard = guard
        self._head = 0
        self._in_head = False
        self._head_since: float | None = self.idle_since
        self._refusal: RefusedError | None = None
        self._refused = False
        self._written = 0
        self._mark = 0, self.idle_since
        self._last: tuple[bytes, int, Exchange] | None = None

    # -- its beginning and end --------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See :class:`asyncio.Protocol`."""
        super().connection_made(transport)
        if not self.guard.admit(self):
            self._refuse(RefusedError(503, "connections", "too many connections: try again later"))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self.guard.connections.discard(self)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle  # None at first
        return cycle is None or bool(cycle.response_complete)

    def give_up(self) -> None:
        """Ends it at once, and what was to be written with it."""
        self.guard.connections.discard(self)
        self.transport.abort()

    def look(self, now: float) -> None:
        """Ends it where a head, the taking of an answer or a pause has had its time."""
        limits = self.guard.limits
        if self._head_since is not None and now - self._head_since > limits.head:
            self.guard.say("closed a connection", f"no whole head came within {limits.head:g} s")
            self.give_up()
            return
        if self.requests and self.is_idle and now - self.idle_since > KEEP:
            self.transport.close()
            return
        pending = self.transport.get_write_buffer_size()
        taken = self._written - pending
        if not pending or taken - self._mark[0] >= LEAST:
            self._mark = taken, now
        elif now - self._mark[1] > limits.write:
            self.guard.say(
                "closed a connection", f"its answer was not taken within {limits.write:g} s"
            )
            self.give_up()

    # -- what comes -------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        before, begins = self.cycle, self._is_between_requests
        if begins and self._last is not None:
            head, size, exchange = self._last
            if len(data) == size and data.startswith(head):
                self._repeat(exchange, data[len(head) :])
                return
        if len(data) <= HEAD - self._head:
            super().data_received(data)
            self._note_head(len(data))
            begun = begins and self.cycle is not before
            self._last = self._repeatable(data) if begun else None
            return
        self._last = None
        view = memoryview(data)
        while view and not self._refused:
            piece = bytes(view[: HEAD - self._head])
            view = view[len(piece) :]
            super().data_received(piece)
            self._note_head(len(piece))

    @property
    def _is_between_requests(self) -> bool:
        """Whether the last request was read and answered whole, and nothing has come since."""
        cycle: Any = self.cycle
        return (
            self._head_since is None
            and cycle is not None
            and cycle.response_complete
            and not cycle.more_body
            and not self._refused
        )

    def _repeatable(self, data: bytes) -> tuple[bytes, int, Exchange] | None:
        """The head, the size and the exchange of the one whole request that some bytes are.

        None where they are something else, or where more than the head says what it asks for.
        """
        exchange: Any = self.cycle
        if type(exchange) is not Exchange or exchange.more_body or not exchange.keep_alive:
            return None
        end = data.find(b"\r\n\r\n") + 4
        head = exchange.head
        if end + (head.length or 0) != len(data) or exchange.expects:
            return None
        if any(name == b"transfer-encoding" for name, _ in head.headers):
            return None
        return data[:end], len(data), exchange

    def _repeat(self, last: Exchange, body: bytes) -> None:
        """A request whose head is byte for byte that of the one before, so it is not read again."""
        self._unset_keepalive_if_required()
        self.requests += 1
        self.cycle = exchange = Exchange(self, last.head, True, False, last.answer)  # type: ignore[assignment]  # all that uvicorn asks of one
        exchange.body += body
        exchange.more_body = False
        exchange.start()

    def _note_head(self, size: int) -> None:
        """Takes note of bytes that were read: they may be the beginning of a head."""
        if self._in_head:
            self._head += size
            if self._head >= HEAD or len(self.headers) > MAX_HEADERS:
                self._refuse(_large_head())
        if self._head_since is None and (self._in_head or self.is_idle):
            self._head_since = monotonic()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        """A head has come."""
        self._in_head, self._head, self._head_since = False, 0, None
        self.requests += 1
        guard = self.guard
        if len(self.headers) > MAX_HEADERS:
            self._refusal = _large_head()
            raise self._refusal
        if guard.hosts is not None:
            self._refusal = foreign_host(self.headers, guard.hosts)
            if self._refusal is not None:
                raise self._refusal
        method, answer = self.parser.get_method(), guard.answer
        if method == b"POST":
            path = guard.posts.get(self.url)
        elif method == b"GET" and self.url in guard.pages:
            path, reply = guard.pages[self.url]
            answer = partial(_always, reply)
        else:
            path = None
        if path is None or self.parser.should_upgrade():
            self._leave_to_application()
            return
        kept = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        idle = self.is_idle
        head = Head(path, self.headers, method.decode())
        # It is all that uvicorn asks of a cycle, and starts as one where it has to wait.
        exchange: Any = Exchange(self, head, kept, self.expect_100_continue, answer)
        self.cycle = exchange
        if idle:
            exchange.start()
        else:  # in its turn
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))

    def _leave_to_application(self) -> None:
        """Has the application answer, with all that uvicorn makes of a head for one."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """An answer has been given to the connection."""
        self.idle_since = monotonic()
        if self.pipeline:
            super().on_response_complete()
            return
        # The same without a timer for each request: whoever has paused for long is looked for.
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()

    # -- what goes --------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> None:
        """Gives a piece of an answer to the connection."""
        self._written += len(data)
        self.transport.write(data)

    async def drain(self) -> None:
        """Waits until the connection takes more."""
        if self.flow.write_paused:
            await self.flow.drain()

    def linger(self) -> None:
        """Closes it in a while, and throws away until then what still comes."""
        self.flow.resume_reading()
        self.loop.call_later(LINGER, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no request, or was refused while its head was read."""
        self._refuse(self._refusal or RefusedError(400, "http", msg))

    def _refuse(self, refusal: RefusedError) -> None:
        """Says so, listens to nothing more, and closes."""
        if self._refused or self.transport.is_closing():
            return
        self._refused, self._head = True, HEAD
        self._in_head, self._head_since = False, None
        self.guard.say("refused a request", str(refusal))
        reply = refused(refusal)
        self.write(head_of(reply, kept=False) + reply.body)
        self.linger()


class Exchange:
    """A request for a route that takes messages, and its answer; uvicorn's cycle in short.

    Args:
        connection: where it came, and the answer goes.
        head: the request's.
        keep_alive: whether another request may follow.
        expects: whether the client waits to be told to go on.
        answer: answers it.

    Attributes:
        head: see above.
        keep_alive: see above.
        expects: see above; False once it has been told.
        answer: see above.
        disconnected: whether the client has gone.
        response_complete: whether the answer has been given to the connection.
        body: what of it has come, and not been read.
        more_body: whether more is to come.
    """

    def __init__(
        self,
        connection: Connection,
        head: Head,
        keep_alive: bool,
        expects: bool,
        answer: Callable[[Request], Awaitable[Reply]],
    ) -> None:
        self.head = head
        self.keep_alive = keep_alive
        self.expects = expects
        self.answer = answer
        self.disconnected = False
        self.response_complete = False
        self.body = bytearray()
        self.more_body = True
        self._connection = connection
        self._arrival: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def message_event(self) -> Exchange:
        """What is told that more of the body has come, or the client has gone."""
        return self

    def set(self) -> None:
        """More of the body has come, or the client has gone."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def start(self) -> None:
        """Has it answered in a task, which the server waits for when it ends."""
        connection = self._connection
        self._task = connection.loop.create_task(self.run_asgi(connection.app))
        connection.tasks.add(self._task)

    async def run_asgi(self, app: Any) -> None:
        """Reads the request and answers it; under the name that uvicorn has for it."""
        connection = self._connection
        guard = connection.guard
        start = perf_counter()
        status = 500
        request = Request(self.head, self._read)
        try:
            reply = await self.answer(request)
            status = reply.status
            if len(reply.body) <= PIECE:
                self._send(reply)
            else:
                async with guard.sending(connection, len(reply.body)):
                    await self._send_in_pieces(reply)
        except RefusedError as error:  # it cannot even be sent
            guard.say("closed a connection", str(error))
            connection.give_up()
        except asyncio.CancelledError:  # the server ends
            connection.give_up()
            raise
        finally:
            head = self.head
            client = guard.proxies.client(connection.client, head.headers)
            guard.observer.note(client, request.owner, head.method, head.path, status, start)
            if self._task is not None:
                connection.tasks.discard(self._task)

    async def _read(self, limit: int, seconds: float) -> bytes:
        if self.expects and self.more_body and not self.disconnected:
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.expects = False
        if self.more_body:
            try:
                await asyncio.wait_for(self._arrived(limit), seconds)
            except asyncio.TimeoutError:
                raise RefusedError(
                    408, "slow", f"expected the whole request within {seconds:g} s"
                ) from None
        if len(self.body) > limit:
            raise RefusedError(413, "body", f"expected a request of at most {limit} bytes")
        body, self.body = self.body, bytearray()
        return bytes(body)

    async def _arrived(self, limit: int) -> None:
        while self.more_body and len(self.body) <= limit:
            if self.disconnected:
                raise RefusedError(400, "disconnected", "the request did not arrive whole")
            self._connection.flow.resume_reading()
            self._arrival = self._connection.loop.create_future()
            await self._arrival

    def _send(self, reply: Reply) -> None:
        self.keep_alive = self.keep_alive and not self.more_body
        if not self.disconnected:
            self._connection.write(head_of(reply, self.keep_alive) + reply.body)
            self._end()

    async def _send_in_pieces(self, reply: Reply) -> None:
        connection = self._connection
        self.keep_alive = self.keep_alive and not self.more_body
        connection.write(head_of(reply, self.keep_alive))
        view = memoryview(reply.body)
        for first in range(0, len(view), PIECE):
            await connection.drain()
            if self.disconnected:
                return
            connection.write(view[first : first + PIECE])
        self._end()

    def _end(self) -> None:
        self.response_complete = True
        if self.keep_alive:
            self._connection.on_response_complete()
        elif self.more_body:
            self._connection.linger()
        else:
            self._connection.transport.close()


async def _always(reply: Reply, _: Request) -> Reply:
    return reply


def _large_head() -> RefusedError:
    return RefusedError(
        431, "head", f"expected a head of less than {HEAD} bytes and {MAX_HEADERS} headers"
    )
