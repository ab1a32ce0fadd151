"""Event loops for environments whose methods are coroutines.

``asyncio`` is imported on first use, because most programs have no such environments.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from inspect import isawaitable
from typing import Any

logger = logging.getLogger("xuance_envs")

LONGEST_WAIT = 0.1
"""Seconds of one wait for a lock. On Windows, Ctrl-C does not interrupt such a wait."""

CANCEL_TIMEOUT = 1.0
"""Seconds that a stopped loop waits for its cancelled tasks to end."""

Outcome = tuple[Any, BaseException | None]
"""Result of a call, or the exception that it raised."""


class NotAnExceptionError(Exception):
    """A coroutine raised a BaseException such as SystemExit; it is the ``__cause__``."""


class EventLoop:
    """Event loop that one thread runs, and that other threads send coroutines to."""

    def __init__(self) -> None:
        import asyncio

        self.loop = asyncio.new_event_loop()
        self.is_stopped = False
        self._last: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def in_thread(cls, owner: Any, name: str) -> EventLoop:
        """Start a loop in a thread; it stops when ``owner`` is garbage-collected, at the latest."""
        found = cls()
        threading.Thread(target=found.serve, name=name, daemon=True).start()
        weakref.finalize(owner, found.stop)
        return found

    def serve(self) -> None:
        """Run the loop in this thread until :meth:`stop`."""
        import asyncio

        self._thread = threading.current_thread()
        asyncio.set_event_loop(self.loop)
        while not self.is_stopped:
            try:
                self.loop.run_forever()
            except BaseException:  # such as SystemExit in a task that an environment created
                logger.warning("an environment's background task failed", exc_info=True)
        try:
            if tasks := asyncio.all_tasks(self.loop):
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_TIMEOUT))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    @property
    def is_current(self) -> bool:
        """True in the thread of the loop."""
        return self._thread is threading.current_thread()

    def post(self, function: Callable[[], Any]) -> None:
        """Call a function in the loop's thread, without waiting for it."""
        with suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(function)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Run an awaitable in the loop and wait for its result."""
        import asyncio

        self.cancel_interrupted()
        future = self._last = asyncio.run_coroutine_threadsafe(outcome_of(awaitable), self.loop)
        while True:
            try:
                outcome = future.result(LONGEST_WAIT)
                break
            except FutureTimeoutError:
                continue
        self._last = None
        return value_of(*outcome)

    def cancel_interrupted(self) -> None:
        """Cancel the awaitable whose wait was interrupted, if any."""
        if self._last is not None:
            self._last.cancel()
            self._last = None

    def stop(self, timeout: float = 0.0) -> None:
        """End the loop and cancel its tasks; wait up to ``timeout`` for its thread to end."""
        self.is_stopped = True
        self.post(self.loop.stop)
        if timeout and self._thread is not None and not self.is_current:
            self._thread.join(timeout)


async def outcome_of(awaitable: Awaitable[Any]) -> Outcome:
    """Return the result or the exception: raising a SystemExit would end the loop."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


def value_of(value: Any, error: BaseException | None) -> Any:
    """Return the value, or raise the error (as NotAnExceptionError if it is no Exception)."""
    if error is None:
        return value
    try:
        if isinstance(error, Exception):
            raise error
        raise NotAnExceptionError(f"{type(error).__name__}: {error}") from error
    finally:
        del error  # its traceback refers to this frame


class Finisher:
    """Waiter for results that may be awaitables; the first awaitable starts a thread."""

    def __init__(self) -> None:
        self._loop: EventLoop | None = None

    def __call__(self, result: Any) -> Any:
        if not isawaitable(result):
            return result
        if self._loop is None:
            self._loop = EventLoop.in_thread(self, "xuance_envs-awaitables")
        return self._loop.run(result)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.stop(CANCEL_TIMEOUT)


def finish(result: Any) -> Any:
    """Return a result, after waiting for it if it is an awaitable."""
    finisher = Finisher()
    try:
        return finisher(result)
    finally:
        finisher.stop()
