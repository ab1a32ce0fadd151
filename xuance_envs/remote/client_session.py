"""Client side of a session: requests to a server, retries, and repeated requests."""

from __future__ import annotations

import base64
import logging
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, TypeVar

import numpy as np

from xuance_envs.engine.system.forks import WrongProcessProxy, close_after_fork
from xuance_envs.errors import (
    RemoteAuthenticationError,
    RemoteError,
    RemoteUnreachableError,
    RemoteVersionError,
)
from xuance_envs.extras import missing_extra
from xuance_envs.remote.failures import error_of
from xuance_envs.remote.server_states import RemoteStates
from xuance_envs.remote.wire.constants import API_PREFIX, MAX_SEED, PROTOCOL_VERSION
from xuance_envs.remote.wire.formats import WireFormat, dumps, loads
from xuance_envs.remote.wire.nodes import WireError, shortened
from xuance_envs.remote.wire.values import from_wire

try:
    import httpx
    import msgpack  # noqa: F401  # imported here for the error message below

    from xuance_envs.remote.transport import (
        InvalidResponseError,
        Response,
        Verify,
        make_transport,
        redacted,
    )
except ImportError as error:
    raise missing_extra("the HTTP client", "remote", error) from error

logger = logging.getLogger("xuance_envs.client")

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0  # seconds
CLOSE_TIMEOUTS = (6.0, 2.0)
"""Seconds per attempt to close a session; the server kills a busy worker after five seconds."""

RETRIES = 2
RETRY_PAUSE = 0.2  # seconds before the first retry; doubles with each retry

RETRY_STATUSES = (502, 503, 504)
"""Statuses worth a retry: a proxy cannot reach the server, or the server is overloaded."""

_WIRE_FORMATS = {wire_format.value: wire_format for wire_format in WireFormat}


