"""HTTP server that hosts environments: FastAPI routes on uvicorn."""

from __future__ import annotations

import importlib
import math
import socket
import ssl
import threading
from functools import partial
from pathlib import Path

from xuance_envs.engine.system.current import system
from xuance_envs.extras import missing_extra
from xuance_envs.remote.server.access import TOKENS_VARIABLE, Proxies, unix_socket
from xuance_envs.remote.server.settings import Settings, is_loopback

__all__ = ["Server"]


class Server:
    """HTTP server on its own port, run in this thread or in a background thread.

    As a context manager, it serves in a background thread.

    Args:
        settings: environments, tokens, limits and permissions.
        host: address to listen on.
        port: port; 0 for any free port.
        unix: path of a Unix socket to listen on; None to listen on ``host`` and ``port``.
        certfile: TLS certificate file; None for plain HTTP.
        keyfile: private key of the certificate; None if it is in the same file.
        proxies: root path and trusted proxies, as
            :class:`~xuance_envs.remote.settings.Proxies`; None if clients connect directly.

    Attributes:
        settings: the given settings.
        url (str): address for clients; ``unix:PATH`` for a Unix socket.

    Raises:
        ValueError: there are no tokens and ``host`` is not a loopback address, or the limit on open
            files is too low.
        OSError: listening failed, or the certificate cannot be read.
        ImportError: a required package is not installed.
        RuntimeError: the server does not support this system.

    Example:
        >>> from xuance_envs import RemoteVecEnv
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
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
        proxies: Proxies | None = None,
    ) -> None:
        if not system.HAS_SERVER:
            raise RuntimeError(
                f"the server does not run on {system.NAME}: run it on Linux or macOS, and connect "
                "to it with RemoteVecEnv"
            )
        _require_packages()
        if unix is None and not settings.tokens and not is_loopback(host):
            raise ValueError(
                "host: expected a loopback address such as 127.0.0.1 for a server without tokens, "
                f"got {host!r}: set tokens with --tokens FILE or {TOKENS_VARIABLE}"
            )
        from xuance_envs.remote.server.http.connection_manager import ConnectionManager
        from xuance_envs.remote.server.http.listener import ListeningServer
        from xuance_envs.remote.server.routes.api import Api
        from xuance_envs.remote.server.routes.pages import create_app

        tls = None
        if certfile is not None:
            for file in filter(None, (certfile, keyfile)):
                file.open().close()  # its error names the file, OpenSSL's does not
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certfile, keyfile)
        self.settings = settings
        self._unix = unix
        api = Api(settings)
        hosts = None
        if unix is not None:
            self._socket = unix_socket(unix)
            self.url = f"unix:{unix}"
        else:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server(
                (host, port), family=family, backlog=socket.SOMAXCONN
            )
            bound = self._socket.getsockname()
            shown = f"[{bound[0]}]" if family == socket.AF_INET6 else bound[0]
            self.url = f"{'http' if tls is None else 'https'}://{shown}:{bound[1]}"
            if not settings.tokens:
                names = {host, shown, "localhost", "127.0.0.1", "[::1]", *settings.allowed_hosts}
                hosts = frozenset(name.lower().encode() for name in names if name)
        manager = ConnectionManager(api, hosts, proxies or Proxies())
        app, seconds = create_app(api, manager, settings), math.ceil(settings.seconds_to_finish)
        self._server = ListeningServer(app, self._socket, manager, tls, seconds)
        self._thread: threading.Thread | None = None
        self._was_started = False

    def run(self) -> None:
        """Serve in this thread until SIGINT or SIGTERM.

        Raises:
            RuntimeError: the server was started before.
        """
        self._start_once()
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Start serving in a background thread; return once the server accepts requests.

        Raises:
            RuntimeError: the server did not start, or was started before.
        """
        self._start_once()
        run = partial(self._server.run, [self._socket])
        self._thread = threading.Thread(target=run, name="xuance_envs-server", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            self._thread.join(0.005)
        if not self._server.started:
            raise RuntimeError("the server did not start; see the log")

    def _start_once(self) -> None:
        if self._was_started:
            raise RuntimeError(f"the server at {self.url} was already started: create another one")
        self._was_started = True

    def close(self) -> None:
        """Stop serving, close all sessions and end their workers. A second call does nothing.

        Requests in progress first get ``settings.seconds_to_finish`` seconds to finish.
        """
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()
        if self._unix is not None:
            self._unix.unlink(missing_ok=True)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _require_packages() -> None:
    try:
        for name in ("fastapi", "msgpack", "psutil", "uvicorn"):
            importlib.import_module(name)
    except ImportError as error:
        raise missing_extra("the HTTP server", "remote", error) from error
