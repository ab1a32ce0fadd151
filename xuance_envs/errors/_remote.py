"""What a server of environments answered, if it did."""

from __future__ import annotations

from xuance_envs.errors._base import VecEnvError

__all__ = [
    "RemoteAuthenticationError",
    "RemoteConflictError",
    "RemoteError",
    "RemoteForbiddenError",
    "RemoteLimitError",
    "RemoteNotFoundError",
    "RemoteRequestError",
    "RemoteTooLargeError",
    "RemoteUnreachableError",
    "RemoteVersionError",
]


class RemoteError(VecEnvError):
    """A server of environments refused a request, failed at it, or could not be reached.

    Attributes:
        message (str): what went wrong, and what to do about it.
        server (str): the server's address.
        status (int | None): the HTTP status it answered with; None where there was no answer.

    Example:
        >>> try:
        ...     RemoteVecEnv("http://127.0.0.1:9", "CartPole-v1", 2, timeout=1.0)
        ... except RemoteError as error:
        ...     print(type(error).__name__, error.server, error.status)
        RemoteUnreachableError http://127.0.0.1:9 None
    """

    def __init__(self, message: str, server: str, status: int | None = None) -> None:
        super().__init__(message, server, status)
        self.message = message
        self.server = server
        self.status = status

    def __str__(self) -> str:
        answered = "" if self.status is None else f" (HTTP {self.status})"
        return f"{self.server}: {self.message}{answered}"


class RemoteAuthenticationError(RemoteError):
    """The server wants a token, and got none or not one of its own (401).

    Example:
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings, Tokens
        >>> settings = Settings(Catalogue.of_ids(["CartPole-v1"]), Tokens(["secret"]))
        >>> with Server(settings, port=0) as server:
        ...     RemoteVecEnv(server.url, "CartPole-v1", 2, user_token="guessed")
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteAuthenticationError: ...
    """


class RemoteForbiddenError(RemoteError):
    """The server's operator has not allowed what was asked for (403).

    Example:
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     RemoteVecEnv(server.url, "CartPole-v1", 2, env_kwargs={"sutton": True})
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteForbiddenError: ...
    """


class RemoteNotFoundError(RemoteError):
    """The server has no such session, episode or environment, or not for this token (404).

    A session that was not used for a while is gone as well.

    Example:
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     RemoteVecEnv(server.url, "Pong", 2)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteNotFoundError: ...
    """


class RemoteConflictError(RemoteError):
    """The session or the episode is not in a state in which that can be done (409).

    Example:
        >>> import os
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> class Leaving(Gym_Env):
        ...     def step(self, action):
        ...         os._exit(7)
        >>> settings = Settings(Catalogue({"Leaving": lambda: Leaving("CartPole-v1")}))
        >>> with Server(settings, port=0) as server:
        ...     env = create_student_gym_env_vectorized(1, 1, None, base_url=server.url)
        ...     _ = env.reset()
        ...     try:
        ...         env.step([0])
        ...     except WorkerDiedError:
        ...         env.reset()
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteConflictError: ...
    """


class RemoteTooLargeError(RemoteError):
    """The request, or its answer, is larger than the server allows (413).

    Example:
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Limits, Settings
        >>> settings = Settings(Catalogue.of_ids(["CartPole-v1"]), limits=Limits(body=20))
        >>> with Server(settings, port=0) as server:
        ...     RemoteVecEnv(server.url, "CartPole-v1", 2)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteTooLargeError: ...
    """


class RemoteRequestError(RemoteError):
    """The server does not understand the request (400, 415, 422).

    Example:
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> settings = Settings(Catalogue.of_ids(["CartPole-v1", "Pendulum-v1"]))
        >>> with Server(settings, port=0) as server:
        ...     RemoteVecEnv(server.url, None, 2)  # which of the two?
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteRequestError: ...
    """


class RemoteLimitError(RemoteError):
    """The server allows no more sessions, environments or waiting requests at present (429).

    Example:
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Limits, Settings
        >>> settings = Settings(Catalogue.of_ids(["CartPole-v1"]), limits=Limits(environments=4))
        >>> with Server(settings, port=0) as server:
        ...     RemoteVecEnv(server.url, "CartPole-v1", 5)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteLimitError: ...
    """


class RemoteVersionError(RemoteError):
    """The server speaks another version of the protocol, or is no server of environments.

    Example:
        >>> from xuance_envs.remote.server import Server
        >>> from xuance_envs.remote.settings import Catalogue, Settings
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     RemoteVecEnv(f"{server.url}/elsewhere", "CartPole-v1", 2)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteVersionError: ...
    """


class RemoteUnreachableError(RemoteError):
    """The server cannot be reached, or does not answer in time.

    Whether it has done what was asked for is then not known.

    Example:
        >>> RemoteVecEnv("http://127.0.0.1:9", "CartPole-v1", 2, timeout=1.0)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteUnreachableError: ...
    """
