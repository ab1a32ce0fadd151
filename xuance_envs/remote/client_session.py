"""The client's end: one connection to a server, and one session there."""

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

from xuance_envs.engine.forks import WrongProcessProxy, close_after_fork
from xuance_envs.errors import (
    RemoteAuthenticationError,
    RemoteError,
    RemoteUnreachableError,
    RemoteVersionError,
)
from xuance_envs.remote.failures import error_of
from xuance_envs.remote.server_states import RemoteStates
from xuance_envs.remote.wire.constants import API_PREFIX, MAX_SEED, PROTOCOL_VERSION
from xuance_envs.remote.wire.formats import WireFormat, dumps, loads
from xuance_envs.remote.wire.nodes import WireError, shortened
from xuance_envs.remote.wire.values import from_wire

try:
    import httpx
    import msgpack  # noqa: F401  # messages are written in it, but only here it is certain to be needed

    from xuance_envs.remote.transport import (
        InvalidResponseError,
        Response,
        Verify,
        make_transport,
        redacted,
    )
except ImportError as error:
    raise ImportError(
        f"a client of a server needs {error.name}, which is not installed: "
        'pip install "xuance_envs[remote]"'
    ) from error

__all__ = [
    "ApiClient",
    "RemoteSession",
    "Verify",
    "checked_count",
    "checked_reply",
    "checked_seeds",
]

logger = logging.getLogger("xuance_envs.client")

T = TypeVar("T")

CONNECT_TIMEOUT = 5.0
"""Seconds within which a connection has to be made."""

RETRIES = 2
"""How often a request that may be repeated is, where its answer was lost."""

RETRY_PAUSE = 0.2
"""Seconds before the first repetition."""

CLOSE_TIMEOUT = 8.0
"""Seconds that closing a session may take."""

RETRY_STATUSES = (502, 503, 504)
"""What a proxy answers for a server that is not there, or not yet; the server, when it is full."""

_WIRE_FORMATS = {form.value: form for form in WireFormat}


