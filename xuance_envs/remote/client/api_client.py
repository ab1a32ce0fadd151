"""Requests to a server: encoding, retries, and errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http.client import HTTPException
from time import monotonic, sleep
from typing import Any

from xuance_envs.errors import (
    RemoteAuthenticationError,
    RemoteError,
    RemoteUnreachableError,
    RemoteVersionError,
)
from xuance_envs.remote.client.address import Address, redacted
from xuance_envs.remote.client.transport import (
    ConnectError,
    HttpTransport,
    InvalidResponseError,
    Response,
    Verify,
)
from xuance_envs.remote.wire.constants import API_PREFIX, PROTOCOL_VERSION, is_token
from xuance_envs.remote.wire.failures import error_of
from xuance_envs.remote.wire.formats import WireFormat, dumps, loads
from xuance_envs.remote.wire.nodes import WireError, shortened
from xuance_envs.vector_envs.arguments import checked_number

logger = logging.getLogger("xuance_envs.client")

CONNECT_TIMEOUT = 5.0  # seconds

RETRIES = 2
RETRY_PAUSE = 0.2  # seconds before the first retry; doubles with each retry
RETRY_STATUSES = (502, 503, 504)  # a proxy cannot reach the server, or the server is overloaded

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
        server = _parse_url(base_url)
        self.server = str(server)
        # Compression costs more time than it saves.
        headers = {"Content-Type": WireFormat.MSGPACK.value, "Accept-Encoding": "identity"}
        if token is not None:
            if not is_token(token):
                got = "an empty string" if token == "" else "other characters"
                expected = "None, or visible ASCII characters without spaces"
                raise ValueError(f"user_token: expected {expected}, got {got}")
            if server.login:
                raise ValueError(
                    "base_url: a user and password cannot be combined with a user_token"
                )
            headers["Authorization"] = f"Bearer {token}"
        elif server.login:
            headers["Authorization"] = server.login
        expected = "seconds above 0, or infinity"
        self._timeout = checked_number("timeout", timeout, lambda limit: limit > 0, expected)
        self._log_level = log_level
        self._transport = HttpTransport(server, headers, verify)

    def check_version(self) -> str:
        """Raise unless the protocol versions are equal; log and return the server's version."""
        try:
            answer = self.request("GET", f"{API_PREFIX}/version", repeatable=True)
        except (RemoteAuthenticationError, RemoteUnreachableError):
            raise
        except (RemoteError, WireError) as error:
            raise RemoteVersionError(f"not an xuance_envs server: {error}", self.server) from error
        if not isinstance(answer, dict) or answer.get("name") != "xuance_envs":
            raise RemoteVersionError("not an xuance_envs server", self.server)
        version, protocol = answer.get("version"), answer.get("protocol")
        if protocol != PROTOCOL_VERSION:
            raise RemoteVersionError(
                f"the server (xuance_envs {version}) uses protocol version {protocol}, this client "
                f"uses version {PROTOCOL_VERSION}: install the same version of xuance_envs on both "
                "sides",
                self.server,
            )
        logger.log(self._log_level, "server %s has xuance_envs %s", self.server, version)
        return str(version)

    def request(
        self,
        method: str,
        path: str,
        message: Mapping[str, Any] | bytes | None = None,
        *,
        repeatable: bool = False,
        timeout: float | None = None,
    ) -> Any:
        if message is not None and not isinstance(message, bytes):
            message = dumps(message, WireFormat.MSGPACK)
        start = monotonic()
        response, lost = self._send_with_retries(method, path, message, repeatable, timeout)
        status, headers, body = response
        fields = method, self.server, path, status, (monotonic() - start) * 1e3
        logger.log(self._log_level, "%s %s%s %d %.1f ms", *fields)
        content_type = headers.get("content-type", "").partition(";")[0]
        answer, fault = None, ""
        if (wire_format := _WIRE_FORMATS.get(content_type)) is None:
            got = shortened(content_type) if content_type else "no content type"
            fault = f"expected a reply in msgpack, got {got}"
        else:
            try:
                answer = loads(body, wire_format)
            except WireError as error:
                fault = f"the reply is not valid msgpack: {error}"
        if status >= 400:
            refusal = error_of(status, answer, self.server)
            refusal.__cause__ = refusal.__cause__ or lost
            raise refusal
        if status >= 300:
            location = redacted(headers.get("location", "another address"))[:200]
            fault = f"the server redirects to {location}: use this address as base_url"
        if fault:
            raise RemoteError(fault, self.server, status) from lost
        return answer

    def _send_with_retries(
        self, method: str, path: str, content: bytes | None, repeatable: bool, timeout: float | None
    ) -> tuple[Response, Exception | None]:
        """Return the response and, if an earlier attempt may have been executed, its error."""
        timeout = self._timeout if timeout is None else timeout
        deadline, exchange = monotonic() + timeout, self._transport.exchange
        attempt = 0
        lost: Exception | None = None
        while True:
            pause = RETRY_PAUSE * 2**attempt
            retry = attempt < RETRIES and monotonic() + pause < deadline
            try:
                response = exchange(method, path, content, deadline, CONNECT_TIMEOUT)
                if not (retry and repeatable and response.status in RETRY_STATUSES):
                    return response, lost
                lost = error_of(response.status, None, self.server)
            except TimeoutError as error:
                text = f"no reply to {method} {path} within {timeout:g} s"
                raise RemoteUnreachableError(text, self.server) from error
            except InvalidResponseError as error:
                raise RemoteError(str(error), self.server) from error
            except (OSError, HTTPException) as error:
                never_sent = isinstance(error, ConnectError)
                if not (retry and (repeatable or never_sent)):
                    reason = f"{type(error).__name__}: {error}{_hint(error, self.server)}"
                    text = f"cannot be reached{self._transport.route}: {reason}"
                    raise RemoteUnreachableError(text, self.server) from error
                lost = lost if never_sent else error.with_traceback(None)
            sleep(pause)
            attempt += 1

    def close(self) -> None:
        self._transport.close()


def _parse_url(base_url: str) -> Address:
    try:
        return Address.parse(base_url, ("http", "https", "unix"))
    except ValueError as error:
        reason = "" if "@" in base_url else f": {error}"  # the error could contain the password
    except (AttributeError, TypeError):
        raise ValueError(f"base_url: expected a string, got {base_url!r}") from None
    raise ValueError(
        "base_url: expected an address such as http://127.0.0.1:8001, got "
        f"{redacted(base_url)!r}{reason}"
    )


def _hint(error: Exception, server: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "; for a private certificate authority, give verify='FILE' with its certificate"
    if isinstance(error, HTTPException) and server.startswith("http://"):
        return "; if the server uses TLS, its address begins with https://"
    return ""
