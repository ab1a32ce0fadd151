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
# Commands whose failures count as the client's, not as the environment's.
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
    """Return the refusal for an unknown session, or for a session of a different token."""
    after = "" if idle is None else f" after {idle:g} s without a request"
    text = f"no such session: it may have been closed or have expired{after}"
    return RefusedError(404, "session", text)


def no_state(number: int) -> RefusedError:
    reason = "it may have been dropped, or have ended with the worker process that kept it"
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

    def or_log_reference(self, text: str, tracebacks: bool) -> str:
        """Return the text if tracebacks may be sent, or else a reference to the server's log."""
        return text if tracebacks or not text else f"see the server's log, error {self.id}"


def refusal_of(error: Exception, tracebacks: bool = True) -> RefusedError | None:
    """Convert an exception to a refusal; return None for the server's own errors."""
    if isinstance(error, RefusedError):
        return error

    def fields(*names: str) -> dict[str, Any]:
        return {name: getattr(error, name) for name in names}

    text = str(error)
    if isinstance(error, errors.StateMismatchError):
        values = {name: _to_wire_or_repr(value) for name, value in fields("saved", "here").items()}
        details = fields("env_index", "command", "reason", "what")
        return RefusedError(409, "state_mismatch", text, **details, **values)
    if isinstance(error, errors.StateError):
        return RefusedError(409, "state", text, **fields("env_index", "command", "reason"))
    if isinstance(error, errors.EnvError):
        text = f"environment {error.env_index} failed in {error.command!r}: {error.reason}"
        details = fields("env_index", "command", "reason")
        failed = EnvsFailedError("env_failed", text, **details, cause=_cause_of(error))
        failed.details["env_traceback"] = failed.or_log_reference(error.env_traceback, tracebacks)
        return failed
    if isinstance(error, errors.WorkerDiedError | errors.WorkerTimeoutError):
        died = isinstance(error, errors.WorkerDiedError)
        code, value = ("worker_died", "exitcode") if died else ("worker_timeout", "timeout")
        text = text if tracebacks else text.partition("\n")[0]
        failed = EnvsFailedError(
            code, text, **fields(value, "pid", "command"), env_indices=list(error.env_indices)
        )
        failed.details["details"] = failed.or_log_reference(error.details, tracebacks)
        return failed
    if isinstance(error, errors.ClosedVecEnvError):
        return envs_closed()
    if isinstance(error, WireError | BadValueError):
        return RefusedError(422, "invalid", text)
    for kind, (code, _) in _BUILTINS.items():
        if isinstance(error, kind):
            return RefusedError(422 if kind is ValueError else 409, code, text)
    return None


def error_of(status: int, message: Any, server: str) -> Exception:
    """Return the client exception for a reply with status 4xx or 5xx."""
    error = message.get("error") if isinstance(message, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        text = DEFAULT_MESSAGES.get(status, "the server refused the request without a reason")
        error = {"message": text}
    code, text, details = error.get("code"), error["message"], error.get("details")
    build = _ERROR_BUILDERS.get(code) if isinstance(code, str) else None
    if build is not None:
        try:
            return build(text, details if isinstance(details, dict) else {})
        except (KeyError, TypeError, ValueError):
            pass  # details from a different kind of server
    return STATUSES.get(status, errors.RemoteError)(text, server, status)


def _env_error(text: str, details: dict[str, Any]) -> errors.VecEnvError:
    texts = [str(details[name]) for name in ("command", "reason", "env_traceback")]
    error = errors.EnvError(int(details["env_index"]), *texts)
    with suppress(KeyError, TypeError, ValueError):  # no builtin exception, or unknown arguments
        name, args = details["cause"]
        error.__cause__ = _CAUSES[name](*from_wire(args))
    return error


def _cause_of(error: errors.EnvError) -> list[Any] | None:
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


def _state_error(text: str, details: dict[str, Any]) -> errors.StateError:
    common = int(details["env_index"]), str(details["command"]), str(details["reason"])
    if "what" not in details:
        return errors.StateError(*common)
    values = from_wire(details["saved"]), from_wire(details["here"])
    return errors.StateMismatchError(*common, "", str(details["what"]), *values)


def _worker_error(text: str, details: dict[str, Any]) -> errors.VecEnvError:
    envs, pid = [int(env) for env in details["env_indices"]], details["pid"]
    texts = str(details["command"]), str(details["details"])
    if "timeout" in details:
        return errors.WorkerTimeoutError(envs, pid, float(details["timeout"]), *texts)
    exitcode = details["exitcode"]
    return errors.WorkerDiedError(envs, pid, None if exitcode is None else int(exitcode), *texts)


# Errors about arguments keep their class. Derived classes come first.
_BUILTINS: dict[type[Exception], tuple[str, Callable[[str], Exception]]] = {
    errors.NotResetError: ("not_reset", errors.NotResetError),
    AttributeError: ("no_attribute", AttributeError),
    ValueError: ("value", ValueError),
    TypeError: ("type", TypeError),
    RuntimeError: ("runtime", RuntimeError),
    MemoryError: ("memory", MemoryError),
}

# Exceptions that a client may reconstruct; no other class is looked up by name.
_CAUSES: dict[str, type[BaseException]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception | SystemExit)
}

_ERROR_BUILDERS: dict[str, Callable[[str, dict[str, Any]], Exception]] = {
    "env_failed": _env_error,
    **dict.fromkeys(("state", "state_mismatch"), _state_error),
    **dict.fromkeys(("worker_died", "worker_timeout"), _worker_error),
    **{
        code: lambda text, details, kind=kind: kind(text)  # type: ignore[misc]
        for code, kind in _BUILTINS.values()
    },
}
