"""Interrupts (Ctrl-C) at a given moment."""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import random
import signal
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any
from weakref import WeakSet

import gymnasium


@contextlib.contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Send SIGINT to this process's main thread, ``seconds`` after the block began."""
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


class RandomInterrupts:
    """SIGINTs at random moments of calls in the main thread; outside these they do nothing."""

    def __init__(self, longest: float) -> None:
        self.count = 0
        self._longest = longest
        self._rng = random.Random(0)
        self._armed = False

    def __enter__(self) -> RandomInterrupts:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, _: int, frame: FrameType | None) -> None:
        if self._armed and not drops_exceptions(frame):
            self._armed = False
            raise KeyboardInterrupt

    def call(self, function: Callable[[], object]) -> None:
        """Call the function and interrupt it at most once, at any moment or not at all."""
        try:
            with interrupt_after(self._rng.random() * self._longest):
                self._armed = True
                function()
                self._armed = False
        except KeyboardInterrupt:
            self.count += 1


@contextlib.contextmanager
def alarms_interrupt() -> Iterator[None]:
    """Let SIGALRM raise KeyboardInterrupt; where Python would drop it, a moment later."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        if not drops_exceptions(frame):
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, 20e-6)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


NO_INSTANT = ("RESUME", "PUSH_EXC_INFO", "NOT_TAKEN")
"""Instructions before which none is: a call before PUSH_EXC_INFO raised, and did not return.

An exception there would have its handler restore the wrong exception, which stays for ever. Python
does not check for signals at NOT_TAKEN, to which no handler applies.
"""


class Instant:
    """One instant in a block of code, at which this thread is interrupted.

    Python checks for signals on function entry, after calls and at jumps: these are the instants.
    They are counted in the code of some files, so that a test can try each of them. ``inside`` is
    the environment whose method was interrupted or had just returned, and the method's name.
    """

    def __init__(self, number: int, folders: Sequence[str]) -> None:
        self.came = False
        self.place = "not interrupted"
        self.inside: tuple[Any, str] | None = None
        self._left = number
        self._folders = tuple(folders)
        self._opcodes: dict[FrameType, list[tuple[bool, bool]]] = {}
        self._checks: dict[FrameType, bool] = {}
        self._returned: tuple[Any, str] | None = None

    def __enter__(self) -> Instant:
        self._traced_before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 checks only the frame that starts it
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._traced_before)
        self._opcodes.clear()
        self._checks.clear()
        return self.came and kind is KeyboardInterrupt

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            code = frame.f_code
            if not code.co_filename.startswith(self._folders) or code.co_name == "__del__":
                return None  # exceptions do not leave __del__
            frame.f_trace = self._trace  # otherwise Python 3.13 ignores the next line
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            self._opcodes[frame] = opcodes_of(code)
            self._checks[frame] = True
        elif event == "return":
            self._checks.pop(frame, None)
            self._opcodes.pop(frame, None)
            self._returned = env_method(frame)
        elif event == "opcode":
            may_come = self._checks[frame]
            self._checks[frame], may_come_before = self._opcodes[frame][frame.f_lasti]
            returned, self._returned = self._returned, None
            # A generator that is being closed has no line.
            if may_come and may_come_before and frame.f_lineno is not None:
                self._left -= 1
                if self._left < 0:
                    self.came = True
                    code = frame.f_code
                    file = os.path.basename(code.co_filename)
                    self.place = f"{file}:{frame.f_lineno} in {code.co_name}"
                    frames = iterate_frames(frame)
                    self.inside = next(filter(None, map(env_method, frames)), returned)
                    raise KeyboardInterrupt
        return self._trace


@functools.cache
def opcodes_of(code: CodeType) -> list[tuple[bool, bool]]:
    """Return whether Python checks for signals after each byte's instruction, and may before it."""
    names = [dis.opname[opcode] for opcode in code.co_code]
    return [
        (name.startswith(INTERRUPTIBLE) and "NO_INTERRUPT" not in name, name not in NO_INSTANT)
        for name in names
    ]


INTERRUPTIBLE = ("RESUME", "CALL", "JUMP", "POP_JUMP")


def env_method(frame: FrameType) -> tuple[Any, str] | None:
    """Return the environment and the method's name if the frame is an environment's method."""
    env, name = frame.f_locals.get("self"), frame.f_code.co_name
    return (env, name) if isinstance(env, gymnasium.Env) else None


def iterate_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


CALLBACKS = (weakref.__file__, WeakSet.add.__code__.co_filename)
"""The files of weak references' callbacks. The second has no module of a public name."""


def drops_exceptions(frame: FrameType | None) -> bool:
    """Return whether Python drops exceptions here: in a ``__del__`` or a callback of weakref."""
    codes = (each.f_code for each in iterate_frames(frame))
    return any(code.co_name == "__del__" or code.co_filename in CALLBACKS for code in codes)


class Alarm:
    """A real signal ``seconds`` into a block, which interrupts it only in the code of some files.

    Timers fire late, on some machines by more than the duration of a step. The block is therefore
    entered with the same delay.
    """

    LEAD = 100e-6
    """Seconds between setting the timer and entering the block, if timers are punctual."""

    def __init__(self, seconds: float, folders: Sequence[str]) -> None:
        self.came = False
        self._seconds = seconds
        self._folders = tuple(folders)

    def __enter__(self) -> Alarm:
        lead = self.LEAD + timer_latency()
        self._before = signal.signal(signal.SIGALRM, self._ring)
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self.LEAD + self._seconds)
        while time.perf_counter() - start < lead:
            pass
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        return self.came and kind is KeyboardInterrupt

    def _ring(self, _: int, frame: FrameType | None) -> None:
        files = (each.f_code.co_filename for each in iterate_frames(frame))
        if any(file.startswith(self._folders) for file in files) and not drops_exceptions(frame):
            self.came = True
            raise KeyboardInterrupt


@functools.cache
def timer_latency(samples: int = 21) -> float:
    """Return the median delay of this machine's timers in seconds."""
    rung: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.perf_counter()))
    try:
        late = []
        for number in range(samples):
            start = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, Alarm.LEAD)
            while len(rung) == number and time.perf_counter() - start < 1:
                pass
            late.append((rung[number] if len(rung) > number else start + 1) - start - Alarm.LEAD)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return max(0.0, statistics.median(late))
