"""Requests for message routes, from their heads to the ends of their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from xuance_envs.remote.server.http.requests import NO_OWNER, Reply, RequestHead, encode_head
from xuance_envs.remote.wire.failures import RefusedError, body_too_large

SHARED_BODY = 4 * 2**10  # bytes from which a body is sent without copying it behind the head
WRITE_CHUNK = 256 * 2**10  # maximum bytes of a reply to pass to the transport at a time


class RequestCycle:
    """Request for a message route and its reply, with the interface of uvicorn's cycles."""

    def __init__(
        self,
        connection: Any,  # a ServerConnection, whose module imports this one
        head: RequestHead,
        keep_alive: bool,
        expects_continue: bool,
        handler: Callable[[RequestCycle], Awaitable[Reply]],
    ) -> None:
        self.head = head
        self.owner = NO_OWNER  # name for the log
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.handler = handler
        self.disconnected = False
        self.response_complete = False
        self.body: bytes | bytearray = bytearray()
        self.more_body = True
        self._connection = connection
        self._body_event: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def message_event(self) -> RequestCycle:
        """Event that uvicorn sets when body data arrives or the client disconnects."""
        return self

    def set(self) -> None:
        """Wake the reader of the body; uvicorn calls this on :attr:`message_event`."""
        if self._body_event is not None and not self._body_event.done():
            self._body_event.set_result(None)

    def start(self) -> None:
        """Answer the request in a task that the server awaits on shutdown."""
        connection = self._connection
        self._task = connection.loop.create_task(self.run_asgi(connection.app))
        connection.tasks.add(self._task)

    async def run_asgi(self, app: Any) -> None:
        """Read the request and answer it; uvicorn requires this name."""
        connection = self._connection
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
            if self._task is not None:
                connection.tasks.discard(self._task)

    async def read(self, limit: int, seconds: float) -> bytes:
        """Read the body, of at most ``limit`` bytes and within ``seconds``."""
        if self.expects_continue and self.more_body and not self.disconnected:
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
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
            self._connection.flow.resume_reading()
            self._body_event = self._connection.loop.create_future()
            await self._body_event

    def _send(self, reply: Reply) -> None:
        self.keep_alive = self.keep_alive and not self.more_body
        if not self.disconnected:
            head = encode_head(reply, self.keep_alive)
            if len(reply.body) < SHARED_BODY:
                self._connection.write(head + reply.body)
            else:
                self._connection.write(head)
                self._connection.write(reply.body)
            self._end()

    async def _send_in_pieces(self, reply: Reply) -> None:
        connection, view = self._connection, memoryview(reply.body)
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
            self._connection.on_response_complete()
        elif self.more_body:
            self._connection.linger()
        else:
            self._connection.transport.close()
