"""The routes under ``/api/v1``: from a request's bytes to what a session does, and back."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from xuance_envs._version import __version__
from xuance_envs.remote import messages
from xuance_envs.remote.failures import RefusedError, refusal_of
from xuance_envs.remote.host import Host, Wanted
from xuance_envs.remote.metrics import Metrics
from xuance_envs.remote.openapi import REFUSALS, add_descriptions
from xuance_envs.remote.sessions import Reply, Session, Sessions
from xuance_envs.remote.settings import Settings
from xuance_envs.remote.wire.forms import Form, dumps, loads
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.protocol import API, PROTOCOL
from xuance_envs.remote.wire.values import from_wire

__all__ = ["Api"]

logger = logging.getLogger("xuance_envs")

M = TypeVar("M", bound=messages.Request)
S = TypeVar("S", bound=messages.SessionRequest)

Answering = Callable[[Request], Awaitable[Response]]

LARGE = 64 * 2**10
"""Bytes of a body above which it is decoded in a thread, and others need not wait."""

FREE = ("render", "action_masks")
"""Operations that go without a name, and so without a leave for one."""

CALL_FIELDS = {"operation", "name", "args", "kwargs", "values", "mode"}

FORMS = {
    Form.JSON.value: Form.JSON,
    Form.MSGPACK.value: Form.MSGPACK,
    "application/x-msgpack": Form.MSGPACK,
    "application/vnd.msgpack": Form.MSGPACK,
}


class Api:
    """What the routes do.

    Args:
        settings: the server's.

    Attributes:
        sessions: all there are.
        metrics: what is counted.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self.metrics = Metrics()
        self.sessions = Sessions(settings, self.metrics)
        self._posts: dict[str, tuple[Answering, type[messages.Request]]] = {
            f"{API}/session/create": (self.create_session, messages.CreateSession),
            f"{API}/episode/create": (self.create_episodes, messages.CreateEpisodes),
            f"{API}/episode/vectorized_reset": (self.reset, messages.Reset),
            f"{API}/episode/vectorized_step": (self.step, messages.Step),
            f"{API}/episode/call": (self.call, messages.Call),
            f"{API}/episode/statistics": (self.statistics, messages.Statistics),
        }

    def add_to(self, app: FastAPI) -> None:
        """Adds the routes and the answers to what goes wrong."""
        for path, (route, _) in self._posts.items():
            # Plain ones, because FastAPI's own would decode JSON only.
            app.router.routes.append(Route(path, route, methods=["POST"]))
        app.add_api_route(f"{API}/version", self.version, methods=["GET"])
        app.add_api_route(
            f"{API}/session/{{session_id}}",
            self.delete_session,
            methods=["DELETE"],
            openapi_extra={"security": [{"token": []}]},
            responses=REFUSALS,
        )
        app.add_exception_handler(RequestValidationError, _refused_parameters)
        app.add_exception_handler(HTTPException, _refused_route)
        app.add_exception_handler(RefusedError, _refused)
        app.add_exception_handler(Exception, _failed)
        add_descriptions(app, {path: model for path, (_, model) in self._posts.items()})

    def short_way(self, app: ASGIApp) -> ASGIApp:
        """The application, with a shorter way to the routes that take messages.

        What FastAPI does for every request takes as long as stepping several environments.
        """

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            route = scope["type"] == "http" and self._posts.get(scope["path"])
            if not route or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            request = Request(scope, receive)
            try:
                response = await route[0](request)
            except RefusedError as error:
                response = await _refused(request, error)
            except Exception as error:
                response = await _failed(request, error)
            await response(scope, receive, send)

        return answer

    # -- routes -----------------------------------------------------------------------

    async def version(self) -> dict[str, Any]:
        """The server's version and that of the protocol. No token is needed."""
        return {"name": "xuance_envs", "version": __version__, "protocol": PROTOCOL}

    async def create_session(self, request: Request) -> Response:
        """Opens a session."""
        owner = self._owner(request)
        message, form, _ = await self._received(request, messages.CreateSession)
        session = self.sessions.open(owner, message.share_frames)
        answer = {"session_id": session.id, "env_ids": self._settings.catalogue.ids}
        return _sent(Reply(200, form.value, dumps(answer, form)))

    async def create_episodes(self, request: Request) -> Response:
        """Makes environments."""

        async def act(message: messages.CreateEpisodes, session: Session, form: Form) -> bytes:
            kwargs = {name: from_wire(value) for name, value in message.kwargs.items()}
            functions = self._settings.catalogue.functions(message.env_id, message.num_envs, kwargs)
            first = session.environments
            wanted = Wanted(functions, message.seed, message.auto_reset)
            host = await self.sessions.create_host(session, wanted)
            ids = list(range(first, first + host.num_envs))
            return dumps({"episode_ids": ids, **host.description}, form)

        return await self._in_session(request, messages.CreateEpisodes, act)

    async def reset(self, request: Request) -> Response:
        """Starts new episodes."""

        async def act(message: messages.Reset, session: Session, form: Form) -> bytes:
            host, envs = session.find(message.episode_ids)
            if isinstance(message.seed, list) and len(message.seed) != len(envs):
                raise RefusedError(
                    422, "seed", f"expected {len(envs)} seeds, got {len(message.seed)}"
                )
            self._check_reply(host, len(envs))
            options = None if message.options is None else from_wire(message.options)
            return await host.reset(envs, message.seed, options, form)

        return await self._in_session(request, messages.Reset, act)

    async def step(self, request: Request) -> Response:
        """Steps environments."""

        async def act(message: messages.Step, session: Session, form: Form) -> bytes:
            host, envs = session.find(message.episode_ids)
            actions, steps = message.actions, message.steps
            if steps > self._limits.repeats:
                raise RefusedError(
                    422,
                    "steps",
                    f"this server takes at most {self._limits.repeats} steps a request, "
                    f"got {steps}",
                )
            self._check_reply(host, len(envs) * steps)
            if not host.auto_reset:
                return await host.repeat(envs, actions, steps, form)
            if steps != 1 or list(envs) != list(range(host.num_envs)):
                raise RefusedError(
                    422,
                    "auto_reset",
                    "episodes that were created with auto_reset are stepped once, and all of "
                    f"them: expected steps 1 and {host.num_envs} episodes in order, got steps "
                    f"{steps} and {len(envs)}",
                )
            return await host.step(actions, form)

        return await self._in_session(request, messages.Step, act)

    async def call(self, request: Request) -> Response:
        """Reaches into environments."""

        async def act(message: messages.Call, session: Session, form: Form) -> bytes:
            host, envs = session.find(message.episode_ids)
            allowed = self._settings.allowed_calls
            if message.operation not in FREE and message.name not in allowed:
                raise RefusedError(
                    403,
                    "name",
                    f"the name {message.name!a} is not allowed; the server's operator allows "
                    "one with --allow-call NAME",
                )
            if message.operation == "set_attr" and len(message.values) != len(envs):
                raise RefusedError(
                    422, "values", f"expected {len(envs)} values, got {len(message.values)}"
                )
            asked = message.model_dump(include=CALL_FIELDS)
            return await host.reach(envs, form, **asked)

        return await self._in_session(request, messages.Call, act)

    async def statistics(self, request: Request) -> Response:
        """How long steps take, without waiting for the session's turn."""
        owner = self._owner(request)
        message, form, _ = await self._received(request, messages.Statistics)
        host, _ = self.sessions.get(message.session_id, owner).find(message.episode_ids)
        return _sent(Reply(200, form.value, dumps({"times": host.times()}, form)))

    async def delete_session(self, session_id: str, request: Request) -> Response:
        """Closes a session, and ends its environments."""
        session = self.sessions.get(session_id, self._owner(request))
        await self.sessions.close(session, "its client closed it")
        form = _reply_form(request, Form.JSON)
        return _sent(Reply(200, form.value, dumps({"closed": True}, form)))

    # -- what they share --------------------------------------------------------------

    def _owner(self, request: Request) -> bytes:
        header = request.headers.get("authorization")
        return self._settings.tokens.owner(None if header is None else header.encode("latin-1"))

    async def _in_session(
        self,
        request: Request,
        model: type[S],
        act: Callable[[S, Session, Form], Awaitable[bytes]],
    ) -> Response:
        """Does in a session what a request asks for, once, and sends what came of it."""
        owner = self._owner(request)
        message, form, digest = await self._received(request, model)
        session = self.sessions.get(message.session_id, owner)

        async def reply() -> Reply:
            try:
                return Reply(200, form.value, await act(message, session, form))
            except Exception as error:
                refusal = refusal_of(error)
                if refusal is None:
                    raise
                if refusal.status == 409:
                    self.metrics.failures += 1
                    logger.warning("session %d: %s", session.number, error)
                return Reply(refusal.status, form.value, dumps(refusal.message(), form))

        return _sent(await session.in_turn(message.sequence, digest, reply))

    async def _received(self, request: Request, model: type[M]) -> tuple[M, Form, bytes]:
        """A request's message, the form of its answer, and a digest of all of it."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in FORMS:
            raise RefusedError(
                415, "content_type", f"expected a content type out of {', '.join(FORMS)}"
            )
        body = await self._body(request)
        form = FORMS[content_type]
        reply_form = _reply_form(request, form)
        read = _read_large if len(body) > LARGE else _read
        node, digest = await read(body, form)
        try:
            message = model.model_validate(node)
        except ValidationError as error:
            raise RefusedError(422, "invalid", _faults(error)) from None
        return message, reply_form, digest + f"{request.scope['path']} {reply_form}".encode()

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.body
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > limit:
            raise _too_large(limit)
        try:
            return await _within(self._limits.upload, self._pieces(request))
        except asyncio.TimeoutError:
            raise RefusedError(
                408, "slow", f"expected the whole request within {self._limits.upload:g} s"
            ) from None
        except ClientDisconnect:
            raise RefusedError(400, "disconnected", "the request did not arrive whole") from None

    async def _pieces(self, request: Request) -> bytes:
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self._limits.body:
                raise _too_large(self._limits.body)
            pieces.append(piece)
        return b"".join(pieces)

    def _check_reply(self, host: Host, observations: int) -> None:
        size = host.observation_bytes(observations)
        if size > self._limits.reply:
            raise RefusedError(
                413,
                "reply",
                f"the answer could have {size} bytes of observations; this server allows "
                f"{self._limits.reply}: ask for fewer steps or fewer episodes at a time",
            )


async def _within(seconds: float, work: Coroutine[Any, Any, bytes]) -> bytes:
    if sys.version_info < (3, 11):
        return await asyncio.wait_for(work, seconds)
    async with asyncio.timeout(seconds):  # without a task of its own
        return await work


async def _read(body: bytes, form: Form) -> tuple[Any, bytes]:
    return _decoded(body, form)


async def _read_large(body: bytes, form: Form) -> tuple[Any, bytes]:
    return await asyncio.to_thread(_decoded, body, form)


def _decoded(body: bytes, form: Form) -> tuple[Any, bytes]:
    try:
        return loads(body, form), hashlib.blake2b(body).digest()
    except WireError as error:
        raise RefusedError(400, "malformed", str(error)) from None


def _reply_form(request: Request, form: Form) -> Form:
    """The form the client accepts, or else that of its request."""
    accepted = request.headers.get("accept", "").lower()
    for name, wanted in FORMS.items():
        if name in accepted:
            return wanted
    return form


def _too_large(limit: int) -> RefusedError:
    return RefusedError(413, "body", f"expected a request of at most {limit} bytes")


def _faults(error: ValidationError) -> str:
    """What is wrong with a request, without repeating what it had."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(str(part)[:40] for part in fault['loc']) or 'message'}: {fault['msg']}"
        for fault in faults[:5]
    ]
    return ascii("; ".join(shown))[1:-1][:1000]


def _sent(reply: Reply, headers: Mapping[str, str] | None = None) -> Response:
    return Response(reply.body, reply.status, headers, reply.content_type)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    form = _reply_form(request, FORMS.get(request.headers.get("content-type", ""), Form.JSON))
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return _sent(Reply(error.status, form.value, dumps(error.message(), form)), headers)


async def _refused_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _refused(request, RefusedError(error.status_code, "route", str(error.detail)))


async def _refused_parameters(request: Request, error: Exception) -> Response:
    # FastAPI's own answer repeats the input, which may have no JSON: then it fails itself.
    return await _refused(request, RefusedError(422, "invalid", "the path or query is not valid"))


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("%s failed", request.url.path, exc_info=error)
    return await _refused(
        request, RefusedError(500, "server", "the server failed; its log says how")
    )
