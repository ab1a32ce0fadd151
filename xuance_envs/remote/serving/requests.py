"""Requests for the routes that take messages, and their answers, however they come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple

from xuance_envs.remote.failures import RefusedError
from xuance_envs.remote.wire.forms import Form, dumps

__all__ = ["FORMS", "SMALL", "Head", "Reply", "Request", "foreign_host", "head_of", "refused"]

FORMS = {
    Form.JSON.value: Form.JSON,
    Form.MSGPACK.value: Form.MSGPACK,
    "application/x-msgpack": Form.MSGPACK,
    "application/vnd.msgpack": Form.MSGPACK,
}
"""The forms of a message by their content types."""

_FORMS = {name.encode(): form for name, form in FORMS.items()}
_FIELDS = frozenset({b"authorization", b"content-type", b"accept", b"content-length"})

SMALL = 32 * 2**10
"""Bytes of a body up to which it may be for no session yet, and is decoded at once."""

Read = Callable[[int, float], Awaitable[bytes]]
"""Reads a body of at most so many bytes, within so many seconds."""


class Reply(NamedTuple):
    """An answer as it is sent: it can be sent again."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Head:
    """What the head of a request says; the same for all requests with the same head.

    Args:
        path: the route.
        headers: their names in lower case, and their values.
        method: the method.

    Attributes:
        path: see above.
        headers: see above.
        method: see above.
        authorization: that header; None where there is none.
        length: how long the body is; None where the client does not say so.
        form: of the body; None where it is of no form of a message.
        reply_form: the form that the client accepts, or else that of its request.
        is_small: whether the body is; one of no known length has to be.
    """

    __slots__ = (
        "authorization",
        "form",
        "headers",
        "is_small",
        "length",
        "method",
        "path",
        "reply_form",
    )

    def __init__(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], method: str = "POST"
    ) -> None:
        self.path = path
        self.headers = headers
        self.method = method
        found = {name: value for name, value in headers if name in _FIELDS}
        self.authorization = found.get(b"authorization")
        length = found.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() and len(length) < 19 else None
        self.is_small = self.length is None or self.length <= SMALL
        kind = found.get(b"content-type", b"")
        self.form = _FORMS.get(kind) or _FORMS.get(kind.partition(b";")[0].strip().lower())
        self.reply_form = self._accepted(found.get(b"accept", b"")) or self.form or Form.JSON

    @staticmethod
    def _accepted(accept: bytes) -> Form | None:
        if (exactly := _FORMS.get(accept)) is not None:
            return exactly
        accept = accept.lower()
        return next((form for name, form in _FORMS.items() if name in accept), None)


class Request:
    """A request.

    Args:
        head: what its head says.
        read: reads the body; raises RefusedError where it is too large, or does not come.

    Attributes:
        head: see above.
        read: see above.
        owner: the name of whose it is, once that is known.
    """

    __slots__ = ("head", "owner", "read")

    def __init__(self, head: Head, read: Read) -> None:
        self.head = head
        self.read = read
        self.owner = "-"


def refused(refusal: RefusedError, form: Form = Form.JSON) -> Reply:
    """The answer to a request that is refused."""
    headers: tuple[tuple[str, str], ...] = ()
    if refusal.status == 401:
        headers = (("www-authenticate", "Bearer"),)
    elif refusal.status in (429, 503):
        headers = (("retry-after", "1"),)
    return Reply(refusal.status, form.content_type, dumps(refusal.message(), form), headers)


def foreign_host(
    headers: Iterable[tuple[bytes, bytes]], hosts: frozenset[bytes]
) -> RefusedError | None:
    """What is said to a request for another host, or from a page of another one."""
    for name, value in headers:
        if name == b"host" or name == b"origin":
            address = value.lower().rpartition(b"://")[2]
            # The colons of an IPv6 address are in brackets, before that of a port.
            host, colon, port = address, b"", b""
            if b":" in address.rpartition(b"]")[2]:
                host, colon, port = address.rpartition(b":")
            if host not in hosts or (colon and not port.isdigit()):
                return RefusedError(
                    421 if name == b"host" else 403,
                    name.decode(),
                    f"this server has no tokens, and is asked by its own address only, got "
                    f"{value[:100].decode('latin-1')!a}; its operator allows another name "
                    "with --allow-host NAME",
                )
    return None


def head_of(reply: Reply, kept: bool) -> bytes:
    """The head of an answer.

    Args:
        reply: the answer.
        kept: whether the connection can be used again.
    """
    key = reply.status, reply.content_type
    start = _STARTS.get(key)
    if start is None:
        phrase = HTTPStatus(reply.status).phrase
        text = f"HTTP/1.1 {reply.status} {phrase}\r\ncontent-type: {reply.content_type}\r\n"
        start = _STARTS[key] = f"{text}content-length: ".encode()
    if kept and not reply.headers:
        return b"%b%d\r\n\r\n" % (start, len(reply.body))
    more = b"" if kept else b"connection: close\r\n"
    for name, value in reply.headers:
        more += f"{name}: {value}\r\n".encode()
    return b"%b%d\r\n%b\r\n" % (start, len(reply.body), more)


_STARTS: dict[tuple[int, str], bytes] = {}