class ApiClient:
    """Requests to one server, over connections that are kept."""

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
        # An answer that is compressed on the way takes longer than one that is not.
        headers = {"Content-Type": WireFormat.MSGPACK.value, "Accept-Encoding": "identity"}
        if token is not None:
            if not token or not token.isascii() or not token.isprintable() or " " in token:
                raise ValueError("token: expected visible ASCII characters only")
            if url.userinfo:
                raise ValueError(
                    "base_url: expected an address without a user and password, because a token "
                    "is sent in their place"
                )
            headers["Authorization"] = f"Bearer {token}"
        elif url.userinfo:
            credentials = f"{url.username}:{url.password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
        self._timeout = timeout
        self._log_level = log_level
        # A step is one request of many: without redirects, cookies and a log it takes half as long.
        self._transport = make_transport(url.copy_with(userinfo=b""), headers, verify)

    def check_version(self) -> str:
        """Makes sure that the server speaks this protocol; its version."""
        try:
            answer = self.request("GET", f"{API_PREFIX}/version", repeatable=True)
        except (RemoteAuthenticationError, RemoteUnreachableError):
            raise
        except (RemoteError, WireError) as error:
            raise RemoteVersionError(
                f"this is no server of environments: {error}", self.server
            ) from error
        if not isinstance(answer, dict) or answer.get("name") != "xuance_envs":
            raise RemoteVersionError("this is no server of environments", self.server)
        if answer.get("protocol") != PROTOCOL_VERSION:
            raise RemoteVersionError(
                f"it has xuance_envs {answer.get('version')}, which speaks version "
                f"{answer.get('protocol')} of the protocol; this client speaks version {PROTOCOL_VERSION}: "
                "install the same version on both sides",
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
        """Sends a request and waits for its answer."""
        content = dumps(message, WireFormat.MSGPACK) if isinstance(message, Mapping) else message
        start = monotonic()
        status, headers, body = self._send_with_retries(method, path, content, repeatable, timeout)
        if logger.isEnabledFor(self._log_level):
            took = (monotonic() - start) * 1e3
            logger.log(
                self._log_level, "%s %s%s %d %.1f ms", method, self.server, path, status, took
            )
        kind = headers.get("content-type", "").partition(";")[0]
        form = _WIRE_FORMATS.get(kind)
        if form is None and status < 300:
            raise RemoteError(
                f"expected an answer in msgpack, got {shortened(kind) if kind else 'nothing'}",
                self.server,
                status,
            )
        try:
            answer = None if form is None else loads(body, form)
        except WireError as error:
            if status < 300:
                raise RemoteError(
                    f"expected an answer in msgpack: {error}", self.server, status
                ) from None
            answer = None
        if 300 <= status < 400:
            location = redacted(headers.get("location", "another address"))[:200]
            raise RemoteError(
                f"it sends clients to {location}: give that as the address", self.server, status
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
                    f"it did not answer {method} {path} within {timeout:g} s", self.server
                ) from error
            except InvalidResponseError as error:
                raise RemoteError(str(error), self.server) from error
            except httpx.TransportError as error:
                never_sent = isinstance(error, httpx.ConnectError)
                if not (retry and (repeatable or never_sent)):
                    why = f"{type(error).__name__}: {error}{_hint(error, self.server)}"
                    raise RemoteUnreachableError(
                        f"it cannot be reached{self._transport.route}: {why}", self.server
                    ) from error
            sleep(pause)
            attempt += 1

    def close(self) -> None:
        """Lets go of the connections."""
        self._transport.close()


@dataclass(frozen=True)
class _PendingRequest:
    """A request that was sent, or may have been, and whose answer nobody has yet."""

    path: str
    sequence: int
    content: bytes
    parse: Callable[[Any], Any]


class RemoteSession:
    """A session on a server, freed when it is closed, forgotten, or the program ends.

    It belongs to the process that opened it: in one that is forked from there, everything but
    closing it is a :class:`~xuance_envs.errors.WrongProcessError`.
    """

    def __init__(self, connection: ApiClient, share_frames: bool, name: str) -> None:
        self._connection: ApiClient | WrongProcessProxy = connection
        self.server = connection.server
        self._name = name
        self.states = RemoteStates()
        self._sequence = 0
        self._pending: _PendingRequest | None = None
        path = f"{API_PREFIX}/session/create"
        # The server answers the same of these with the session that it has opened already.
        message = {"share_frames": share_frames, "nonce": secrets.token_urlsafe(24)}
        try:
            answer = connection.request("POST", path, message, repeatable=True)
        except Exception:
            raise
        except BaseException:  # an interrupt: nobody but the server knows whether it is there
            with suppress(RemoteError, LookupError, TypeError):
                answer = connection.request("POST", path, message, timeout=CLOSE_TIMEOUT)
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
        """Leaves it to the process that this one was just forked from."""
        self._connection = WrongProcessProxy(self._name, owner)

    @property
    def pending_path(self) -> str | None:
        """The path of a request that was cut short, as by an interrupt; None where none was."""
        return None if self._pending is None else self._pending.path

    def request(self, path: str, message: Mapping[str, Any], parse: Callable[[Any], T]) -> T:
        """Sends a request that the server does once, and waits for its answer.

        One that was cut short is finished before another one is sent; if it is the same, its
        answer is returned.
        """
        if not self.is_pending(path, message):
            if self._pending is not None:
                self.finish_pending()
            content = self.next_request(message)
            self._pending = _PendingRequest(path, self._sequence, content, parse)
        parsed: T = self.finish_pending()
        return parsed

    def is_pending(self, path: str, message: Mapping[str, Any]) -> bool:
        """Whether it is this very request that is unfinished."""
        pending = self._pending
        return (
            pending is not None
            and pending.path == path
            and pending.content == self._encoded(pending.sequence, message)
        )

    def finish_pending(self) -> Any:
        """Waits for the answer to a request that was cut short, and takes it."""
        assert self._pending is not None
        try:
            answer = self.send(self._pending.path, self._pending.content)
            with checked_reply(self.server):
                parsed = self._pending.parse(answer)
        except RemoteUnreachableError:
            raise  # it may have been done, or not
        except Exception:
            self._pending = None
            raise
        self._pending = None
        return parsed

    def next_request(self, message: Mapping[str, Any]) -> bytes:
        """The next request of the session as it is sent, which may be done more than once."""
        self._sequence += 1
        return self._encoded(self._sequence, message)

    def _encoded(self, sequence: int, message: Mapping[str, Any]) -> bytes:
        return dumps({"session_id": self._id, "sequence": sequence, **message}, WireFormat.MSGPACK)

    def send(self, path: str, next_request: bytes) -> Any:
        """Sends a numbered request; again, it is given the same answer."""
        if released := self.states.released:
            self._drop_states(released)
        return self._connection.request(
            "POST", f"{API_PREFIX}/episode/{path}", next_request, repeatable=True
        )

    def _drop_states(self, states: Sequence[int]) -> None:
        """Lets go of states, at once or, where they cannot be now, with another request."""
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
        """How long the steps of its environments take at the server, at any time."""
        message = {"session_id": self._id}
        path = f"{API_PREFIX}/episode/statistics"
        answer = self._connection.request("POST", path, message, repeatable=True)
        with checked_reply(self.server):
            return dict(from_wire(answer["times"]))

    def close(self) -> None:
        """Frees the session and the connection; again, it does nothing."""
        self._delete_session()


def checked_count(name: str, value: Any) -> int:
    """A number of environments or steps."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: expected an int of at least 1, got {value!r}")
    return int(value)


def checked_seeds(seeds: Sequence[int | None]) -> list[int | None]:
    """Seeds that can be sent."""
    for seed in seeds:
        if seed is not None and seed >= MAX_SEED:
            raise ValueError(f"seed: expected ints below 2**64, as far as servers take, got {seed}")
    return list(seeds)


@contextmanager
def checked_reply(server: str) -> Iterator[None]:
    """Says of whatever an answer lacks that it was the server's."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise RemoteError(f"its answer is not of the form it has to be: {error}", server) from error


def _parse_url(base_url: str) -> httpx.URL:
    """The address of a server."""
    fault = ""
    try:
        url = httpx.URL(base_url.rstrip("/"))
        if url.scheme in ("http", "https") and url.host and (url.port or 1) < 1 << 16:
            return url
    except (httpx.InvalidURL, UnicodeError) as error:  # of a name that can be none, too
        fault = "" if "@" in base_url else f": {error}"
    except (AttributeError, TypeError):
        raise ValueError(f"base_url: expected an address, got {base_url!r}") from None
    raise ValueError(
        "base_url: expected an address such as http://127.0.0.1:8001, got "
        f"{redacted(base_url)!r}{fault}"
    )


def _hint(error: httpx.TransportError, server: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "; verify='FILE' trusts the authority whose certificate is in that file"
    if isinstance(error, httpx.RemoteProtocolError) and server.startswith("http://"):
        return "; where it speaks TLS, its address begins with https://"
    return ""


def _delete_session(connection: ApiClient, session_id: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked process: the session is its parent's
        return
    try:
        connection.request("DELETE", f"{API_PREFIX}/session/{session_id}", timeout=CLOSE_TIMEOUT)
    except RemoteError:
        pass  # gone already, or not to be told: it expires by itself
    finally:
        connection.close()
