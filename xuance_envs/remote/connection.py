"""The client's end: one connection to a server, and one session there."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import numpy as np

from xuance_envs.errors import (
    RemoteAuthenticationError,
    RemoteError,
    RemoteUnreachableError,
    RemoteVersionError,
)
from xuance_envs.remote.failures import error_of
from xuance_envs.remote.wire.forms import Form, dumps, loads
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.protocol import API, MAX_SEED, PROTOCOL
from xuance_envs.remote.wire.values import from_wire

try:
    import httpx
    import msgpack  # noqa: F401  # messages are written in it, but only here it is certain to be needed

    from xuance_envs.remote.transport import transport_to
except ImportError as error:
    raise ImportError(
        f"a client of a server needs {error.name}, which is not installed: "
        'pip install "xuance_envs[remote]"'
    ) from error

__all__ = ["Connection", "RemoteSession", "checked_count", "checked_seeds", "understood"]

CONNECT_TIMEOUT = 5.0
"""Seconds within which a connection has to be made."""

RETRIES = 2
"""How often a request that may be repeated is, where its answer was lost."""

RETRY_PAUSE = 0.2
"""Seconds before the first repetition."""

FAREWELL = 8.0
"""Seconds that closing a session may take."""


class Connection:
    """Requests to one server, over connections that are kept.

    Args:
        base_url: the server's address, as ``"http://127.0.0.1:8001"``.
        token: sent with every request; None where the server wants none.
        timeout: seconds within which the server has to answer.

    Raises:
        ValueError: the address or the token is none.
    """

    def __init__(self, base_url: str, token: str | None, timeout: float) -> None:
        self.server = base_url.rstrip("/")
        headers = {
            "Content-Type": Form.MSGPACK.value,
        }
        if token is not None:
            if not token or not token.isascii() or not token.isprintable() or " " in token:
                raise ValueError("token: expected visible ASCII characters only")
            headers["Authorization"] = f"Bearer {token}"
        try:
            url = httpx.URL(self.server)
        except (httpx.InvalidURL, TypeError) as error:
            raise ValueError(f"base_url: expected an address, got {base_url!r}: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(
                f"base_url: expected an address such as http://127.0.0.1:8001, got {base_url!r}"
            )
        self._timeout = timeout
        self._headers = httpx.Headers(headers)
        self._urls: dict[str, httpx.URL] = {}
        # A step is one request of many: without redirects, cookies and a log it takes half as long.
        self._transport = transport_to(url)

    def check_version(self) -> str:
        """Makes sure that the server speaks this protocol; its version.

        Raises:
            RemoteVersionError: it speaks another, or is no server of environments.
            RemoteUnreachableError: it does not answer.
        """
        try:
            answer = self.request("GET", f"{API}/version", repeatable=True)
        except (RemoteAuthenticationError, RemoteUnreachableError):
            raise
        except (RemoteError, WireError) as error:
            raise RemoteVersionError(
                f"this is no server of environments: {error}", self.server
            ) from error
        if not isinstance(answer, dict) or answer.get("name") != "xuance_envs":
            raise RemoteVersionError("this is no server of environments", self.server)
        if answer.get("protocol") != PROTOCOL:
            raise RemoteVersionError(
                f"it has xuance_envs {answer.get('version')}, which speaks version "
                f"{answer.get('protocol')} of the protocol; this client speaks version {PROTOCOL}: "
                "install the same version on both sides",
                self.server,
            )
        return str(answer.get("version"))

    def request(
        self,
        method: str,
        path: str,
        message: Mapping[str, Any] | None = None,
        *,
        repeatable: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Sends a request and waits for its answer.

        Args:
            method: of HTTP.
            path: below the server's address.
            message: what to send.
            repeatable: whether the server does it once however often it is sent. What never
                reached the server is sent again in any case.
            timeout: seconds within which it has to answer, unless as always.

        Raises:
            RemoteError: the server refused it, or could not be reached.
            EnvError: an environment failed; likewise other errors of environments.
        """
        content = None if message is None else dumps(message, Form.MSGPACK)
        response = self._sent(method, path, content, repeatable, timeout)
        kind = response.headers.get("content-type", "").partition(";")[0]
        try:
            form = Form(kind)
            answer = loads(response.content, form)
        except ValueError as error:  # another content type, or not what it says it is
            if response.status_code < 400:
                raise RemoteError(
                    f"expected an answer in msgpack, got {kind or 'nothing'}: {error}",
                    self.server,
                    response.status_code,
                ) from None
            answer = None
        if response.status_code >= 300:
            raise error_of(response.status_code, answer, self.server)
        return answer

    def _sent(
        self, method: str, path: str, content: bytes | None, repeatable: bool, timeout: float | None
    ) -> httpx.Response:
        timeout = self._timeout if timeout is None else timeout
        url = self._urls.get(path)
        if url is None:  # parsing one takes a good part of a step
            url = self._urls[path] = httpx.URL(f"{self.server}{path}")
        deadline = monotonic() + timeout
        for attempt in range(RETRIES + 1):
            left = max(0.001, deadline - monotonic())
            request = httpx.Request(
                method,
                url,
                headers=self._headers,
                content=content,
                extensions={"timeout": _limits(left)},
            )
            try:
                response = self._transport.handle_request(request)
                try:
                    response.read()
                finally:
                    response.close()
                return response
            except httpx.TimeoutException as error:
                raise RemoteUnreachableError(
                    f"it did not answer {method} {path} within {timeout:g} s", self.server
                ) from error
            except httpx.TransportError as error:
                lost = error
                never_sent = isinstance(error, httpx.ConnectError)
                pause = RETRY_PAUSE * 2**attempt
                if not (repeatable or never_sent) or monotonic() + pause > deadline:
                    break
            if attempt < RETRIES:
                sleep(pause)
        raise RemoteUnreachableError(
            f"it cannot be reached: {type(lost).__name__}: {lost}", self.server
        ) from lost

    def close(self) -> None:
        """Lets go of the connections."""
        self._transport.close()


