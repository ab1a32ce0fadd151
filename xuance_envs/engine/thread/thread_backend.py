"""Backend of threads: startup and shutdown."""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from xuance_envs._override import override
from xuance_envs.engine.backend import CLOSE_TIMEOUT, FAILED_CLOSE_TIMEOUT, Backend
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import EnvDescription, find_layer
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.system.gil import gil_is_enabled
from xuance_envs.engine.thread.thread_driver import ThreadDriver, Timeouts
from xuance_envs.engine.thread.wake_ups import WakeUps
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
        self._wake_ups = WakeUps()
        self.after_submit = self._wake_ups.wake_all

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
        self._wake_ups.wake_all()

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
            loop = self._loop if self._loop is not None and worker in self._loop.drivers else None
            if (loop is not None) == _is_asynchronous(worker):
                placed.append(worker)
            elif loop is None:
                placed += self._on_loop(worker)
            else:
                placed.append(ThreadDriver(worker.lo, worker.hi, self._timeouts, self._wake_ups))
                placed[-1].host = worker.host
                placed[-1].start()
                loop.remove(worker)
        self.workers[:] = placed
        for index, worker in enumerate(placed):
            worker.group = index

    def _on_loop(
        self, worker: ThreadDriver, rest: Sequence[tuple[int, int]] = ()
    ) -> list[ThreadDriver]:
        """Move a thread's group to the loop; create the environments of ``rest`` there."""
        from xuance_envs.engine.thread.loop_driver import GroupLoop  # imports asyncio

        is_new = self._loop is None
        settings = worker.thread, self._timeouts, self._wake_ups, self._divides
        loop = self._loop = self._loop or GroupLoop(*settings)
        self._wake_ups.wake_loop = loop.wake
        drivers, others = loop.add(worker), loop.add_new(rest)
        for other in others:
            self._submit_build(other)
        loop.to_build.extend(others)
        worker.end(*[loop.serve] if is_new else ())
        return [*drivers, *others]

    def _warn_of_unsafe_libraries(self) -> None:
        found: dict[str, int] = {}
        for worker in self.workers:
            for i, env in enumerate(worker.host.group.envs, worker.lo):
                found.setdefault(_unsafe_library(env), i)
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
        if not gil_is_enabled():
            self._wake_ups.all_at_once = True
            if len(self.workers) < available_cpus() and self._loop is None:
                for worker in self.workers:
                    worker.spin = SPIN

    @override
    def poller(self, drivers: Sequence[Driver]) -> Poller:
        return self._wake_ups

    @override
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        if any(worker.failed for worker in self.workers):
            close_timeout = min(close_timeout, FAILED_CLOSE_TIMEOUT)
        for worker in self.workers:
            worker.end(worker.host.close)
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
        driver = ThreadDriver(*self._split[index], self._timeouts, self._wake_ups)
        started(driver)
        driver.start()

    @override
    def _attach_arguments(self, lo: int, hi: int) -> tuple[StepArrays]:
        return (self._arrays.slice(lo, hi),)


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
