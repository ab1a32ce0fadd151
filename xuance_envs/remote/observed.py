"""The access log, and the count of requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any
from urllib.parse import quote

from xuance_envs.remote.metrics import Metrics

__all__ = ["OWNER", "Observed"]

logger = logging.getLogger("xuance_envs.access")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OWNER = "xuance_envs.owner"
"""Where a request's scope says whose it is, once that is known."""

MANY = "/episode/vectorized_step"
"""How the path of requests ends of which there are many: they are logged at DEBUG."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observed:
    """An ASGI application whose requests are counted, and logged.

    The log has the client's address, the name of its token, the method, the path, the status and
    the time taken: no header and no query, so no token. Steps are logged at DEBUG, the others at
    INFO.

    Args:
        app: the application.
        metrics: where requests are counted.
        log: whether they are logged.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], metrics: Metrics, log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._log = log

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

        try:
            await self._app(scope, receive, watched)
        finally:
            seconds = perf_counter() - start
            # Soon: what was sent leaves when this turn of the event loop ends.
            asyncio.get_running_loop().call_soon(self._note, scope, status, seconds)

    def _note(self, scope: Message, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.count_request(method, status)
        level = logging.DEBUG if scope["path"].endswith(MANY) else logging.INFO
        if self._log and logger.isEnabledFor(level):
            logger.log(
                level,
                "%s %s %s %s %d %.1f ms",
                (scope.get("client") or ("-",))[0],
                scope.get(OWNER, "-"),
                method,
                quote(scope["path"].encode(errors="replace"))[:200],
                status,
                seconds * 1e3,
            )
