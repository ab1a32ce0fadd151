"""What a worker process says about itself without being asked, and when it cannot answer.

Each worker has a region of the file that its process shares with the caller. It keeps there
which environment it is at, how long its steps take, the end of what Python wrote to standard
error, and what :mod:`faulthandler` says when a signal ends it.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

from xuance_envs.engine.group.recorder import NOWHERE, Recorder
from xuance_envs.engine.group.step_clock import TIMES_BYTES, StepTimes, news_in
from xuance_envs.engine.process.shared_memory import UNIT, keep_from_forks

__all__ = ["REGION", "BlackBox", "record", "recorder_in"]

REGION = UNIT
"""Bytes per worker, and per group more in one."""

_TEXT = 4096
_TEXT_SIZE = 8192
_REPORT = _TEXT + _TEXT_SIZE
_TIMES = 1 << 15
_LINES = 20
_LINE = 300


class BlackBox:
    """A worker's region, seen from the caller.

    Args:
        fd: the shared file.
        index: which region of it.
    """

    def __init__(self, fd: int, index: int) -> None:
        self._fd = fd
        self._start = index * REGION

    def clear(self) -> None:
        """Forgets a worker, so that the next one can have the region."""
        os.pwrite(self._fd, bytes(REGION), self._start)

    def place(self) -> int | None:
        """The place in its group of the environment the worker is at, where it says so."""
        at = int.from_bytes(os.pread(self._fd, 8, self._start), sys.byteorder)
        return None if at == NOWHERE else at - 1

    def times(self) -> StepTimes:
        """How long its steps take."""
        return StepTimes.read(os.pread(self._fd, TIMES_BYTES, self._start + _TIMES))

    def news(self) -> bytes:
        """What its last step changed in them, for a copy of them."""
        return news_in(os.pread(self._fd, TIMES_BYTES, self._start + _TIMES))

    def last_words(self) -> str:
        """The last lines of its standard error, and the first ones of its crash report.

        The report has the innermost call first.
        """
        data = os.pread(self._fd, _TIMES - _TEXT, self._start + _TEXT)
        said = _lines(data[:_TEXT_SIZE])[-_LINES:]
        report = _lines(data[_TEXT_SIZE:].partition(b"\nExtension modules:")[0])  # often hundreds
        if len(report) > _LINES:
            report[_LINES:] = [f"  ... and {len(report) - _LINES} lines more"]
        return "\n".join(said + report)


def _lines(data: bytes) -> list[str]:
    lines = data.rstrip(b"\0").decode(errors="replace").strip("\n").splitlines()
    return [line if len(line) <= _LINE else f"{line[:_LINE]} ..." for line in lines]


def recorder_in(fd: int, index: int) -> Recorder:
    """Where a group keeps its records.

    Args:
        fd: the shared file.
        index: which region of it.
    """
    region = _mapped(fd, index)
    return Recorder(region[:8].cast("q"), region[_TIMES : _TIMES + TIMES_BYTES])


def _mapped(fd: int, index: int) -> memoryview:
    start = index * REGION
    memory = mmap.mmap(fd, REGION, offset=start)
    keep_from_forks(memory, fd, start)
    return memoryview(memory)


def record(fd: int, index: int) -> Recorder:
    """Has this process keep its region from now on.

    Args:
        fd: the shared file.
        index: which region of it.

    Returns:
        Where its first group keeps its records.
    """
    region = _mapped(fd, index)
    faulthandler.disable()  # or a handler that some library put over it before a fork would stay
    try:  # a file position of its own, which a passed descriptor does not have
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    except OSError:
        faulthandler.enable()
    else:
        os.lseek(own, index * REGION + _REPORT, os.SEEK_SET)
        faulthandler.enable(own, all_threads=False)
        os.register_at_fork(after_in_child=partial(_report_to_stderr, own))
    if sys.stderr is not None:
        sys.stderr = _Recorded(sys.stderr, region[_TEXT:_REPORT])
    return recorder_in(fd, index)


def _report_to_stderr(own: int) -> None:
    """Has the crash of a forked process reported where it would be without all this."""
    with suppress(OSError):
        os.dup2(2, own, inheritable=False)


class _Recorded:
    """A stream whose last output can be read in a region of memory."""

    def __init__(self, stream: TextIO, region: memoryview) -> None:
        self._stream = stream
        self._region = region
        self._last = b""

    def write(self, text: str) -> int:
        with suppress(Exception):
            self._last = (self._last + text.encode(errors="replace"))[-len(self._region) :]
            self._region[: len(self._last)] = self._last
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
