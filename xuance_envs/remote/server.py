"""The server: FastAPI's routes around sessions, on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from xuance_envs._version import __version__
from xuance_envs.remote.access.proxies import BehindProxies, Network, unix_socket
from xuance_envs.remote.settings import TOKENS_VARIABLE, Settings, is_loopback

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from starlette.types import ASGIApp

__all__ = ["Server", "create_app"]

GRACE = 5
"""Seconds that requests have to end when the server is told to."""


def create_app(settings: Settings) -> ASGIApp:
    """The server as an ASGI application; its sessions live as long as its lifespan.

    Args:
        settings: what it hosts, for whom, and how much of it.

    Raises:
        ImportError: FastAPI or msgpack is not installed.
    """
    _require_packages()
    from fastapi import FastAPI

    from xuance_envs.remote.access.admin import add_admin_routes
    from xuance_envs.remote.access.watch import TokenWatch
    from xuance_envs.remote.api import Api
    from xuance_envs.remote.observed import Observed
    from xuance_envs.remote.status_page import add_status_page

    api = Api(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tokens = TokenWatch(settings.tokens, api.sessions)
        tokens.obey()
        tasks = [asyncio.create_task(api.sessions.expire())]
        if settings.watch_tokens:
            tasks.append(asyncio.create_task(tokens.watch()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await api.sessions.close_all()

    app = FastAPI(
        title="xuance_envs",
        version=__version__,
        summary="Reinforcement-learning environments behind HTTP.",
        lifespan=lifespan,
    )
    api.add_to(app)
    add_admin_routes(app, api)
    add_status_page(app, api.sessions, api.metrics)
    return Observed(api.short_way(app), api.metrics, settings.access_log)


class Server:
    """A server on a port of its own: run it here, or beside other things in a thread.

    Args:
        settings: what it hosts, for whom, and how much of it.
        host: the address to listen on.
        port: the port; 0 for any that is free.
        unix: the path of a unix socket to listen on instead; None for none.
        certfile: a certificate, with which it speaks TLS; None for plain HTTP.
        keyfile: its private key; None where that is in the same file.
        root_path: the path below which a proxy has it, such as ``/envs``.
        trusted_proxies: the networks of proxies that are believed who their clients are.

    Attributes:
        url (str): where it is to be reached.

    Raises:
        ValueError: it would listen beyond this machine and has no tokens.
        OSError: it cannot listen there, or the certificate cannot be read.
        ImportError: a package it needs is not installed.

    Example:
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> from xuance_envs.remote.server import Server
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     with RemoteVecEnv(server.url, "CartPole-v1", 2) as envs:
        ...         obs, infos = envs.reset(seed=0)
        >>> obs.shape
        (2, 4)
    """

    def __init__(
        self,
        settings: Settings,
        host: str = "127.0.0.1",
        port: int = 8001,
        *,
        unix: Path | None = None,
        certfile: Path | None = None,
        keyfile: Path | None = None,
        root_path: str = "",
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        _require_packages()
        if unix is None and not settings.tokens and not is_loopback(host):
            raise ValueError(
                f"without tokens anybody could use this server: expected a loopback address such "
                f"as 127.0.0.1, got {host}. Give it --tokens FILE or {TOKENS_VARIABLE}"
            )
        import uvicorn

        if certfile is not None:  # uvicorn would find out when it runs
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile)
        self._unix = unix
        if unix is not None:
            self._socket = unix_socket(unix)
            self.url = f"unix:{unix}"
        else:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=128)
            bound = self._socket.getsockname()
            shown = f"[{bound[0]}]" if family == socket.AF_INET6 else bound[0]
            self.url = f"{'http' if certfile is None else 'https'}://{shown}:{bound[1]}"
        app = create_app(settings)
        if unix is not None or root_path or trusted_proxies:
            app = BehindProxies(app, root_path, trusted_proxies)
        config = uvicorn.Config(
            app,
            ssl_certfile=certfile,
            ssl_keyfile=keyfile,
            log_config=None,
            access_log=False,  # it would log query strings
            proxy_headers=False,
            server_header=False,
            date_header=False,
            ws="none",
            lifespan="on",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE,
        )
        self._server: uvicorn.Server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serves until this process is told to end, by SIGINT or SIGTERM."""
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Serves in a thread, from when this returns until :meth:`close`."""
        self._thread = threading.Thread(target=self.run, name="xuance_envs-server", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            self._thread.join(0.005)
        if not self._server.started:
            raise RuntimeError("the server did not start; the log says why")

    def close(self) -> None:
        """Ends a server in a thread, its sessions and their processes; again, it does nothing."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        if self._unix is not None:
            self._unix.unlink(missing_ok=True)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _require_packages() -> None:
    try:
        import fastapi
        import msgpack
        import uvicorn
    except ImportError as error:
        raise ImportError(
            f"a server needs {error.name}, which is not installed: "
            'pip install "xuance_envs[remote]"'
        ) from error
    del fastapi, msgpack, uvicorn
