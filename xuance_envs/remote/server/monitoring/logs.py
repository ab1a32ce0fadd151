"""Log handler that never blocks, and writes one line per record."""

from __future__ import annotations

import logging
import os
import queue
import threading
from contextlib import suppress

MAX_QUEUED = 10_000

FLUSH_TIMEOUT = 1.0  # seconds to wait for queued records when the handler closes


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


def dropped_lines() -> int:
    handlers = logging.getLogger().handlers
    return sum(each.dropped for each in handlers if isinstance(each, BackgroundHandler))
