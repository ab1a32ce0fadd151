"""Logs, the access log and metrics of a server."""

from __future__ import annotations

import bisect
import itertools
import logging
import os
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from xuance_envs.remote.server.access import Proxies

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("xuance_envs.access")

MAX_QUEUED = 10_000
FLUSH_TIMEOUT = 1.0  # seconds to wait for queued records when the handler closes

OWNER_KEY = "xuance_envs.owner"  # key in an ASGI scope for the name of the request's token
STEP_PATH_SUFFIX = "/episode/vectorized_step"  # such requests are logged at DEBUG
SECRET_LENGTH = 20  # longer path segments may be session ids, which have 24 characters
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

# Upper bounds of the step-time histogram in seconds.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WINDOW = 10.0  # seconds over which steps per second are averaged
SAMPLE_INTERVAL = 1.0  # seconds

_DROPPED = "Log lines dropped because the log was not read fast enough."
_STEP_SECONDS = "Seconds that environments take per step request."
_FAILURES = "Requests in which an environment raised, crashed or timed out."
_PER_NAME = (
    ("sessions", "name_sessions", "gauge", "Open sessions by token name."),
    ("environments", "name_environments", "gauge", "Environments by token name."),
    ("steps", "name_steps_total", "counter", "Environment steps by token name."),
)


class BackgroundHandler(logging.Handler):
    """Handler whose thread writes to a file descriptor; if its queue is full, it drops records."""

    def __init__(self, fd: int = 2) -> None:
        super().__init__()
        self.dropped = 0
        self._fd = fd
        self._reported = 0
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._write, name="xuance_envs-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Wait until queued records are written, or a timeout expires."""
        super().close()
        with suppress(queue.Full):
            self._records.put(None, timeout=FLUSH_TIMEOUT)
            self._thread.join(FLUSH_TIMEOUT)

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                lines = [self.format(record)]
            except Exception as error:  # e.g. arguments that do not match the message
                lines = [f"cannot format a record of {record.name}: {error}"]
            if (dropped := self.dropped - self._reported) and self._records.empty():
                self._reported += dropped
                reason = "the log was not read fast enough"
                lines.append(f"{dropped} earlier lines were dropped: {reason}")
            rest = memoryview("".join(f"{_escaped(line)}\n" for line in lines).encode())
            while rest:
                try:  # not sys.stderr: a blocked write holds a lock that Python needs at exit
                    rest = rest[os.write(self._fd, rest) :]
                except OSError:  # no reader left
                    break


def _escaped(text: str) -> str:
    """Escape line breaks and control characters, so that no text can forge a log line."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


class Metrics:
    """Counters and access log of one server, for its event loop only."""

    def __init__(self, access_log: bool = True) -> None:
        self._access_log = access_log
        self.sessions = 0
        self.max_sessions = 0
        self.environments = 0
        self.failures = 0
        self._requests: dict[tuple[str, int], int] = defaultdict(int)
        self.steps = 0
        self._step_seconds = 0.0
        self._step_requests = [0] * (len(BUCKETS) + 1)
        # Times with the number of steps until then; the first one is about WINDOW ago.
        self._samples = deque([(time.monotonic(), 0)], round(WINDOW / SAMPLE_INTERVAL))

    def record_request(
        self, client: Any, owner: str, method: str, path: str, status: int, start: float
    ) -> None:
        """Count and log a request; keep headers, queries and session ids out of the log."""
        if method not in METHODS:
            method = "other"
        self.count_request(method, status)
        level = logging.DEBUG if path.endswith(STEP_PATH_SUFFIX) else logging.INFO
        if self._access_log and logger.isEnabledFor(level):
            address, milliseconds = (client or ("-",))[0], (time.perf_counter() - start) * 1e3
            fields = address, owner, method, loggable_path(path), status, milliseconds
            logger.log(level, "%s %s %s %s %d %.1f ms", *fields)

    def count_request(self, method: str, status: int) -> None:
        self._requests[method, status] += 1

    def count_steps(self, steps: int, seconds: float) -> None:
        self.steps += steps
        self._step_seconds += seconds
        self._step_requests[bisect.bisect_left(BUCKETS, seconds)] += 1

    def sample_steps(self) -> None:
        """Record the number of steps; the server calls this at intervals of SAMPLE_INTERVAL."""
        self._samples.append((time.monotonic(), self.steps))

    def steps_per_second(self) -> float:
        start, steps = self._samples[0]
        return (self.steps - steps) / max(0.1, time.monotonic() - start)

    def text(self, names: Mapping[str, Mapping[str, int]] | None = None) -> str:
        handlers = logging.getLogger().handlers
        dropped = sum(each.dropped for each in handlers if isinstance(each, BackgroundHandler))
        counts = list(itertools.accumulate(self._step_requests))
        buckets = zip((*BUCKETS, "+Inf"), counts, strict=True)
        times: dict[str, float] = {f'_bucket{{le="{bound}"}}': count for bound, count in buckets}
        times |= {"_sum": self._step_seconds, "_count": counts[-1]}
        requests = {
            f'{{method="{method}",status="{status}"}}': count
            for (method, status), count in sorted(self._requests.items())
        }
        metrics: list[tuple[str, str, str, Mapping[str, float]]] = [
            ("sessions", "gauge", "Open sessions.", {"": self.sessions}),
            ("max_sessions", "gauge", "Maximum open sessions.", {"": self.max_sessions}),
            ("environments", "gauge", "Environments in open sessions.", {"": self.environments}),
            ("log_lines_dropped_total", "counter", _DROPPED, {"": dropped}),
            ("steps_total", "counter", "Environment steps.", {"": self.steps}),
            ("failures_total", "counter", _FAILURES, {"": self.failures}),
            ("step_seconds", "histogram", _STEP_SECONDS, times),
            ("requests_total", "counter", "Requests by method and status.", requests),
        ]
        if names is not None:
            for what, metric, kind, text in _PER_NAME:
                own = {f'{{name="{name}"}}': usage[what] for name, usage in sorted(names.items())}
                metrics.append((metric, kind, text, own))
        lines = []
        for metric, kind, text, values in metrics:
            lines += [f"# HELP xuance_envs_{metric} {text}", f"# TYPE xuance_envs_{metric} {kind}"]
            lines += [f"xuance_envs_{metric}{suffix} {value}" for suffix, value in values.items()]
        return "\n".join(lines) + "\n"


def loggable_path(path: str) -> str:
    """Return a path for the log, with ``*`` for each segment that may be a session id."""
    segments = path.encode(errors="replace").split(b"/")
    return "/".join("*" if len(each) >= SECRET_LENGTH else quote(each) for each in segments)[:200]


def log_requests(app: ASGIApp, metrics: Metrics, proxies: Proxies) -> ASGIApp:
    """Undo a proxy's changes to each request of an application, then count and log the request."""

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500
        proxies.restore(scope)

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"]
        if method == "HEAD":  # uvicorn omits the body
            scope = {**scope, "method": "GET"}
        try:
            await app(scope, receive, send_and_record)
        finally:
            client, owner = scope.get("client"), scope.get(OWNER_KEY, "-")
            metrics.record_request(client, owner, method, scope["path"], status, start)

    return logged
