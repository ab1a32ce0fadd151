"""The access log, and the count of requests."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any
from urllib.parse import quote

from xuance_envs.remote.metrics import Metrics

__all__ = ["OWNER", "Observed", "Observer"]

logger = logging.getLogger("xuance_envs.access")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OWNER = "xuance_envs.owner"
"""Where a request's scope has the name of whose it is, once that is known."""

MANY = "/episode/vectorized_step"
"""How the path of requests ends of which there are many."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observer:
    """Counts requests, and logs them.

    The log has the client's address, the name of its token, the method, the path, the status and
    the time taken: no header and no query, so no token. Steps are logged at DEBUG, because they are
    many, the others at INFO.

    Args:
        metrics: where requests are counted.
        log: whether they are logged.
    """

    def __init__(self, metrics: Metrics, log: bool) -> None:
        self._metrics = metrics
        self._log = log

    def note(
        self, client: Any, owner: str, method: str, path: str, status: int, start: float
    ) -> None:
        """Takes note of a request that was answered.

        Args:
            client: its address and port, where they are known.
            owner: the name of whose it is.
            method: of the request.
            path: of the request.
            status: of the answer.
            start: when it began, as :func:`time.perf_counter` counts.
        """
        if method not in METHODS:
            method = "other"
        self._metrics.count_request(method, status)
        if not self._log:
            return
        level = logging.DEBUG if path.endswith(MANY) else logging.INFO
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


class Observed:
    """An ASGI application whose requests an observer is told of.

    Args:
        app: the application.
        observer: the observer.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], observer: Observer) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers a request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"]
        if method == "HEAD":  # uvicorn leaves out the body
            scope = {**scope, "method": "GET"}
        try:
            await self._app(scope, receive, watched)
        finally:
            self._observer.note(
                scope.get("client"),
                scope.get(OWNER, "-"),
                method,
                scope["path"],
                status,
                start,
            )
