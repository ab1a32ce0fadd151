"""A log that nobody waits for: what is not read in time is dropped, and counted."""

from __future__ import annotations

import logging
import os
import queue
import threading
from contextlib import suppress

__all__ = ["BackgroundHandler", "dropped_lines"]

MAX_QUEUED = 10_000
"""Records that may wait to be written."""

FLUSH_TIMEOUT = 1.0
"""Seconds that the end of the program waits for them."""


class BackgroundHandler(logging.Handler):
    """Writes records to a descriptor in a thread of its own.

    Writing to a pipe that nobody reads blocks, and with it whoever writes. Here that is a thread
    that has nothing else to do. It writes to the descriptor itself, because at the interpreter's
    end Python would wait for a lock on ``sys.stderr`` that such a thread holds.
    """

    def __init__(self, fd: int = 2) -> None:
        super().__init__()
        self.dropped = 0
        self._fd = fd
        self._reported = 0
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._write, name="xuance_envs-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Leaves a record to the thread."""
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Waits a moment until everything has been written."""
        super().close()
        with suppress(queue.Full):
            self._records.put(None, timeout=FLUSH_TIMEOUT)
            self._thread.join(FLUSH_TIMEOUT)

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                text = self.format(record)
            except Exception as error:  # arguments that do not fit the message
                text = f"a record of {record.name} cannot be written: {error}"
            if (dropped := self.dropped - self._reported) and self._records.empty():
                self._reported += dropped
                text += f"\n{dropped} lines before this one were dropped: nobody read them in time"
            rest = memoryview(f"{text}\n".encode(errors="backslashreplace"))
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except OSError:  # nobody can read it any more
                    break


def dropped_lines() -> int:
    """How many records of this process's log were dropped."""
    handlers = logging.getLogger().handlers
    return sum(each.dropped for each in handlers if isinstance(each, BackgroundHandler))
