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

from xuance_envs.errors._base import (
    AlreadySteppingError,
    ClosedVecEnvError,
    NotSteppingError,
    VecEnvError,
    WrongProcessError,
)
from xuance_envs.errors._environments import EnvError, StateError, StateMismatchError
from xuance_envs.errors._remote import (
    RemoteAuthenticationError,
    RemoteConflictError,
    RemoteError,
    RemoteForbiddenError,
    RemoteLimitError,
    RemoteNotFoundError,
    RemoteRequestError,
    RemoteTooLargeError,
    RemoteUnreachableError,
    RemoteVersionError,
)
from xuance_envs.errors._warnings import caller_stacklevel as caller_stacklevel
from xuance_envs.errors._workers import WorkerDiedError, WorkerTimeoutError
from xuance_envs.errors._workers import name_envs as name_envs

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

# Errors go by the names that they are imported by, also in tracebacks and pickles.
for _name in __all__:
    globals()[_name].__module__ = __name__
