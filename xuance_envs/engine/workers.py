"""The worker processes of one vector environment: how each is started, and started again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xuance_envs.engine.by_value import number_classes
from xuance_envs.engine.crew import Crew
from xuance_envs.engine.process_end import end_all
from xuance_envs.engine.worker_process import StartSettings, WorkerProcess, start_worker

__all__ = ["Workers"]

PATIENCE = 1.0
"""Seconds a process that is replaced because an environment raised has to close the others."""


class Workers(Crew[WorkerProcess]):
    """Starts worker processes, and has them make their environments.

    Args:
        settings: how they start.
        split: index of the first environment and index after the last, of each.
        env_fns: makes an environment each; those of all workers.
        keywords: keyword arguments for each function.
    """

    without_pickling = ". context='fork' does without pickling"

    def __init__(
        self,
        settings: StartSettings,
        split: Sequence[tuple[int, int]],
        env_fns: Sequence[Callable[..., Any]],
        keywords: Sequence[Mapping[str, Any]],
    ) -> None:
        super().__init__(split, env_fns, keywords, settings.autoreset)
        self._settings = settings
        self._forked = settings.context.get_start_method() == "fork"
        if self._forked:
            number_classes()

    def _start(self, index: int, started: Callable[[WorkerProcess], None]) -> None:
        """Starts one, and hands it over.

        Raises:
            OSError: a limit on processes or descriptors was met; says what they need.
        """
        lo, hi = self._split[index]
        inherited = self._env_fns[lo:hi] if self._forked else None
        try:
            start_worker(self._settings, index, lo, hi, inherited, started)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
                raise
            raise OSError(
                error.errno,
                f"{error.strerror}: could not start worker {index + 1} of "
                f"{len(self._split)}, each of which takes a process and up to five descriptors. "
                "Raise the limits (ulimit -n, ulimit -u), or have more environments share a "
                "worker with in_series",
            ) from error

    def _end(self, worker: WorkerProcess) -> None:
        end_all([worker], PATIENCE)

    def _place(self, lo: int, hi: int) -> tuple[Any, ...]:
        return self._spaces, len(self._env_fns), lo, hi

    def _functions(self, lo: int, hi: int) -> bytes | None:
        return None if self._forked else super()._functions(lo, hi)
