"""What an environment did, and what is wrong with its state."""

from __future__ import annotations

from xuance_envs.errors._base import VecEnvError

__all__ = ["EnvError", "StateError", "StateMismatchError"]


class EnvError(VecEnvError):
    """An environment raised an exception, or returned something its spaces do not allow.

    The exception the environment raised is the ``__cause__``, unless it could not be brought
    over from a worker process.

    Attributes:
        env_index (int): index of the environment in the vector environment.
        command (str): what the environment was asked to do: ``"construct"``, ``"reset"``,
            ``"step"``, ``"render"``, ``"call"``, ``"get_attr"``, ``"set_attr"`` or ``"close"``.
        reason (str): one line on what happened.
        env_traceback (str): the formatted traceback from where it happened.

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
    """An environment's state cannot be saved, or what was saved cannot be read.

    Nothing has been changed then, and the vector environment stays usable. ``env_index`` is -1
    where it is not about one environment.

    Example:
        >>> EnvStates.from_bytes(b"something else")
        Traceback (most recent call last):
            ...
        xuance_envs.errors.StateError: expected states as EnvStates.to_bytes gives them: ...
    """

    def __str__(self) -> str:
        return super().__str__() if self.env_index >= 0 else self.reason


class StateMismatchError(StateError):
    """A state is of an environment that differs from the one it is to be put into.

    Attributes:
        what (str): what differs: ``"wrappers"``, ``"id"``, ``"kwargs"``, a space, the ``"model"``
            or the ``"ROM"``, what a function or a class holds, or a library's version.
        saved: how it was when the state was saved.
        here: how it is in the environment.

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
