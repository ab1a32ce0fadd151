"""Errors of environment servers and of connections to them."""

from __future__ import annotations

from xuance_envs.errors._base import VecEnvError


class RemoteError(VecEnvError):
    """An environment server refused a request, failed to execute it, or is unreachable.

    Attributes:
        message (str): the problem and its remedy.
        server (str): the server's address.
        status (int | None): HTTP status of the response; None if there was none.
        is_refusal (bool): True for the statuses 403 and 429. The server did not execute the
            request, unless it ended the session for using too much CPU time or memory. If
            ``__cause__`` is set, it is the error of an earlier attempt, and the server may have
            executed that attempt.

    Example:
        >>> try:
        ...     RemoteVecEnv("http://127.0.0.1:9", "CartPole-v1", 2, timeout=1.0)
        ... except RemoteError as error:
        ...     print(type(error).__name__, error.server, error.status)
        RemoteUnreachableError http://127.0.0.1:9 None
    """

    is_refusal = False

    def __init__(self, message: str, server: str, status: int | None = None) -> None:
        super().__init__(message, server, status)
        self.message = message
        self.server = server
        self.status = status

    def __str__(self) -> str:
        answered = "" if self.status is None else f" (HTTP {self.status})"
        return f"{self.server}: {self.message}{answered}"


class RemoteAuthenticationError(RemoteError):
    """The token that the server requires is missing or wrong (401).

    Example:
        >>> settings = Settings(Catalogue.of_ids(["CartPole-v1"]), Tokens(["secret"]))
        >>> with Server(settings, port=0) as server:
        ...     RemoteVecEnv(server.url, "CartPole-v1", 2, user_token="guessed")
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteAuthenticationError: ...
    """


class RemoteForbiddenError(RemoteError):
    """The server's operator has not allowed this operation (403).

    Example:
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     RemoteVecEnv(server.url, "CartPole-v1", 2, env_kwargs={"sutton": True})
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteForbiddenError: ...
    """

    is_refusal = True


class RemoteNotFoundError(RemoteError):
    """The server has no such session, environment or saved state for this token (404).

    A session expires after a period without requests.

    Example:
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     RemoteVecEnv(server.url, "Pong", 2)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteNotFoundError: ...
    """


class RemoteConflictError(RemoteError):
    """The state of the session or environment does not allow this operation (409).

    Example:
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     env = create_student_gym_env_vectorized(1, 1, None, base_url=server.url)
        ...     env.step([0])  # before the first reset
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteConflictError: ...
    """


class RemoteTooLargeError(RemoteError):
    """The request or its response exceeds the server's size limit (413).

    Example:
        >>> settings = Settings(Catalogue.of_ids(["CartPole-v1"]), limits=Limits(body=20))
        >>> with Server(settings, port=0) as server:
        ...     RemoteVecEnv(server.url, "CartPole-v1", 2)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteTooLargeError: ...
    """


class RemoteRequestError(RemoteError):
    """The request was invalid (400, 415, 422) or arrived too slowly (408).

    Example:
        >>> settings = Settings(Catalogue.of_ids(["CartPole-v1", "Pendulum-v1"]))
        >>> with Server(settings, port=0) as server:
        ...     RemoteVecEnv(server.url, None, 2)  # which of the two?
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteRequestError: ...
    """


class RemoteLimitError(RemoteError):
    """A limit of the server, such as on sessions or queued requests, is reached (429).

    Example:
        >>> settings = Settings(Catalogue.of_ids(["CartPole-v1"]), limits=Limits(environments=4))
        >>> with Server(settings, port=0) as server:
        ...     RemoteVecEnv(server.url, "CartPole-v1", 5)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteLimitError: ...
    """

    is_refusal = True


class RemoteVersionError(RemoteError):
    """The server uses a different protocol version, or is not an environment server.

    Example:
        >>> with Server(Settings(Catalogue.of_ids(["CartPole-v1"])), port=0) as server:
        ...     RemoteVecEnv(f"{server.url}/elsewhere", "CartPole-v1", 2)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteVersionError: ...
    """


class RemoteUnreachableError(RemoteError):
    """No answer in time, or status 502, 503 or 504; the server may have executed the request.

    Example:
        >>> RemoteVecEnv("http://127.0.0.1:9", "CartPole-v1", 2, timeout=1.0)
        Traceback (most recent call last):
            ...
        xuance_envs.errors.RemoteUnreachableError: ...
    """