class RemoteSession:
    """A session on a server, freed when it is closed, forgotten, or the program ends.

    Args:
        connection: to the server; it is closed with the session.
        share_frames: whether the server's status page may show what is rendered.

    Attributes:
        server: the server's address.
        env_ids: the environments the server has.
    """

    def __init__(self, connection: Connection, share_frames: bool = False) -> None:
        self._connection = connection
        self.server = connection.server
        self._sequence = 0
        answer = connection.request("POST", f"{API}/session/create", {"share_frames": share_frames})
        with understood(self.server):
            self._id = str(answer["session_id"])
            self.env_ids: list[str] = list(map(str, answer["env_ids"]))
        self._free = weakref.finalize(self, _free, connection, self._id, os.getpid())

    def request(self, path: str, message: Mapping[str, Any]) -> Any:
        """Sends a request that the server does once, and waits for its answer.

        Raises:
            RemoteError: the server refused it, or could not be reached.
            EnvError: an environment failed; likewise other errors of environments.
        """
        return self.send(path, self.numbered(message))

    def numbered(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The next request of the session, which may be sent more than once."""
        self._sequence += 1
        return {"session_id": self._id, "sequence": self._sequence, **message}

    def send(self, path: str, numbered: Mapping[str, Any]) -> Any:
        """Sends a numbered request; again, it is given the same answer.

        Raises:
            RemoteError: the server refused it, or could not be reached.
            EnvError: an environment failed; likewise other errors of environments.
        """
        return self._connection.request("POST", f"{API}/episode/{path}", numbered, repeatable=True)

    def step_times(self) -> dict[str, Any]:
        """How long the steps of its environments take at the server, at any time.

        Raises:
            RemoteError: the server refused it, or could not be reached.
        """
        message = {"session_id": self._id}
        path = f"{API}/episode/statistics"
        answer = self._connection.request("POST", path, message, repeatable=True)
        with understood(self.server):
            return dict(from_wire(answer["times"]))

    def close(self) -> None:
        """Frees the session and the connection; again, it does nothing."""
        self._free()


def checked_count(name: str, value: Any) -> int:
    """A number of environments or steps.

    Raises:
        ValueError: it is not an int of at least 1.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: expected an int of at least 1, got {value!r}")
    return int(value)


def checked_seeds(seeds: Sequence[int | None]) -> list[int | None]:
    """Seeds that can be sent.

    Raises:
        ValueError: one is too big.
    """
    for seed in seeds:
        if seed is not None and seed >= MAX_SEED:
            raise ValueError(f"seed: expected ints below 2**64, as far as servers take, got {seed}")
    return list(seeds)


@contextmanager
def understood(server: str) -> Iterator[None]:
    """Says of whatever an answer lacks that it was the server's.

    Raises:
        RemoteError: the answer is not of the form it has to be.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise RemoteError(f"its answer is not of the form it has to be: {error}", server) from error


def _limits(seconds: float) -> dict[str, float]:
    connect = min(seconds, CONNECT_TIMEOUT)
    return {"connect": connect, "read": seconds, "write": seconds, "pool": seconds}


def _free(connection: Connection, session_id: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked process: the session is its parent's
        return
    try:
        connection.request("DELETE", f"{API}/session/{session_id}", timeout=FAREWELL)
    except RemoteError:
        pass  # gone already, or not to be told: it expires by itself
    finally:
        connection.close()
