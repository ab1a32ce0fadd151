"""The access log, and the count of requests."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any
from urllib.parse import quote

from xuance_envs.remote.metrics import Metrics

__all__ = ["OWNER_KEY", "RequestLog", "RequestLogMiddleware"]

logger = logging.getLogger("xuance_envs.access")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OWNER_KEY = "xuance_envs.owner"
"""Where a request's scope has the name of whose it is, once that is known."""

STEP_PATH_SUFFIX = "/episode/vectorized_step"
"""How the path of requests ends of which there are many."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestLog:
    """Counts requests, and logs them.

    The log has the client's address, the name of its token, the method, the path, the status and
    the time taken: no header and no query, so no token. Steps are logged at DEBUG, because they are
    many, the others at INFO.
    """

    def __init__(self, metrics: Metrics, log: bool) -> None:
        self._metrics = metrics
        self._log = log

    def record(
        self, client: Any, owner: str, method: str, path: str, status: int, start: float
    ) -> None:
        """Takes note of a request that was answered."""
        if method not in METHODS:
            method = "other"
        self._metrics.count_request(method, status)
        if not self._log:
            return
        level = logging.DEBUG if path.endswith(STEP_PATH_SUFFIX) else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s %s %s %s %d %.1f ms",
                (client or ("-",))[0],
                owner,
                method,
                quote(path.encode(errors="replace"))[:200],
                status,
                (perf_counter() - start) * 1e3,
            )


class RequestLogMiddleware:
    """An ASGI application whose requests an observer is told of."""

    def __init__(self, app: Callable[..., Awaitable[None]], request_log: RequestLog) -> None:
        self._app = app
        self._request_log = request_log

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        status = 500

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"]
        if method == "HEAD":  # uvicorn leaves out the body
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, send_and_record)
        finally:
            self._request_log.record(
                scope.get("client"),
                scope.get(OWNER_KEY, "-"),
                method,
                scope["path"],
                status,
                start,
            )
