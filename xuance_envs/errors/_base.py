"""The base class of all exceptions, errors for misuse, and stack levels of warnings."""

from __future__ import annotations

import inspect

from gymnasium.error import ResetNeeded

_INTERNAL_PACKAGES = frozenset(
    {"xuance_envs", "gymnasium", "gym", "stable_baselines3", "contextlib"}
)
"""Packages whose frames may lie between user code and a warning."""


class VecEnvError(Exception):
    """Base class of all exceptions of this package.

    Example:
        >>> try:
        ...     raise EnvError(3, "step", "ValueError: too far")
        ... except VecEnvError as error:
        ...     print(error)
        environment 3 failed in 'step': ValueError: too far
    """


class AlreadySteppingError(VecEnvError):
    """An operation was called while a step was pending or a result of ``send`` was outstanding.

    Finish the step with ``step_wait`` first, or receive the results with ``recv``.

    Example:
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")])
        >>> _ = envs.reset()
        >>> envs.step_async([0])
        >>> envs.call("render")
        Traceback (most recent call last):
            ...
        xuance_envs.errors.AlreadySteppingError: ...
        >>> _ = envs.step_wait()
        >>> envs.close()
    """


class NotSteppingError(VecEnvError):
    """``step_wait`` was called without a pending step, or ``recv`` without a pending result.

    Example:
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")])
        >>> envs.step_wait()
        Traceback (most recent call last):
            ...
        xuance_envs.errors.NotSteppingError: ...
        >>> envs.close()
    """


class NotResetError(VecEnvError, ResetNeeded):
    """``step`` or ``send`` was called for an environment that was never reset or loaded.

    Nothing has been stepped, and the vectorized environment stays usable. The class also derives
    from :class:`gymnasium.error.ResetNeeded`.

    Example:
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")])
        >>> envs.step([0])
        Traceback (most recent call last):
            ...
        xuance_envs.errors.NotResetError: step: environment 0 has not been reset; call reset() first
        >>> envs.close()
    """


class ClosedVecEnvError(VecEnvError):
    """The vectorized environment was closed, by ``close`` or by an earlier error.

    Example:
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")])
        >>> envs.close()
        >>> envs.reset()
        Traceback (most recent call last):
            ...
        xuance_envs.errors.ClosedVecEnvError: ...
    """


class WrongProcessError(VecEnvError):
    """A forked process used a vectorized environment of its parent process.

    Workers and servers answer only the process that created the vec env. Create a new one in
    the forked process. A :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv` without
    asynchronous environments works in both processes, because the fork copies its environments.

    Example:
        >>> import os
        >>> def reset_in_a_fork(envs):
        ...     if (child := os.fork()) != 0:
        ...         return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ...     try:
        ...         envs.reset()
        ...     except WrongProcessError:
        ...         os._exit(3)
        ...     finally:
        ...         os._exit(0)
        >>> with SubprocVecEnv_Gym([lambda: Gym_Env("CartPole-v1")]) as envs:
        ...     reset_in_a_fork(envs)
        3
    """


def caller_stacklevel() -> int:
    """Return the ``stacklevel`` that attributes a warning to the nearest line of user code.

    User code is outside this package and outside libraries that wrap its classes.
    """
    frame = inspect.currentframe()
    level = 0
    while (
        frame is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] in _INTERNAL_PACKAGES
    ):
        frame = frame.f_back
        level += 1
    return max(level, 1)
