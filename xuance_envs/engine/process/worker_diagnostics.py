"""Diagnostics of worker processes, readable even if a worker hangs or crashes.

Each worker has a region of shared memory. There it records the running environment, step
durations, the last lines of standard error, and :mod:`faulthandler`'s crash report.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

from xuance_envs.engine.group.step_clock import (
    NO_ACTIVE_ENV,
    TIMES_BYTES,
    ProgressRecord,
    StepTimes,
    timing_delta,
)
from xuance_envs.engine.process.shared_memory import ALIGNMENT
from xuance_envs.engine.system.current import system

REGION_BYTES = ALIGNMENT  # size of a region; each additional group in a worker has its own

_TEXT = 4096
_TEXT_SIZE = 8192
_REPORT = _TEXT + _TEXT_SIZE
_TIMES = 1 << 15
_LINES = 20
_LINE = 300


class WorkerDiagnostics:
    def __init__(self, fd: int, index: int) -> None:
        self._fd = fd
        self._start = index * REGION_BYTES

    def clear(self) -> None:
        system.pwrite(self._fd, bytes(REGION_BYTES), self._start)

    def active_env(self) -> int | None:
        """Return the running environment's position in its group, or None if unknown."""
        at = int.from_bytes(system.pread(self._fd, 8, self._start), sys.byteorder)
        return None if at == NO_ACTIVE_ENV else at - 1

    def times(self) -> StepTimes:
        return StepTimes.read(system.pread(self._fd, TIMES_BYTES, self._start + _TIMES))

    def timing_delta(self) -> bytes:
        """Return the changes that the last step made to the step times, for updating a copy."""
        return timing_delta(system.pread(self._fd, TIMES_BYTES, self._start + _TIMES))

    def crash_output(self) -> str:
        """Return the last lines of standard error, and the first ones of the crash report."""
        data = system.pread(self._fd, _TIMES - _TEXT, self._start + _TEXT)
        stderr_lines = _lines(data[:_TEXT_SIZE])[-_LINES:]
        # faulthandler may list hundreds of extension modules at the end.
        report = _lines(data[_TEXT_SIZE:].partition(b"\nExtension modules:")[0])
        if len(report) > _LINES:
            report[_LINES:] = [f"  ... and {len(report) - _LINES} more lines"]
        return "\n".join(stderr_lines + report)


def _lines(data: bytes) -> list[str]:
    lines = data.rstrip(b"\0").decode(errors="replace").strip("\n").splitlines()
    return [line if len(line) <= _LINE else f"{line[:_LINE]} ..." for line in lines]


def open_region(fd: int, index: int) -> tuple[memoryview, ProgressRecord]:
    """Map a group's diagnostics region; return it and its progress record."""
    start = index * REGION_BYTES
    memory = mmap.mmap(fd, REGION_BYTES, offset=start)
    system.make_private_in_forks(memory, fd, start)
    region = memoryview(memory)
    return region, ProgressRecord(region[:8].cast("q"), region[_TIMES : _TIMES + TIMES_BYTES])


def start_recording(fd: int, index: int) -> ProgressRecord:
    """Write this process's diagnostics to its region from now on."""
    region, recorder = open_region(fd, index)
    faulthandler.disable()  # else a library's handler from before a fork would remain
    own = system.reopen(fd)  # because a passed descriptor shares its file position
    if own is None:
        faulthandler.enable()
    else:
        os.lseek(own, index * REGION_BYTES + _REPORT, os.SEEK_SET)
        faulthandler.enable(own, all_threads=False)
        system.after_fork(partial(_report_to_stderr, own))
    if sys.stderr is not None:
        sys.stderr = _TeeStream(sys.stderr, region[_TEXT:_REPORT])
    return recorder


def _report_to_stderr(own: int) -> None:
    """Send crash reports of a forked process to standard error."""
    with suppress(OSError):
        os.dup2(2, own, inheritable=False)


class _TeeStream:
    """Text stream that also copies its last output to a memory region."""

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
