"""Errors of vectorized environments and their sub-environments; stack levels of warnings."""

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


class EnvError(VecEnvError):
    """An environment raised an exception, or returned an invalid value (a wrong shape or type).

    ``__cause__`` is the environment's exception, unless a worker could not pickle it.

    Attributes:
        env_index (int): index of the environment in the vec env.
        command (str): the failed operation: ``"construct"``, ``"reset"``, ``"step"``, or the name
            of another function, such as ``"call"`` or ``"save_state"``.
        reason (str): one-line description.
        env_traceback (str): formatted traceback of the environment's exception.

    Example:
        >>> envs = DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")] * 2)
        >>> try:
        ...     envs.reset(options={"low": "wrong"})
        ... except EnvError as error:
        ...     print(error.env_index, error.command, type(error.__cause__).__name__)
        0 reset ValueError
        >>> envs.closed
        True
    """

    def __init__(self, env_index: int, command: str, reason: str, env_traceback: str = "") -> None:
        super().__init__(env_index, command, reason, env_traceback)
        self.env_index = env_index
        self.command = command
        self.reason = reason
        self.env_traceback = env_traceback

    def __str__(self) -> str:
        text = f"environment {self.env_index} failed in {self.command!r}: {self.reason}"
        cause_is_shown = self.__cause__ is not None and self.__cause__.__traceback__ is not None
        if self.env_traceback and not cause_is_shown:
            text += f"\n\nTraceback of environment {self.env_index}:\n{self.env_traceback.rstrip()}"
        return text


class StateError(EnvError):
    """An environment's state cannot be saved, or a saved state cannot be read.

    Nothing has been changed, and the vec env stays usable. ``env_index`` is -1 if the error does
    not concern a single environment.

    Example:
        >>> EnvStates.from_bytes(b"something else")
        Traceback (most recent call last):
            ...
        xuance_envs.errors.StateError: expected the output of EnvStates.to_bytes: ...
    """

    def __str__(self) -> str:
        return super().__str__() if self.env_index >= 0 else self.reason


class StateMismatchError(StateError):
    """A state was saved from an environment that differs from the target environment.

    Attributes:
        what (str): name of the part that differs, such as ``"wrappers"``, ``"id"``, ``"kwargs"``,
            ``"observation space"``, ``"model"``, ``"ROM"`` or ``"version of mujoco"``.
        saved: the value in the saved state.
        here: the value in the environment.

    Example:
        >>> from xuance_envs import DummyVecEnv_Gym, Gym_Env, StateMismatchError
        >>> with DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v1")]) as envs:
        ...     _ = envs.reset()
        ...     state = envs.save_state()
        >>> with DummyVecEnv_Gym([lambda: Gym_Env("CartPole-v0")]) as others:
        ...     try:
        ...         others.load_state(state)
        ...     except StateMismatchError as error:
        ...         print(error.what, error.saved, error.here)
        id CartPole-v1 CartPole-v0
    """

    def __init__(
        self,
        env_index: int,
        command: str,
        reason: str,
        env_traceback: str = "",
        what: str = "",
        saved: object = None,
        here: object = None,
    ) -> None:
        super().__init__(env_index, command, reason, env_traceback)
        self.args = (env_index, command, reason, env_traceback, what, saved, here)
        self.what = what
        self.saved = saved
        self.here = here


def invalid_reward(shape: tuple[int, ...], expected: tuple[int, ...] = ()) -> str:
    """Return the text of an error about a reward whose shape differs from the declared one."""
    if expected:
        return (
            f"invalid reward: expected shape {expected}, as in the environment's reward_space, "
            f"got {f'shape {shape}' if shape else 'a number'}; a wrapper that changes the shape "
            "of rewards needs a reward_space of its own, or reward_space = None if it returns "
            "numbers"
        )
    return (
        f"invalid reward: expected a number, got shape {shape}; an environment with vector rewards "
        "needs the attribute reward_space, a gymnasium.spaces.Box of shape (k,), or for several "
        "agents reward_spaces, a dict of such Boxes by agent. Or combine the components in a "
        "wrapper, such as mo_gymnasium.wrappers.LinearReward"
    )


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
