"""Backend of threads: startup and shutdown."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from xuance_envs._override import override
from xuance_envs.engine.backend import CLOSE_TIMEOUT, FAILED_CLOSE_TIMEOUT, Backend, Timeouts
from xuance_envs.engine.cpus import available_cpus, gil_is_enabled
from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.driver import Driver
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.single_env import EnvDescription, find_layer
from xuance_envs.engine.polling import Poller
from xuance_envs.engine.thread.thread_driver import ThreadDriver, WakeUps
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
        if self._split:  # else the calling thread steps all environments
            self._start(0, self.workers.append)  # the first worker decides how the others start

    @override
    def build(self) -> None:
        if not self.workers:
            return
        first = self.workers[0]
        self._submit_build(first)
        first.result()
        if first.host.group.is_asynchronous:
            self.workers[:] = self._on_loop(first, self._split[1:])
            return
        for index in range(1, len(self._split)):
            self._start(index, self.workers.append)
            self._submit_build(self.workers[-1])
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
        self.workers[:] = [each for worker in self.workers for each in worker.placed(self._on_loop)]
        for index, worker in enumerate(self.workers):
            worker.group = index
        found: dict[str, int] = {}
        for i, env in enumerate(self.envs):
            found.setdefault(_unsafe_library(env), i)
        for library in filter(None, found):
            warnings.warn(
                f"environment {found[library]} uses {library}, which is not safe in threads: "
                "results may be wrong; use DummyVecEnv or SubprocVecEnv",
                RuntimeWarning,
                stacklevel=caller_stacklevel(),
            )
        return described

    def _on_loop(
        self, worker: ThreadDriver, rest: Sequence[tuple[int, int]] = ()
    ) -> list[ThreadDriver]:
        """Move a thread's group to the loop, and create groups there for the ranges in ``rest``."""
        from xuance_envs.engine.thread.loop_driver import GroupLoop  # imports asyncio

        if self._loop is None:
            self._loop = GroupLoop(worker.thread, self._timeouts, self._wake_ups, self._divides)
        return self._loop.add(worker, rest, self._submit_build)

    @property
    @override
    def envs(self) -> list[Any]:
        return [env for worker in self.workers for env in worker.host.group.envs]

    @override
    def attach(self, spaces: StepSpaces, arrays: StepArrays) -> None:
        super().attach(spaces, arrays)
        # Checked after the environments' imports, which may turn the GIL on.
        self._wake_ups.all_at_once = not gil_is_enabled()
        has_cpus = self._loop is None and len(self.workers) <= available_cpus()
        self._wake_ups.spin = SPIN if self._wake_ups.all_at_once and has_cpus else 0.0

    @override
    def poller(self, drivers: Sequence[Driver]) -> Poller:
        return self._wake_ups

    @override
    def end(self, close_timeout: float = CLOSE_TIMEOUT) -> None:
        if any(worker.failed for worker in self.workers):
            close_timeout = min(close_timeout, FAILED_CLOSE_TIMEOUT)
        self._wake_ups.all_at_once = True  # a thread that hangs wakes no other one
        for worker in self.workers:
            worker.end(worker.host.close)
        self._wake_ups.wake_all()
        deadline = monotonic() + close_timeout
        left = [worker for worker in self.workers if not worker.join(deadline)]
        self.workers.clear()
        if left:
            envs = [env for worker in left for env in range(worker.lo, worker.hi)]
            logger.warning(
                "%s: still running %g s after closing; a thread cannot be killed",
                *(name_envs(envs), close_timeout),
            )

    @override
    def _start(self, index: int, started: Callable[[ThreadDriver], None]) -> None:
        driver = ThreadDriver(*self._split[index], self._timeouts, self._wake_ups)
        started(driver)
        driver.start()


def _unsafe_library(env: Any) -> str:
    """Return the environment's library that is not safe in threads, or an empty string."""
    if find_layer(env, "legacy_env") is not None:
        return "gym"
    if getattr(find_layer(env, "render_mode"), "render_mode", None) is None:
        return ""
    kinds = type(getattr(env, "unwrapped", env)).__mro__
    members = [each for kind in kinds for each in vars(kind).values()]
    functions = filter(inspect.isfunction, members)
    return "pygame" if any("pygame" in each.__code__.co_names for each in functions) else ""
