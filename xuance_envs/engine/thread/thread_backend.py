"""Backend of threads: startup, waiting for the first reply, and shutdown."""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from xuance_envs._override import override
from xuance_envs.engine.backend import CLOSE_TIMEOUT, FAILED_CLOSE_TIMEOUT, Backend
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import EnvDescription, find_layer
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.system.doorbell import Doorbell
from xuance_envs.engine.system.gil import gil_is_enabled
from xuance_envs.engine.thread.thread_driver import (
    LONGEST_WAIT,
    ThreadDriver,
    Timeouts,
)
from xuance_envs.errors import caller_stacklevel, name_envs

if TYPE_CHECKING:
    from xuance_envs.engine.thread.loop_driver import GroupLoop

logger = logging.getLogger("xuance_envs")

SPIN = 500e-6  # longest time in seconds that a thread spins before it blocks, without the GIL


class ThreadBackend(Backend[ThreadDriver]):
    def __init__(
        self,
        split: Sequence[tuple[int, int]],
        recipe: Recipe,
        info_bytes: int,
        timeouts: Timeouts,
        divides: bool,
    ) -> None:
        super().__init__(split, recipe, info_bytes)
        self._timeouts = timeouts
        self._divides = divides
        self._loop: GroupLoop | None = None
        self._replies = ReplyPoller()

    @override
    def start(self) -> None:
        self._start(0, self.workers.append)  # its environments decide how to start the others

    @override
    def build(self) -> None:
        first = self.workers[0]
        self._submit_build(first)
        first.result()
        if _is_asynchronous(first):
            self.workers[:] = self._on_loop(first, self._split[1:])
            return
        for index in range(1, len(self._split)):
            self._start(index, self.workers.append)
        for worker in self.workers[1:]:
            self._submit_build(worker)

    @override
    def descriptions(self) -> list[tuple[int, EnvDescription]]:
        described = super().descriptions()
        for env, description in described:
            if description.render_mode == "human":
                raise ValueError(
                    f"environment {env}: expected a render_mode other than 'human', because "
                    "windows belong to the main thread; use 'rgb_array', or DummyVecEnv"
                )
        self._place_groups()
        self._warn_of_unsafe_libraries()
        return described

    def _place_groups(self) -> None:
        """Move asynchronous groups to the event loop, and all other groups off it."""
        placed: list[ThreadDriver] = []
        for worker in self.workers:
            on_loop = self._loop is not None and worker in self._loop.drivers
            if on_loop == _is_asynchronous(worker):
                placed.append(worker)
            else:
                placed += [self._in_thread(worker)] if on_loop else self._on_loop(worker)
        self.workers[:] = placed
        for index, worker in enumerate(placed):
            worker.on_reply = partial(self._replies.add, index)
            worker.siblings = self.workers

    def _on_loop(
        self, worker: ThreadDriver, rest: Sequence[tuple[int, int]] = ()
    ) -> list[ThreadDriver]:
        """Move a thread's group to the loop; create the environments of ``rest`` there."""
        from xuance_envs.engine.thread.loop_driver import GroupLoop  # imports asyncio

        is_new = self._loop is None
        loop = self._loop = self._loop or GroupLoop(worker.thread, self._timeouts, self._divides)
        self.after_submit = loop.wake
        drivers, others = loop.add(worker), loop.add_new(rest)
        for other in others:
            self._submit_build(other)
        loop.to_build.extend(others)
        worker.leave(*[loop.serve] if is_new else ())
        return [*drivers, *others]

    def _in_thread(self, driver: ThreadDriver) -> ThreadDriver:
        """Move a group from the loop to a thread of its own."""
        assert self._loop is not None
        worker = ThreadDriver(driver.lo, driver.hi, self._timeouts)
        worker.take_over(driver)
        worker.start()
        self._loop.remove(driver)
        return worker

    def _warn_of_unsafe_libraries(self) -> None:
        found: dict[str, int] = {}
        for worker in self.workers:
            count = worker.hi - worker.lo
            worker.submit(0, worker.pack("apply", range(count), _unsafe_library, [()] * count))
            for env, library in enumerate(worker.result(), worker.lo):
                found.setdefault(library, env)
        for library in filter(None, found):
            warnings.warn(
                f"environment {found[library]} uses {library}, which is not safe in threads: "
                "results may be wrong; use DummyVecEnv or SubprocVecEnv",
                RuntimeWarning,
                stacklevel=caller_stacklevel(),
            )

    @override
    def attach(self, spaces: StepSpaces, arrays: StepArrays) -> None:
        super().attach(spaces, arrays)
        # Checked after the environments' imports, which may turn the GIL on.
        if not gil_is_enabled() and len(self.workers) < available_cpus() and self._loop is None:
            for worker in self.workers:
                worker.spin = SPIN

    @override
    def poller(self, drivers: Sequence[Driver]) -> Poller:
        return self._replies

    @override
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        if any(worker.failed for worker in self.workers):
            close_timeout = min(close_timeout, FAILED_CLOSE_TIMEOUT)
        for worker in self.workers:
            worker.request_stop()
        deadline = monotonic() + close_timeout
        left: dict[threading.Thread, list[int]] = {}
        while self.workers:
            worker = self.workers.pop(0)
            if not worker.join(deadline):
                left.setdefault(worker.thread, []).extend(range(worker.lo, worker.hi))
        for envs in left.values():
            logger.warning(
                "the thread of %s still runs %g s after closing, and cannot be killed",
                *(name_envs(envs), close_timeout),
            )

    @override
    def _start(self, index: int, started: Callable[[ThreadDriver], None]) -> None:
        driver = ThreadDriver(*self._split[index], self._timeouts)
        started(driver)
        driver.start()

    @override
    def _end(self, index: int) -> NoReturn:
        raise RuntimeError("a thread cannot be killed, so it cannot be restarted")

    @override
    def _attach_arguments(self, lo: int, hi: int) -> tuple[StepArrays]:
        return (self._arrays.slice(lo, hi),)


class ReplyPoller(Poller):
    """Poller for replies of threads; each thread adds its index when it has replied."""

    def __init__(self) -> None:
        self._bell = Doorbell()
        self._replied: set[int] = set()

    def add(self, group: int) -> None:
        self._replied.add(group)
        self._bell.ring()

    @override
    def poll(self, busy: Collection[int]) -> set[int]:
        # A group is removed before its result is requested, so a later reply is not missed.
        replied = self._replied.copy()
        self._replied.difference_update(replied)
        return replied.intersection(busy)

    @override
    def wait(self, busy: Collection[int], until: float | None) -> set[int]:
        while not (ready := self.poll(busy)):
            left = LONGEST_WAIT
            if until is not None:
                remaining = max(0.0, until - monotonic())
                left = remaining if left < 0 else min(left, remaining)
            if not self._bell.wait(timeout=left) and until is not None and monotonic() >= until:
                break
        return ready


def _is_asynchronous(worker: ThreadDriver) -> bool:
    """Return whether all environments of a group are asynchronous."""
    return bool(worker.host.group.asynchronous) and all(worker.host.group.asynchronous)


def _unsafe_library(env: Any) -> str:
    """Return the library of an environment that is not safe in threads, or an empty string."""
    if find_layer(env, "legacy_env") is not None:
        return "gym"
    if getattr(find_layer(env, "render_mode"), "render_mode", None) is None:
        return ""
    kinds = type(getattr(env, "unwrapped", env)).__mro__
    members = [each for kind in kinds for each in vars(kind).values()]
    functions = filter(inspect.isfunction, members)
    return "pygame" if any("pygame" in each.__code__.co_names for each in functions) else ""
