"""Everything that can go wrong, as one tree of exceptions.

::

    VecEnvError
    ├── AlreadySteppingError   a step is pending and something else was asked for
    ├── NotSteppingError       ``step_wait`` without ``step_async``
    ├── ClosedVecEnvError      anything but ``close`` after ``close``
    ├── WrongProcessError      anything but ``close`` in a process forked from the one it belongs to
    ├── EnvError               an environment raised, or returned what its spaces do not allow
    │   └── StateError         its state cannot be saved, or cannot be read
    │       └── StateMismatchError   the state is of an environment that is not like it
    ├── WorkerDiedError        the process around some environments ended by itself
    ├── WorkerTimeoutError     a process around some environments did not answer in time
    └── RemoteError            a server of environments refused, or could not be reached
        ├── RemoteAuthenticationError   the token is missing or wrong (401)
        ├── RemoteForbiddenError        its operator has not allowed that (403)
        ├── RemoteNotFoundError         it has no such session, episode or environment (404)
        ├── RemoteConflictError         not in the state the session or episode is in (409)
        ├── RemoteTooLargeError         the request is larger than it takes (413)
        ├── RemoteRequestError          it does not understand the request (400, 415, 422)
        ├── RemoteLimitError            no more environments, sessions or requests now (429)
        ├── RemoteVersionError          it speaks another version of the protocol
        └── RemoteUnreachableError      it does not answer

Every one of them survives :mod:`pickle`.
Wrong arguments are not in the tree: they are a :class:`ValueError` or a :class:`TypeError`,
as everywhere in Python, and the object stays usable.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

__all__ = [
    "AlreadySteppingError",
    "ClosedVecEnvError",
    "EnvError",
    "NotSteppingError",
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
    "StateError",
    "StateMismatchError",
    "VecEnvError",
    "WorkerDiedError",
    "WorkerTimeoutError",
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


class _WorkerError(VecEnvError):
    """What the two errors about a worker process share: who it was and what it was doing."""

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

    def _told(self, happened: str) -> str:
        pid = "" if self.pid is None else f" (pid {self.pid})"
        text = f"the worker process of {name_envs(self.env_indices)}{pid} {happened}"
        if self.env_index is not None and len(self.env_indices) > 1:
            text += f"; it was at environment {self.env_index}"
        if self.restarted:
            text += "; another one takes its place"
        return f"{text}\n{self.details}" if self.details else text


class WorkerDiedError(_WorkerError):
    """A worker process ended by itself: it was killed, crashed, or its environment exited.

    Attributes:
        env_indices (tuple[int, ...]): the environments that lived in it.
        pid (int | None): its process id.
        exitcode (int | None): as :attr:`multiprocessing.Process.exitcode` gives it: the exit
            status, or the negative number of the signal that ended it; None where it is not known.
        command (str): the last command it was given.
        details (str): further lines worth showing: the end of its standard error, where it crashed.
        env_index (int | None): the environment it was at, None where that is not known.
        restarted (bool): whether another process takes its place, and the vector environment
            goes on.

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
        return self._told(f"died during {self.command!r}: {self._ending()}")

    def _ending(self) -> str:
        if self.exitcode is None:
            return "its exit code is not known"
        if self.exitcode >= 0:
            return f"it exited with code {self.exitcode}"
        try:
            name = signal.Signals(-self.exitcode).name
        except ValueError:
            name = f"signal {-self.exitcode}"
        text = f"it was ended by {name}"
        if name == "SIGKILL":
            text += (
                " (the kernel does this when memory runs out: see the kernel's log, "
                "and try fewer environments or less memory in each)"
            )
        return text


class WorkerTimeoutError(_WorkerError):
    """A worker process did not answer within the time it was given.

    Attributes:
        env_indices (tuple[int, ...]): the environments that live in it.
        pid (int | None): its process id; None where it has not been started, or where none of
            several answered ``recv``.
        timeout (float): the time it was given, in seconds.
        command (str): the command it did not answer.
        details (str): further lines worth showing: where it was when it was ended.
        env_index (int | None): the environment it was at, None where that is not known.
        restarted (bool): whether another process takes its place, and the vector environment
            goes on.

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
            return f"none of {name_envs(self.env_indices)} answered within {self.timeout:g} s"
        return self._told(f"did not answer {self.command!r} within {self.timeout:g} s")


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


def name_envs(indices: Sequence[int]) -> str:
    """Names environments in words: ``environment 3``, ``environments 4 to 7``, ``… 1, 5``."""
    if len(indices) == 1:
        return f"environment {indices[0]}"
    if len(indices) > 2 and tuple(indices) == tuple(range(indices[0], indices[-1] + 1)):
        return f"environments {indices[0]} to {indices[-1]}"
    return "environments " + ", ".join(map(str, indices))
