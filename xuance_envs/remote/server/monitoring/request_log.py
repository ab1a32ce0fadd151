"""Access log and request counter."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xuance_envs.remote.server.access.proxies import Proxies
from xuance_envs.remote.server.monitoring.metrics import Metrics

logger = logging.getLogger("xuance_envs.access")

OWNER_KEY = "xuance_envs.owner"  # of an ASGI scope, for the name of the request's token
STEP_PATH_SUFFIX = "/episode/vectorized_step"  # such requests are logged at DEBUG
SECRET_LENGTH = 20  # longer path segments may be session ids, which have 24 characters
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestLog:
    """Logger and counter of requests; it keeps headers, queries and session ids out of the log."""

    def __init__(self, metrics: Metrics, log: bool) -> None:
        self._metrics = metrics
        self._log = log

    def record(
        self, client: Any, owner: str, method: str, path: str, status: int, start: float
    ) -> None:
        if method not in METHODS:
            method = "other"
        self._metrics.count_request(method, status)
        if not self._log:
            return
        level = logging.DEBUG if path.endswith(STEP_PATH_SUFFIX) else logging.INFO
        if logger.isEnabledFor(level):
            address, milliseconds = (client or ("-",))[0], (perf_counter() - start) * 1e3
            fields = address, owner, method, loggable_path(path), status, milliseconds
            logger.log(level, "%s %s %s %s %d %.1f ms", *fields)


def loggable_path(path: str) -> str:
    """Return a path for the log, with ``*`` for each segment that may be a session id."""
    segments = path.encode(errors="replace").split(b"/")
    return "/".join("*" if len(each) >= SECRET_LENGTH else quote(each) for each in segments)[:200]


class RequestLogMiddleware:
    """Middleware that records requests to the application, as clients behind proxies sent them."""

    def __init__(self, app: ASGIApp, request_log: RequestLog, proxies: Proxies) -> None:
        self._app = app
        self._request_log = request_log
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        status = 500
        self._proxies.restore(scope)

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"]
        if method == "HEAD":  # uvicorn omits the body
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, send_and_record)
        finally:
            client, owner = scope.get("client"), scope.get(OWNER_KEY, "-")
            self._request_log.record(client, owner, method, scope["path"], status, start)