class ApiClient:
    def __init__(
        self,
        base_url: str,
        token: str | None,
        timeout: float,
        verify: Verify = True,
        log_level: int = logging.DEBUG,
    ) -> None:
        url = _parse_url(base_url)
        self.server = str(url.copy_with(userinfo=b"")).rstrip("/")
        # Compression costs more time than it saves.
        headers = {"Content-Type": WireFormat.MSGPACK.value, "Accept-Encoding": "identity"}
        if token is not None:
            if not token or not token.isascii() or not token.isprintable() or " " in token:
                raise ValueError("token: expected visible ASCII characters without spaces")
            if url.userinfo:
                raise ValueError(
                    "base_url: an address with a user and password cannot be combined with a token"
                )
            headers["Authorization"] = f"Bearer {token}"
        elif url.userinfo:
            credentials = f"{url.username}:{url.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
        self._timeout = timeout
        self._log_level = log_level
        # Bypasses httpx's redirects, cookies and logging, which double the time of a step.
        self._transport = make_transport(url.copy_with(userinfo=b""), headers, verify)

    def check_version(self) -> str:
        """Raise unless the server uses this protocol version; return the server's version."""
        try:
            answer = self.request("GET", f"{API_PREFIX}/version", repeatable=True)
        except (RemoteAuthenticationError, RemoteUnreachableError):
            raise
        except (RemoteError, WireError) as error:
            raise RemoteVersionError(f"not an xuance_envs server: {error}", self.server) from error
        if not isinstance(answer, dict) or answer.get("name") != "xuance_envs":
            raise RemoteVersionError("not an xuance_envs server", self.server)
        if answer.get("protocol") != PROTOCOL_VERSION:
            raise RemoteVersionError(
                f"the server (xuance_envs {answer.get('version')}) uses protocol version "
                f"{answer.get('protocol')}, this client uses version {PROTOCOL_VERSION}: "
                "install the same version of xuance_envs on both sides",
                self.server,
            )
        return str(answer.get("version"))

    def request(
        self,
        method: str,
        path: str,
        message: Mapping[str, Any] | bytes | None = None,
        *,
        repeatable: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Send a request and return the decoded reply."""
        content = dumps(message, WireFormat.MSGPACK) if isinstance(message, Mapping) else message
        start = monotonic()
        status, headers, body = self._send_with_retries(method, path, content, repeatable, timeout)
        if logger.isEnabledFor(self._log_level):
            milliseconds = (monotonic() - start) * 1e3
            fields = method, self.server, path, status, milliseconds
            logger.log(self._log_level, "%s %s%s %d %.1f ms", *fields)
        content_type = headers.get("content-type", "").partition(";")[0]
        wire_format = _WIRE_FORMATS.get(content_type)
        if wire_format is None and status < 300:
            got = shortened(content_type) if content_type else "no content type"
            raise RemoteError(f"expected a reply in msgpack, got {got}", self.server, status)
        try:
            answer = None if wire_format is None else loads(body, wire_format)
        except WireError as error:
            if status < 300:
                raise RemoteError(
                    f"the reply is not valid msgpack: {error}", self.server, status
                ) from None
            answer = None
        if 300 <= status < 400:
            location = redacted(headers.get("location", "another address"))[:200]
            raise RemoteError(
                f"the server redirects to {location}: use that as base_url", self.server, status
            )
        if status >= 300:
            raise error_of(status, answer, self.server)
        return answer

    def _send_with_retries(
        self, method: str, path: str, content: bytes | None, repeatable: bool, timeout: float | None
    ) -> Response:
        timeout = self._timeout if timeout is None else timeout
        deadline = monotonic() + timeout
        attempt = 0
        while True:
            pause = RETRY_PAUSE * 2**attempt
            retry = attempt < RETRIES and monotonic() + pause < deadline
            try:
                response = self._transport.exchange(
                    method, path, content, deadline, CONNECT_TIMEOUT
                )
                if not (retry and repeatable and response.status in RETRY_STATUSES):
                    return response
            except httpx.TimeoutException as error:
                raise RemoteUnreachableError(
                    f"no reply to {method} {path} within {timeout:g} s", self.server
                ) from error
            except InvalidResponseError as error:
                raise RemoteError(str(error), self.server) from error
            except httpx.TransportError as error:
                never_sent = isinstance(error, httpx.ConnectError)
                if not (retry and (repeatable or never_sent)):
                    reason = f"{type(error).__name__}: {error}{_hint(error, self.server)}"
                    raise RemoteUnreachableError(
                        f"cannot be reached{self._transport.route}: {reason}", self.server
                    ) from error
            sleep(pause)
            attempt += 1

    def close(self) -> None:
        self._transport.close()


@dataclass(frozen=True)
class _PendingRequest:
    """A request that the client may have sent, but whose reply has not arrived."""

    path: str
    sequence: int
    content: bytes
    parse: Callable[[Any], Any]


class RemoteSession:
    """A session on a server.

    ``close``, garbage collection or the process's exit closes it. In forked processes its requests
    raise.
    """

    def __init__(self, connection: ApiClient, share_frames: bool, name: str) -> None:
        self._connection: ApiClient | WrongProcessProxy = connection
        self.server = connection.server
        self._name = name
        self.states = RemoteStates()
        self._sequence = 0
        self._pending: _PendingRequest | None = None
        path = f"{API_PREFIX}/session/create"
        # If the request is repeated with the same nonce, the server returns the open session.
        message = {"share_frames": share_frames, "nonce": secrets.token_urlsafe(24)}
        try:
            answer = connection.request("POST", path, message, repeatable=True)
        except Exception:
            raise
        except BaseException:  # an interrupt: the session may have been opened
            with suppress(RemoteError, LookupError, TypeError):
                answer = connection.request(
                    "POST", path, message, repeatable=True, timeout=sum(CLOSE_TIMEOUTS)
                )
                _delete_session(connection, str(answer["session_id"]), os.getpid())
            raise
        with checked_reply(self.server):
            self._id = str(answer["session_id"])
            self.env_ids: list[str] = list(map(str, answer["env_ids"]))
        self._delete_session = weakref.finalize(
            self, _delete_session, connection, self._id, os.getpid()
        )
        close_after_fork(self)

    def close_in_child(self, owner: int) -> None:
        self._connection = WrongProcessProxy(self._name, owner)

    @property
    def pending_path(self) -> str | None:
        return None if self._pending is None else self._pending.path

    def request(self, path: str, message: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
        """Send a request that the server executes at most once.

        If an earlier request was interrupted, finish it first. If both are equal, return its reply.
        """
        if not self.is_pending(path, message):
            if self._pending is not None:
                self.finish_pending()
            content = self.next_request(message)
            self._pending = _PendingRequest(path, self._sequence, content, parse)
        parsed: T = self.finish_pending()
        return parsed

    def is_pending(self, path: str, message: Mapping[str, Any]) -> bool:
        pending = self._pending
        return (
            pending is not None
            and pending.path == path
            and pending.content == self._encoded(pending.sequence, message)
        )

    def finish_pending(self) -> Any:
        assert self._pending is not None
        try:
            answer = self.send(self._pending.path, self._pending.content)
            with checked_reply(self.server):
                parsed = self._pending.parse(answer)
        except RemoteUnreachableError:
            raise  # still pending: the server may have executed it
        except Exception:
            self._pending = None
            raise
        self._pending = None
        return parsed

    def next_request(self, message: Mapping[str, Any]) -> bytes:
        """Encode the session's next request with a sequence number, which makes it repeatable."""
        self._sequence += 1
        return self._encoded(self._sequence, message)

    def _encoded(self, sequence: int, message: Mapping[str, Any]) -> bytes:
        return dumps({"session_id": self._id, "sequence": sequence, **message}, WireFormat.MSGPACK)

    def send(self, path: str, next_request: bytes) -> Any:
        """Send a numbered request; for a repeated request, the server repeats its reply."""
        if released := self.states.released:
            self._drop_states(released)
        return self._connection.request(
            "POST", f"{API_PREFIX}/episode/{path}", next_request, repeatable=True
        )

    def _drop_states(self, states: Sequence[int]) -> None:
        """Delete states on the server; if the server refuses, the next request tries again."""
        message = {"session_id": self._id, "operation": "drop", "states": states}
        try:
            self._connection.request(
                "POST", f"{API_PREFIX}/episode/states", message, repeatable=True
            )
        except RemoteUnreachableError:
            raise
        except RemoteError:
            return
        self.states.dropped(states)

    def step_times(self) -> dict[str, Any]:
        message = {"session_id": self._id}
        path = f"{API_PREFIX}/episode/statistics"
        answer = self._connection.request("POST", path, message, repeatable=True)
        with checked_reply(self.server):
            return dict(from_wire(answer["times"]))

    def close(self) -> None:
        self._delete_session()


def checked_count(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: expected an int of at least 1, got {value!r}")
    return int(value)


def checked_seeds(seeds: Sequence[int | None]) -> list[int | None]:
    for seed in seeds:
        if seed is not None and seed >= MAX_SEED:
            raise ValueError(f"seed: expected ints below 2**64, got {seed}")
    return list(seeds)


@contextmanager
def checked_reply(server: str) -> Iterator[None]:
    """Convert errors from parsing a reply to RemoteError."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise RemoteError(f"the server's reply is malformed: {error}", server) from error


def _parse_url(base_url: str) -> httpx.URL:
    reason = ""
    try:
        url = httpx.URL(base_url.rstrip("/"))
        if url.scheme in ("http", "https") and url.host and (url.port or 1) < 1 << 16:
            return url
    except (httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: invalid host name
        reason = "" if "@" in base_url else f": {error}"  # the error could contain the password
    except (AttributeError, TypeError):
        raise ValueError(f"base_url: expected a string, got {base_url!r}") from None
    raise ValueError(
        "base_url: expected an address such as http://127.0.0.1:8001, got "
        f"{redacted(base_url)!r}{reason}"
    )


def _hint(error: httpx.TransportError, server: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "; for a private certificate authority, give verify='FILE' with its certificate"
    if isinstance(error, httpx.RemoteProtocolError) and server.startswith("http://"):
        return "; if the server uses TLS, its address begins with https://"
    return ""


def _delete_session(connection: ApiClient, session_id: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked process must not close its parent's session
        return
    try:
        for timeout in CLOSE_TIMEOUTS:
            with suppress(RemoteUnreachableError):  # otherwise the server closes the idle session
                path = f"{API_PREFIX}/session/{session_id}"
                connection.request("DELETE", path, repeatable=True, timeout=timeout)
                break
    except RemoteError:
        pass  # already closed, for example by a request whose reply was lost
    finally:
        connection.close()
