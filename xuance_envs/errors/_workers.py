"""Errors of workers."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from xuance_envs.errors._base import VecEnvError


class _WorkerError(VecEnvError):
    """Base class of errors about a worker."""

    def __init__(
        self,
        env_indices: Sequence[int],
        pid: int | None,
        command: str,
        details: str,
        env_index: int | None,
    ) -> None:
        super().__init__()
        self.env_indices = tuple(env_indices)
        self.pid = pid
        self.command = command
        self.details = details
        self.env_index = env_index
        self.restarted = False

    def _message(self, happened: str) -> str:
        process, pid = ("", "") if self.pid is None else (" process", f" (pid {self.pid})")
        text = f"the worker{process} of {name_envs(self.env_indices)}{pid} {happened}"
        if self.env_index is not None and len(self.env_indices) > 1:
            text += f"; it was running environment {self.env_index}"
        if self.restarted:
            text += "; a new worker replaces it"
        return f"{text}\n{self.details}" if self.details else text


class WorkerDiedError(_WorkerError):
    """A worker ended unexpectedly: it crashed, exited or was killed.

    Attributes:
        env_indices (tuple[int, ...]): indices of the worker's environments.
        pid (int | None): process id; None if unknown.
        exitcode (int | None): exit status, or the negative number of the signal that killed it,
            as in :attr:`multiprocessing.Process.exitcode`; None if unknown.
        command (str): the last command sent to the worker.
        details (str): further lines of the message, such as the stack of the crash and the end of
            the worker's standard error.
        env_index (int | None): the environment that the worker was running; None if unknown.
        restarted (bool): True if a new worker replaces it and the vec env stays usable.

    Example:
        >>> import os
        >>> class Leaving(Gym_Env):
        ...     def step(self, action):
        ...         os._exit(7)
        >>> envs = SubprocVecEnv_Gym([lambda: Leaving("CartPole-v1")] * 2, in_series=2)
        >>> _ = envs.reset()
        >>> try:
        ...     envs.step([0, 0])
        ... except WorkerDiedError as error:
        ...     print(error.env_indices, error.env_index, error.exitcode, error.command)
        (0, 1) 0 7 step
    """

    def __init__(
        self,
        env_indices: Sequence[int],
        pid: int | None,
        exitcode: int | None,
        command: str,
        details: str = "",
        env_index: int | None = None,
    ) -> None:
        super().__init__(env_indices, pid, command, details, env_index)
        self.args = (self.env_indices, pid, exitcode, command, details, env_index)
        self.exitcode = exitcode

    def __str__(self) -> str:
        return self._message(f"died during {self.command!r}: {self._exit_reason()}")

    def _exit_reason(self) -> str:
        if self.exitcode is None:
            return "its exit code is unknown"
        if self.exitcode >= 0:
            return f"it exited with code {self.exitcode}"
        try:
            name = signal.Signals(-self.exitcode).name
        except ValueError:
            name = f"signal {-self.exitcode}"
        text = f"it was killed by {name}"
        if name == "SIGKILL":
            text += (
                " (the kernel does this when memory runs out: check the kernel log, "
                "and try fewer or smaller environments)"
            )
        return text


class WorkerTimeoutError(_WorkerError):
    """A worker did not answer in time.

    Attributes:
        env_indices (tuple[int, ...]): indices of the worker's environments.
        pid (int | None): process id; None for a thread, for a process that was not started, and if
            no worker answered ``recv``.
        timeout (float): the time limit, in seconds.
        command (str): the unanswered command.
        details (str): further lines of the message, such as the worker's stack when it was killed.
        env_index (int | None): the environment that the worker was running; None if unknown.
        restarted (bool): True if a new worker replaces it and the vec env stays usable.

    Example:
        >>> import time
        >>> class Sleeping(Gym_Env):
        ...     def step(self, action):
        ...         time.sleep(60)
        >>> envs = SubprocVecEnv_Gym([lambda: Sleeping("CartPole-v1")], step_timeout=0.5)
        >>> _ = envs.reset()
        >>> try:
        ...     envs.step([0])
        ... except WorkerTimeoutError as error:
        ...     print(error.env_indices, error.timeout, error.command)
        (0,) 0.5 step
    """

    def __init__(
        self,
        env_indices: Sequence[int],
        pid: int | None,
        timeout: float,
        command: str,
        details: str = "",
        env_index: int | None = None,
    ) -> None:
        super().__init__(env_indices, pid, command, details, env_index)
        self.args = (self.env_indices, pid, timeout, command, details, env_index)
        self.timeout = timeout

    def __str__(self) -> str:
        if self.pid is None and self.command == "recv":
            return f"no reply from {name_envs(self.env_indices)} within {self.timeout:g} s"
        return self._message(f"did not answer {self.command!r} within {self.timeout:g} s")


def counted(count: int, noun: str) -> str:
    """Return a number and its noun: ``1 environment``, ``2 environments``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def name_envs(indices: Sequence[int]) -> str:
    """Describe environments: ``environment 3``, ``environments 4 to 7``, ``environments 1, 5``."""
    if len(indices) == 1:
        return f"environment {indices[0]}"
    if len(indices) > 2 and tuple(indices) == tuple(range(indices[0], indices[-1] + 1)):
        return f"environments {indices[0]} to {indices[-1]}"
    return "environments " + ", ".join(map(str, indices))
