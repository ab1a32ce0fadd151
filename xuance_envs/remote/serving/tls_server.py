"""TLS connections, which count towards the connection limit from accept.

An event loop creates a TLS connection only after its handshake, so its listeners would accept any
number of silent clients. This one registers each client before the handshake begins.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from time import monotonic

import uvicorn

from xuance_envs._override import override
from xuance_envs.remote.serving.connection_manager import ConnectionManager

ACCEPT_PAUSE = 0.1
"""Seconds to wait if the process has no file descriptor for another connection."""


class TlsServer(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, manager: ConnectionManager, context: ssl.SSLContext
    ) -> None:
        super().__init__(config)
        self._manager = manager
        self._context = context

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        await super().startup([])

        def make_connection() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn calls it
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        self.servers += [
            TlsListener(each, self._context, self._manager, make_connection)  # type: ignore[misc]  # used like asyncio's
            for each in sockets
        ]


class TlsListener:
    """Listener that is used like an ``asyncio.Server``."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        manager: ConnectionManager,
        make_connection: Callable[[], asyncio.Protocol],
    ) -> None:
        self._context = context
        self._manager = manager
        self._make_connection = make_connection
        self._handshakes: set[TlsHandshake] = set()
        self._task = asyncio.get_running_loop().create_task(self._accept(listener.dup()))

    def close(self) -> None:
        self._task.cancel()
        for handshake in list(self._handshakes):
            handshake.abort()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._task])

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        with listener:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(listener)
                except OSError as error:
                    self._manager.log_limit("accepted no connection", str(error))
                    await asyncio.sleep(ACCEPT_PAUSE)
                    continue
                handshake = TlsHandshake(self._manager, self._make_connection)
                handshake.start(accepted, self._context)
                self._handshakes.add(handshake)
                handshake.task.add_done_callback(partial(self._end, handshake, accepted))
                await asyncio.sleep(0)  # sock_accept alone may never yield to other tasks

    def _end(
        self, handshake: TlsHandshake, accepted: socket.socket, task: asyncio.Task[None]
    ) -> None:
        self._handshakes.discard(handshake)
        self._manager.connections.discard(handshake)
        if task.cancelled():
            accepted.close()
        elif (error := task.exception()) is not None:
            accepted.close()
            self._manager.log_limit("closed a connection", f"TLS handshake failed: {error}")


class TlsHandshake(asyncio.Protocol):
    """Connection until its handshake is complete; then its protocol takes over."""

    requests = 0
    is_idle = True
    task: asyncio.Task[None]

    def __init__(
        self, manager: ConnectionManager, make_connection: Callable[[], asyncio.Protocol]
    ) -> None:
        self.idle_since = monotonic()
        self._manager = manager
        self._make_connection = make_connection

    def start(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        self.task = asyncio.get_running_loop().create_task(self._connect(accepted, context))
        if not self._manager.add(self):
            self.abort()

    async def _connect(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self,
            accepted,
            ssl=context,
            ssl_handshake_timeout=self._manager.limits.head,
        )

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._manager.connections.discard(self)
        connection = self._make_connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def abort(self) -> None:
        self._manager.connections.discard(self)
        self.task.cancel()

    def check_timeouts(self, now: float) -> None:
        """Do nothing: the event loop limits the handshake's time."""
