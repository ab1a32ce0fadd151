"""Errors of sub-environments and their states."""

from __future__ import annotations

from xuance_envs.errors._base import VecEnvError


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
