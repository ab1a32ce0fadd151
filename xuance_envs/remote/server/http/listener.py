"""Listener that counts connections when it accepts them, even before their TLS handshake."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

import uvicorn

from xuance_envs._override import override
from xuance_envs.engine.system.current import system
from xuance_envs.extras import require_attributes
from xuance_envs.remote.server.http.connection_manager import ConnectionManager
from xuance_envs.remote.server.http.http_protocol import ServerConnection

require_attributes(
    "uvicorn[standard]>=0.27,<0.55", uvicorn.Server, "config server_state servers startup"
)

MAX_ACCEPTS = 32  # maximum connections to accept before other tasks run
ACCEPT_PAUSE = 0.1  # seconds to wait if the process has no file descriptor for a new connection
MAX_HANDSHAKES = 512  # in progress, before a new one replaces the oldest; each takes about 95 kB
MAX_UNSENT = 64 * 2**10  # unsent bytes per connection in the kernel, whose default is megabytes


class ListeningServer(uvicorn.Server):
    """Server that accepts connections itself; uvicorn uses it like an ``asyncio.Server``."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        listening: socket.socket,
        manager: ConnectionManager,
        tls: ssl.SSLContext | None,
        seconds_to_finish: int,
    ) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,  # would log query strings
            proxy_headers=False,
            server_header=False,
            date_header=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=seconds_to_finish,
        )
        super().__init__(config)
        self.manager = manager
        self.waiting: dict[TlsHandshake, None] = {}  # their clients have sent something
        self._tls = tls
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order of their starts
        self._starts_soon = False
        self._pause: asyncio.TimerHandle | None = None
        self._socket = listening

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self.servers.append(self)  # type: ignore[arg-type]  # used like asyncio's
        self._socket.setblocking(False)
        system.limit_unsent(self._socket, MAX_UNSENT)  # accepted sockets inherit it
        self._listen()

    def make_connection(self) -> ServerConnection:
        return ServerConnection(
            self.manager, config=self.config, server_state=self.server_state, app_state={}
        )

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._pause is not None:
            self._pause.cancel()
        self._socket.close()
        for connection in list(self.manager.connections):
            if isinstance(connection, TlsHandshake):
                connection.abort()
        # Other tasks end by themselves. If they were cancelled, uvloop would not report lost
        # connections.
        self.manager.is_closing = True

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.manager.log_limit("accepted no connection", str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._pause = loop.call_later(ACCEPT_PAUSE, self._listen)
                return
            accepted.setblocking(False)
            if self._tls is None:
                self.create_transport(accepted, self.make_connection)
            elif self.manager.add(handshake := TlsHandshake(self, accepted)):
                handshake.wait()
            else:
                handshake.abort()

    def start_handshake_soon(self) -> None:
        if self.waiting and not self._starts_soon:
            self._starts_soon = True
            asyncio.get_running_loop().call_soon(self._start_newest)

    def _start_newest(self) -> None:
        """Start the newest handshake, because clients of older ones may have given up."""
        self._starts_soon = False
        if not self.waiting:  # it was closed meanwhile
            return
        handshake, _ = self.waiting.popitem()
        handshake.start()
        if len(self._tasks) > MAX_HANDSHAKES:
            oldest = next(iter(self._tasks))
            del self._tasks[oldest]
            oldest.cancel()
            self.manager.log_limit("ended a TLS handshake", f"{MAX_HANDSHAKES} others have begun")
        self.start_handshake_soon()

    def create_transport(
        self, accepted: socket.socket, factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Task[Any]:
        timeout = None if self._tls is None else self.manager.limits.head
        loop = asyncio.get_running_loop()
        connecting = loop.connect_accepted_socket(
            factory, accepted, ssl=self._tls, ssl_handshake_timeout=timeout
        )
        task = loop.create_task(connecting)
        task.add_done_callback(partial(self._end, accepted))
        self._tasks[task] = None
        return task

    def _end(self, accepted: socket.socket, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            accepted.close()
        elif (error := task.exception()) is not None:
            accepted.close()
            kind = "connection" if self._tls is None else "TLS handshake"
            self.manager.log_limit("closed a connection", f"its {kind} failed: {error}")


class TlsHandshake(asyncio.Protocol):
    """Connection until its TLS handshake ends; a ``ServerConnection`` replaces it afterwards."""

    has_token = False
    unread_bytes = 0

    def __init__(self, server: ListeningServer, accepted: socket.socket) -> None:
        self.waiting_since = monotonic()
        self._server, self._manager = server, server.manager
        self._socket = accepted
        self._task: asyncio.Task[Any] | None = None

    def wait(self) -> None:
        """Wait for the client's first bytes, then join the waiting handshakes."""
        loop = asyncio.get_running_loop()

        def join() -> None:
            loop.remove_reader(self._socket)
            with suppress(OSError):
                if self._socket.recv(1, socket.MSG_PEEK):
                    self._server.waiting[self] = None
                    self._server.start_handshake_soon()
                    return
            self.abort()

        loop.add_reader(self._socket, join)

    def start(self) -> None:
        self._task = self._server.create_transport(self._socket, lambda: self)
        self._task.add_done_callback(lambda _: self._manager.connections.discard(self))

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._manager.connections.discard(self)
        connection = self._server.make_connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def abort(self) -> None:
        self._manager.connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._server.waiting.pop(self, None)
            self._socket.close()

    def check_timeouts(self, now: float) -> None:
        limit = self._manager.limits.head  # the event loop limits a handshake that has started
        if self._task is None and now - self.waiting_since > limit:
            self._manager.disconnect(self, f"no TLS handshake within {limit:g} s")
