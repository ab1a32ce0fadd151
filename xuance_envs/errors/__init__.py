"""Exceptions of this package, in one tree.

::

    VecEnvError
    ├── AlreadySteppingError   another operation was called while a step was pending
    ├── NotResetError          environments were stepped before their first ``reset``
    ├── NotSteppingError       ``step_wait`` or ``recv`` was called while nothing was pending
    ├── ClosedVecEnvError      the vectorized environment is closed
    ├── WrongProcessError      an operation other than ``close`` was called in a forked process
    ├── EnvError               an environment raised, or returned an invalid value
    │   └── StateError         a state cannot be saved or read
    │       └── StateMismatchError   the state belongs to a different environment
    ├── WorkerDiedError        a worker ended unexpectedly
    ├── WorkerTimeoutError     a worker did not answer in time
    └── RemoteError            a server refused a request or is unreachable
        ├── RemoteAuthenticationError   missing or wrong token (401)
        ├── RemoteForbiddenError        not allowed by the server's operator (403)
        ├── RemoteNotFoundError         unknown session, environment or saved state (404)
        ├── RemoteConflictError         state of session or environment forbids the request (409)
        ├── RemoteTooLargeError         request or response too large (413)
        ├── RemoteRequestError          invalid or slow request (400, 408, 415, 422)
        ├── RemoteLimitError            a limit of the server is reached (429)
        ├── RemoteVersionError          different protocol version
        └── RemoteUnreachableError      no answer in time (also 502, 503, 504)

All of them can be pickled. Invalid arguments raise :class:`ValueError` or
:class:`TypeError` instead, and leave the vectorized environment usable.
"""

from __future__ import annotations

from xuance_envs.errors._base import AlreadySteppingError as AlreadySteppingError
from xuance_envs.errors._base import ClosedVecEnvError as ClosedVecEnvError
from xuance_envs.errors._base import EnvError as EnvError
from xuance_envs.errors._base import NotResetError as NotResetError
from xuance_envs.errors._base import NotSteppingError as NotSteppingError
from xuance_envs.errors._base import StateError as StateError
from xuance_envs.errors._base import StateMismatchError as StateMismatchError
from xuance_envs.errors._base import VecEnvError as VecEnvError
from xuance_envs.errors._base import WrongProcessError as WrongProcessError
from xuance_envs.errors._base import caller_stacklevel as caller_stacklevel
from xuance_envs.errors._base import invalid_reward as invalid_reward
from xuance_envs.errors._remote import RemoteAuthenticationError as RemoteAuthenticationError
from xuance_envs.errors._remote import RemoteConflictError as RemoteConflictError
from xuance_envs.errors._remote import RemoteError as RemoteError
from xuance_envs.errors._remote import RemoteForbiddenError as RemoteForbiddenError
from xuance_envs.errors._remote import RemoteLimitError as RemoteLimitError
from xuance_envs.errors._remote import RemoteNotFoundError as RemoteNotFoundError
from xuance_envs.errors._remote import RemoteRequestError as RemoteRequestError
from xuance_envs.errors._remote import RemoteTooLargeError as RemoteTooLargeError
from xuance_envs.errors._remote import RemoteUnreachableError as RemoteUnreachableError
from xuance_envs.errors._remote import RemoteVersionError as RemoteVersionError
from xuance_envs.errors._workers import WorkerDiedError as WorkerDiedError
from xuance_envs.errors._workers import WorkerTimeoutError as WorkerTimeoutError
from xuance_envs.errors._workers import counted as counted
from xuance_envs.errors._workers import name_envs as name_envs

__all__ = [name for name, value in list(globals().items()) if isinstance(value, type)]

# Show the public import path in tracebacks and pickles.
for _name in __all__:
    globals()[_name].__module__ = __name__
