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

from xuance_envs.engine.data.space_layout import BadValueError
from xuance_envs.errors import (
    ClosedVecEnvError,
    EnvError,
    NotResetError,
    RemoteAuthenticationError,
    RemoteConflictError,
    RemoteError,
    RemoteForbiddenError,
    RemoteLimitError,
    RemoteNotFoundError,
    RemoteRequestError,
    RemoteTooLargeError,
    RemoteUnreachableError,
    StateError,
    StateMismatchError,
    VecEnvError,
    WorkerDiedError,
    WorkerTimeoutError,
)
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.values import from_wire, to_wire

STATUSES: dict[int, type[RemoteError]] = {
    400: RemoteRequestError,
    401: RemoteAuthenticationError,
    403: RemoteForbiddenError,
    404: RemoteNotFoundError,
    408: RemoteRequestError,
    409: RemoteConflictError,
    413: RemoteTooLargeError,
    415: RemoteRequestError,
    422: RemoteRequestError,
    429: RemoteLimitError,
    502: RemoteUnreachableError,
    503: RemoteUnreachableError,
    504: RemoteUnreachableError,
}
"""Client exception for each status; some error codes select a more specific exception."""


DEFAULT_MESSAGES = {
    413: "the request is too large for the server or for a proxy in front of it",
    502: "a proxy cannot reach the server: check that the server is running",
    503: "a proxy reports that the server is unavailable: try again later",
    504: "a proxy received no reply from the server in time",
}
"""Error messages of the client for replies without a message."""

_CLIENT_COMMANDS = ("call", "get_attr", "set_attr")
"""Commands whose failures count as the client's, not as the environment's."""


class RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.details = details

    def message(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": str(self)}
        if self.details:
            error["details"] = self.details
        return {"error": error}


def no_session(idle: float | None = None) -> RefusedError:
    """Return the refusal for an unknown session, or for a session of a different token."""
    after = "" if idle is None else f" after {idle:g} s without a request"
    return RefusedError(
        404, "session", f"no such session: it may have been closed or have expired{after}"
    )


class EnvsFailedError(RefusedError):
    def __init__(self, code: str, message: str, **details: Any) -> None:
        self.id = secrets.token_hex(4)
        super().__init__(409, code, message, error_id=self.id, **details)
        self.is_env_failure = details.get("command") not in _CLIENT_COMMANDS

    def or_log_reference(self, text: str, tracebacks: bool) -> str:
        """Return the text if tracebacks may be sent, or else a reference to the server's log."""
        return text if tracebacks or not text else f"see the server's log, error {self.id}"


def refusal_of(error: Exception, tracebacks: bool = True) -> RefusedError | None:
    """Convert an exception to a refusal; return None for the server's own errors."""
    if isinstance(error, RefusedError):
        return error
    details: dict[str, Any] = {}
    if isinstance(error, StateError):
        for name in ("env_index", "command", "reason"):
            details[name] = getattr(error, name)
        if isinstance(error, StateMismatchError):
            details["what"] = error.what
            details |= {
                "saved": _to_wire_or_repr(error.saved),
                "here": _to_wire_or_repr(error.here),
            }
            return RefusedError(409, "state_mismatch", str(error), **details)
        return RefusedError(409, "state", str(error), **details)
    if isinstance(error, EnvError):
        for name in ("env_index", "command", "reason"):
            details[name] = getattr(error, name)
        details["cause"] = _cause_of(error)
        text = f"environment {error.env_index} failed in {error.command!r}: {error.reason}"
        failed = EnvsFailedError("env_failed", text, **details)
        failed.details["env_traceback"] = failed.or_log_reference(error.env_traceback, tracebacks)
        return failed
    if isinstance(error, WorkerDiedError | WorkerTimeoutError):
        for name in ("pid", "command"):
            details[name] = getattr(error, name)
        details["env_indices"] = list(error.env_indices)
        text = str(error) if tracebacks else str(error).partition("\n")[0]
        if isinstance(error, WorkerDiedError):
            failed = EnvsFailedError("worker_died", text, exitcode=error.exitcode, **details)
        else:
            failed = EnvsFailedError("worker_timeout", text, timeout=error.timeout, **details)
        failed.details["details"] = failed.or_log_reference(error.details, tracebacks)
        return failed
    if isinstance(error, ClosedVecEnvError):
        return RefusedError(409, "closed", "these environments have failed and are closed")
    if isinstance(error, WireError | BadValueError):
        return RefusedError(422, "invalid", str(error))
    for kind, (code, _) in _BUILTINS.items():
        if isinstance(error, kind):
            return RefusedError(422 if kind is ValueError else 409, code, str(error))
    return None


def error_of(status: int, message: Any, server: str) -> Exception:
    """Return the client exception for a reply with status 4xx or 5xx."""
    error = message.get("error") if isinstance(message, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        text = DEFAULT_MESSAGES.get(status, "the server refused the request without a reason")
        error = {"code": "", "message": text}
    code, text, details = error.get("code"), error["message"], error.get("details")
    build = _ERROR_BUILDERS.get(code) if isinstance(code, str) else None
    if build is not None:
        try:
            return build(text, details if isinstance(details, dict) else {})
        except (KeyError, TypeError, ValueError):
            pass  # details from a different kind of server
    return STATUSES.get(status, RemoteError)(text, server, status)


def _env_error(text: str, details: dict[str, Any]) -> VecEnvError:
    error = EnvError(
        int(details["env_index"]),
        str(details["command"]),
        str(details["reason"]),
        str(details["env_traceback"]),
    )
    with suppress(KeyError, TypeError, ValueError):  # no builtin exception, or unknown arguments
        name, args = details["cause"]
        error.__cause__ = _CAUSES[name](*from_wire(args))
    return error


def _cause_of(error: EnvError) -> list[Any] | None:
    """Return the name and the arguments of the cause if it is a builtin exception."""
    cause = error.__cause__
    if cause is None or _CAUSES.get(type(cause).__name__) is not type(cause):
        return None
    with suppress(WireError):
        return [type(cause).__name__, to_wire(list(cause.args))]
    return None


def _to_wire_or_repr(value: Any) -> Any:
    try:
        return to_wire(value)
    except WireError:
        return to_wire(repr(value))


def _state_error(text: str, details: dict[str, Any]) -> StateError:
    common = int(details["env_index"]), str(details["command"]), str(details["reason"])
    if "what" not in details:
        return StateError(*common)
    values = from_wire(details["saved"]), from_wire(details["here"])
    return StateMismatchError(*common, "", str(details["what"]), *values)


def _died_error(text: str, details: dict[str, Any]) -> VecEnvError:
    exitcode = details["exitcode"]
    return WorkerDiedError(
        [int(env) for env in details["env_indices"]],
        details["pid"],
        None if exitcode is None else int(exitcode),
        str(details["command"]),
        str(details["details"]),
    )


def _timeout_error(text: str, details: dict[str, Any]) -> VecEnvError:
    return WorkerTimeoutError(
        [int(env) for env in details["env_indices"]],
        details["pid"],
        float(details["timeout"]),
        str(details["command"]),
        str(details["details"]),
    )


# Errors about arguments keep their class. Derived classes come first.
_BUILTINS: dict[type[Exception], tuple[str, Callable[[str], Exception]]] = {
    NotResetError: ("not_reset", NotResetError),
    AttributeError: ("no_attribute", AttributeError),
    ValueError: ("value", ValueError),
    TypeError: ("type", TypeError),
    RuntimeError: ("runtime", RuntimeError),
    MemoryError: ("memory", MemoryError),
}

_CAUSES: dict[str, type[BaseException]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception | SystemExit)
}
"""Exceptions that a client may reconstruct; no other class is looked up by name."""

_ERROR_BUILDERS: dict[str, Callable[[str, dict[str, Any]], Exception]] = {
    "env_failed": _env_error,
    "state": _state_error,
    "state_mismatch": _state_error,
    "worker_died": _died_error,
    "worker_timeout": _timeout_error,
    **{
        code: lambda text, details, kind=kind: kind(text)  # type: ignore[misc]
        for code, kind in _BUILTINS.values()
    },
}
