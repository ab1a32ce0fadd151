"""The root of the tree, and what comes of using a vector environment otherwise than it allows."""

from __future__ import annotations

__all__ = [
    "AlreadySteppingError",
    "ClosedVecEnvError",
    "NotSteppingError",
    "VecEnvError",
    "WrongProcessError",
]


class VecEnvError(Exception):
    """The root of every exception this package defines.

    Example:
        >>> try:
        ...     raise EnvError(3, "step", "ValueError: too far")
        ... except VecEnvError as error:
        ...     print(error)
        environment 3 failed in 'step': ValueError: too far
    """


class AlreadySteppingError(VecEnvError):
    """A step is pending: finish it with ``step_wait`` before asking for something else.

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
    """``step_wait`` was called without a ``step_async`` before it.

    Example:
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")])
        >>> envs.step_wait()
        Traceback (most recent call last):
            ...
        xuance_envs.errors.NotSteppingError: ...
        >>> envs.close()
    """


class ClosedVecEnvError(VecEnvError):
    """The vector environment has been closed, by ``close`` or after an error.

    Example:
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")])
        >>> envs.close()
        >>> envs.reset()
        Traceback (most recent call last):
            ...
        xuance_envs.errors.ClosedVecEnvError: ...
    """


class WrongProcessError(VecEnvError):
    """The vector environment belongs to the process that this one was forked from.

    Its environments live in workers, or on a server, which answer that process only. Make another
    one in this process. (A :class:`~xuance_envs.vector_envs.dummy_vec_env.DummyVecEnv` is copied
    with its environments, and goes on in both.)

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
