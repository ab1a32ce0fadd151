"""Errors over HTTP: refusals that the server sends, and exceptions that the client raises.

The server refuses a request with ``{"error": {"code": ..., "message": ..., "details": {...}}}`` and
an HTTP status of 4xx. It never sends exception objects.
"""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from xuance_envs import errors
from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.values import from_wire, to_wire

# Client exception for each status; some error codes select a more specific exception.
STATUSES: dict[int, type[errors.RemoteError]] = {
    **dict.fromkeys((400, 408, 415, 422), errors.RemoteRequestError),
    401: errors.RemoteAuthenticationError,
    403: errors.RemoteForbiddenError,
    404: errors.RemoteNotFoundError,
    409: errors.RemoteConflictError,
    413: errors.RemoteTooLargeError,
    429: errors.RemoteLimitError,
    **dict.fromkeys((502, 503, 504), errors.RemoteUnreachableError),
}

# Error messages of the client for replies without a message.
DEFAULT_MESSAGES = {
    413: "the request is too large for the server or for a proxy in front of it",
    502: "a proxy cannot reach the server: check that the server is running",
    503: "the server, or a proxy in front of it, is overloaded or unavailable: try again later",
    504: "a proxy received no reply from the server in time",
}
# Commands whose failures are attributed to the client, not to the environment.
_CLIENT_COMMANDS = ("call", "get_attr", "set_attr")


class RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.details = details

    def message(self) -> dict[str, Any]:
        details = {"details": self.details} if self.details else {}
        return {"error": {"code": self.code, "message": str(self), **details}}


def no_session(idle: float | None = None) -> RefusedError:
    """Return the refusal for an unknown session, or for another owner's session."""
    after = "" if idle is None else f" after {idle:g} s without a request"
    text = f"no such session: it may have been closed or have expired{after}"
    return RefusedError(404, "session", text)


def no_state(number: int) -> RefusedError:
    reason = "it may have been dropped, or the worker process that kept it may have ended"
    return RefusedError(404, "states", f"this session has no state {number}: {reason}")


def envs_closed() -> RefusedError:
    return RefusedError(409, "closed", "these environments have failed and are closed")


def body_too_large(limit: int) -> RefusedError:
    return RefusedError(413, "body", f"expected a request of at most {limit} bytes")


class EnvsFailedError(RefusedError):
    def __init__(self, code: str, message: str, **details: Any) -> None:
        self.id = secrets.token_hex(4)
        super().__init__(409, code, message, error_id=self.id, **details)
        self.is_env_failure = details.get("command") not in _CLIENT_COMMANDS


def refusal_of(error: Exception, tracebacks: bool = True) -> RefusedError | None:
    """Convert an exception to a refusal; return None for the server's own errors."""
    if isinstance(error, RefusedError):
        return error
    text = str(error)
    for code, (kind, names) in _FAILURES.items():
        if isinstance(error, kind):
            return _failure_refusal(code, error, {n: getattr(error, n) for n in names}, tracebacks)
    if isinstance(error, errors.ClosedVecEnvError):
        return envs_closed()
    if isinstance(error, WireError | BadValueError):
        return RefusedError(422, "invalid", text)
    for code, builtin in _BUILTINS.items():
        if isinstance(error, builtin):
            return RefusedError(422 if builtin is ValueError else 409, code, text)
    return None


def _failure_refusal(
    code: str, error: Exception, details: dict[str, Any], tracebacks: bool
) -> RefusedError:
    text = str(error)
    if isinstance(error, errors.StateError):
        for name in details.keys() & {"saved", "here"}:
            try:
                details[name] = to_wire(details[name])
            except WireError:
                details[name] = to_wire(repr(details[name]))
        return RefusedError(409, code, text, **details)
    secret = "details"
    if isinstance(error, errors.EnvError):
        secret, details["cause"] = "env_traceback", _cause_of(error)
        text = f"environment {error.env_index} failed in {error.command!r}: {error.reason}"
    elif not tracebacks:
        text = text.partition("\n")[0]
    failed = EnvsFailedError(code, text, **details)
    if details[secret] and not tracebacks:
        failed.details[secret] = f"see the server's log, error {failed.id}"
    return failed


def error_of(status: int, message: Any, server: str) -> Exception:
    """Return the client exception for a reply with status 4xx or 5xx."""
    error = message.get("error") if isinstance(message, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        text = DEFAULT_MESSAGES.get(status, "the server refused the request without a reason")
        error = {"message": text}
    code, text = error.get("code"), error["message"]
    if isinstance(code, str) and code in _BUILTINS:
        return _BUILTINS[code](text)
    if isinstance(code, str) and code in _FAILURES:
        with suppress(KeyError, TypeError, ValueError):  # details from a different kind of server
            return _failure_of(code, error["details"])
    return STATUSES.get(status, errors.RemoteError)(text, server, status)


def _failure_of(code: str, details: dict[str, Any]) -> Exception:
    kind, names = _FAILURES[code]
    error = kind(**{name: _DECODERS[name](details[name]) for name in names})
    with suppress(KeyError, TypeError, ValueError):  # no builtin exception, or unknown arguments
        cause, args = details["cause"]
        error.__cause__ = _CAUSES[cause](*from_wire(args))
    return error


def _cause_of(error: errors.EnvError) -> list[Any] | None:
    """Return the name and the arguments of the cause if it is a builtin exception."""
    cause = error.__cause__
    if cause is not None and _CAUSES.get(type(cause).__name__) is type(cause):
        with suppress(WireError):
            return [type(cause).__name__, to_wire(list(cause.args))]
    return None


# Errors of environments and workers, and their fields, by error code. Derived classes come first.
_ENV_FIELDS = ("env_index", "command", "reason")
_WORKER_FIELDS = ("env_indices", "pid", "command", "details")
_FAILURES: dict[str, tuple[type[errors.VecEnvError], tuple[str, ...]]] = {
    "state_mismatch": (errors.StateMismatchError, (*_ENV_FIELDS, "what", "saved", "here")),
    "state": (errors.StateError, _ENV_FIELDS),
    "env_failed": (errors.EnvError, (*_ENV_FIELDS, "env_traceback")),
    "worker_died": (errors.WorkerDiedError, (*_WORKER_FIELDS, "exitcode")),
    "worker_timeout": (errors.WorkerTimeoutError, (*_WORKER_FIELDS, "timeout")),
}
_DECODERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("command", "details", "env_traceback", "reason", "what"), str),
    **dict.fromkeys(("saved", "here"), from_wire),
    "env_index": int,
    "env_indices": lambda envs: list(map(int, envs)),
    "exitcode": lambda exitcode: None if exitcode is None else int(exitcode),
    "pid": lambda pid: pid,
    "timeout": float,
}

# Errors about arguments keep their class. Derived classes come first.
_BUILTINS: dict[str, type[Exception]] = {
    "not_reset": errors.NotResetError,
    "no_attribute": AttributeError,
    "value": ValueError,
    "type": TypeError,
    "runtime": RuntimeError,
    "memory": MemoryError,
}

# Exceptions that a client may reconstruct; no other class is looked up by name.
_CAUSES: dict[str, type[BaseException]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception | SystemExit)
}
