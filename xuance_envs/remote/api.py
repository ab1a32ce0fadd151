"""The routes under ``/api/v1``: from a request's bytes to what a session does, and back."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from xuance_envs._version import __version__
from xuance_envs.remote import commands, messages
from xuance_envs.remote.access.tokens import Owner
from xuance_envs.remote.failures import EnvsFailedError, RefusedError, refusal_of
from xuance_envs.remote.host import Host
from xuance_envs.remote.hosted_vec_env import HostedVecEnv, Wanted
from xuance_envs.remote.metrics import Metrics
from xuance_envs.remote.observed import OWNER
from xuance_envs.remote.openapi import REFUSALS, add_descriptions
from xuance_envs.remote.serving.admission import Account, Accounts, slowed
from xuance_envs.remote.serving.replies import LARGE, Replies
from xuance_envs.remote.serving.requests import FORMS, SMALL, Head, Reply, Request, refused
from xuance_envs.remote.sessions import Session, Sessions
from xuance_envs.remote.settings import Settings
from xuance_envs.remote.wire.bounds import TooManyNodesError
from xuance_envs.remote.wire.forms import Form, dumps, loads
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.protocol import API, PROTOCOL
from xuance_envs.remote.wire.values import from_client

__all__ = ["Api"]

logger = logging.getLogger("xuance_envs")

M = TypeVar("M", bound=messages.Request)
S = TypeVar("S", bound=messages.SessionRequest)
T = TypeVar("T")

Answering = Callable[[Request, Account], Awaitable[Reply]]

SHORT = 1024
"""Bytes of a body up to which it stands for itself where it is compared with another one."""

CALL_FIELDS = ("operation", "name", "args", "kwargs", "values", "mode")


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
        self.replies = Replies(settings.limits)
        self.accounts = Accounts(settings)
        self.sessions = Sessions(settings, self.metrics, self.replies)
        self.posts: dict[str, tuple[Answering, type[messages.Request]]] = {
            f"{API}/session/create": (self.create_session, messages.CreateSession),
            f"{API}/episode/create": (self.create_episodes, messages.CreateEpisodes),
            f"{API}/episode/vectorized_reset": (self.reset, messages.Reset),
            f"{API}/episode/vectorized_step": (self.step, messages.Step),
            f"{API}/episode/call": (self.call, messages.Call),
            f"{API}/episode/states": (self.states, messages.States),
            f"{API}/episode/statistics": (self.statistics, messages.Statistics),
        }
        # Two, because each holds the interpreter most of the time.
        self._decoders = ThreadPoolExecutor(2, "xuance_envs-decode")

    def add_to(self, app: FastAPI) -> None:
        """Adds the routes and the answers to what goes wrong."""
        for path in self.posts:
            # Plain ones, because FastAPI's own would decode JSON only.
            app.router.routes.append(Route(path, self._answer_http, methods=["POST"]))
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
        add_descriptions(app, {path: model for path, (_, model) in self.posts.items()})

    async def answer(self, request: Request) -> Reply:
        """Answers a request for a route that takes messages."""
        account = None
        try:
            owner = self._settings.tokens.owner(request.head.authorization)
            request.owner = owner.name
            account = self.accounts.begin(owner)
            if (rate := account.tally.requests).is_limited:
                await slowed((rate,))
                rate.charge()
            return await self.posts[request.head.path][0](request, account)
        except RefusedError as error:
            return refused(error, request.head.reply_form)
        except Exception as error:
            return _failure(request.head.path, error, request.head.reply_form)
        finally:
            if account is not None:
                self.accounts.end(account)

    def close(self) -> None:
        """Ends the threads."""
        self._decoders.shutdown(wait=False)

    async def _answer_http(self, http: HttpRequest) -> Response:
        """The same for requests that come by way of ASGI."""

        async def read(limit: int, seconds: float) -> bytes:
            async def whole() -> bytes:
                body = bytearray()
                async for piece in http.stream():
                    body += piece
                    if len(body) > limit:
                        raise RefusedError(
                            413, "body", f"expected a request of at most {limit} bytes"
                        )
                return bytes(body)

            try:
                return await asyncio.wait_for(whole(), seconds)
            except asyncio.TimeoutError:
                raise RefusedError(
                    408, "slow", f"expected the whole request within {seconds:g} s"
                ) from None
            except ClientDisconnect:
                raise RefusedError(
                    400, "disconnected", "the request did not arrive whole"
                ) from None

        path = http.scope["path"].removeprefix(http.scope.get("root_path", ""))
        request = Request(Head(path, http.scope["headers"]), read)
        reply = await self.answer(request)
        http.scope[OWNER] = request.owner
        return _sent(reply)

    # -- routes -----------------------------------------------------------------------

    async def version(self) -> dict[str, Any]:
        """The server's version and that of the protocol. No token is needed."""
        return {"name": "xuance_envs", "version": __version__, "protocol": PROTOCOL}

    async def create_session(self, request: Request, account: Account) -> Reply:
        """Opens a session."""
        message, _, _ = await self._received(request, messages.CreateSession)
        session = self.sessions.open(account, message.share_frames, message.nonce)
        answer = {"session_id": session.id, "env_ids": self._settings.catalogue.ids}
        return _done(dumps(answer, request.head.reply_form), request.head.reply_form)

    def create_episodes(self, request: Request, account: Account) -> Awaitable[Reply]:
        """Makes environments."""

        async def act(message: messages.CreateEpisodes, session: Session, form: Form) -> bytes:
            kwargs = await self._by_thread(request, _from_clients, message.kwargs)
            functions = self._settings.catalogue.functions(message.env_id, message.num_envs, kwargs)
            wanted = Wanted(functions, message.seed, message.auto_reset)
            host, ids = await self.sessions.create_host(session, wanted)
            return dumps({"episode_ids": ids, **host.description}, form)

        return self._in_session(request, account, messages.CreateEpisodes, act)

    def reset(self, request: Request, account: Account) -> Awaitable[Reply]:
        """Starts new episodes."""

        async def act(message: messages.Reset, session: Session, form: Form) -> bytes:
            host, envs = session.find(message.episode_ids)
            if isinstance(message.seed, list) and len(message.seed) != len(envs):
                raise RefusedError(
                    422, "seed", f"expected {len(envs)} seeds, got {len(message.seed)}"
                )
            self._settings.permissions.check_options(message.options)
            reset = partial(commands.reset, envs=envs, seed=message.seed, options=message.options)
            run = partial(host.run, reset, form, begins=envs)
            return await self._with_room(host, len(envs), form, run)

        return self._in_session(request, account, messages.Reset, act)

    def step(self, request: Request, account: Account) -> Awaitable[Reply]:
        """Steps environments."""

        async def act(message: messages.Step, session: Session, form: Form) -> bytes:
            host, envs = session.find(message.episode_ids)
            actions, steps = message.actions, message.steps
            if steps > account.limits.repeats:
                raise RefusedError(
                    422,
                    "steps",
                    f"this server takes at most {account.limits.repeats} steps a request, "
                    f"got {steps}",
                )
            if not host.auto_reset:
                repeat = partial(host.repeat, envs, actions, steps, form)
                return await self._with_room(host, len(envs) * steps, form, repeat)
            if steps != 1 or list(envs) != list(range(host.num_envs)):
                raise RefusedError(
                    422,
                    "auto_reset",
                    "episodes that were created with auto_reset are stepped once, and all of "
                    f"them: expected steps 1 and {host.num_envs} episodes in order, got steps "
                    f"{steps} and {len(envs)}",
                )
            step = partial(host.step, actions, form, large=not request.head.is_small)
            return await self._with_room(host, len(envs), form, step)

        return self._in_session(request, account, messages.Step, act)

    def call(self, request: Request, account: Account) -> Awaitable[Reply]:
        """Reaches into environments."""

        async def act(message: messages.Call, session: Session, form: Form) -> bytes:
            host, envs = session.find(message.episode_ids)
            self._settings.permissions.check_operation(message.operation, message.name)
            if message.operation == "set_attr" and len(message.values) != len(envs):
                raise RefusedError(
                    422, "values", f"expected {len(envs)} values, got {len(message.values)}"
                )
            asked = {name: getattr(message, name) for name in CALL_FIELDS}
            return await host.reach(envs, form, **asked)

        return self._in_session(request, account, messages.Call, act)

    def states(self, request: Request, account: Account) -> Awaitable[Reply]:
        """Keeps states of environments, puts them in, or drops them."""

        async def act(message: messages.States, session: Session, form: Form) -> bytes:
            kept, numbers = session.states, message.states
            if message.operation == "drop":
                return dumps({"dropped": kept.drop(numbers)}, form)
            host, envs = session.find(message.episode_ids)
            if message.operation == "save":
                host.check_ready(envs)
                return await host.run(lambda v: commands.saved(v, envs, kept), form)
            if message.operation == "load":
                if len(numbers) != len(envs):
                    raise RefusedError(
                        422, "states", f"expected {len(envs)} states, got {len(numbers)}"
                    )
                load = partial(HostedVecEnv.load_state, state=kept.find(numbers), env_ids=envs)
            else:
                home, sources = session.find(message.sources, distinct=False)
                if home is not host or len(sources) not in (1, len(envs)):
                    raise RefusedError(
                        422,
                        "sources",
                        f"expected 1 or {len(envs)} sources, created by the same request as the "
                        f"episodes, got {len(sources)}",
                    )
                host.check_ready(sources)
                load = partial(
                    HostedVecEnv.clone_state,
                    src_ids=sources,
                    dst_ids=envs,
                    fork_rng=message.fork_rng,
                )
            put_in = partial(commands.loaded, envs=envs, repeating=not host.auto_reset, load=load)
            run = partial(host.run, put_in, form, begins=envs)
            return await self._with_room(host, len(envs), form, run)

        return self._in_session(request, account, messages.States, act)

    async def statistics(self, request: Request, account: Account) -> Reply:
        """How long steps take, without waiting for the session's turn."""
        message, _, _ = await self._received(request, messages.Statistics)
        session = self.sessions.get(message.session_id, account.owner)
        host, _ = session.find(message.episode_ids)
        return _done(
            dumps({"times": host.times()}, request.head.reply_form), request.head.reply_form
        )

    async def delete_session(self, session_id: str, request: HttpRequest) -> Response:
        """Closes a session, and ends its environments."""
        session = self.sessions.get(session_id, self.owner(request))
        await self.sessions.close(session, "its client closed it")
        form = _reply_form(request)
        return _sent(_done(dumps({"closed": True}, form), form))

    def owner(self, request: HttpRequest) -> Owner:
        """Whom a request belongs to that came by way of ASGI; the log says so, too.

        Raises:
            RefusedError: it has no token of the server's.
        """
        header = request.headers.get("authorization")
        owner = self._settings.tokens.owner(None if header is None else header.encode("latin-1"))
        request.scope[OWNER] = owner.name
        return owner

    def is_admin(self, request: HttpRequest) -> bool:
        """Whether a request has the token of an admin."""
        try:
            return self.owner(request).is_admin
        except RefusedError:
            return False

    # -- what they share --------------------------------------------------------------

    def _in_session(
        self,
        request: Request,
        account: Account,
        model: type[S],
        act: Callable[[S, Session, Form], Awaitable[bytes]],
    ) -> Awaitable[Reply]:
        """Does in a session what a request asks for, once, and says what came of it."""
        if request.head.is_small:
            return self._act(request, account, model, act)
        return self._act_with_room(request, account, model, act)

    async def _act_with_room(
        self,
        request: Request,
        account: Account,
        model: type[S],
        act: Callable[[S, Session, Form], Awaitable[bytes]],
    ) -> Reply:
        async with self.accounts.room(account, request.head.length or 0):
            return await self._act(request, account, model, act)

    async def _act(
        self,
        request: Request,
        account: Account,
        model: type[S],
        act: Callable[[S, Session, Form], Awaitable[bytes]],
    ) -> Reply:
        message, form, digest = await self._received(request, model)
        session = self.sessions.get(message.session_id, account.owner)

        async def reply() -> Reply:
            try:
                return _done(await act(message, session, form), form)
            except Exception as error:
                refusal = refusal_of(error, self._settings.permissions.tracebacks)
                if refusal is None:
                    raise
                if isinstance(refusal, EnvsFailedError):
                    self.metrics.failures += refusal.is_ours
                    logger.warning("session %d, error %s: %s", session.number, refusal.id, error)
                return refused(refusal, form)

        return await session.in_turn(message.sequence, digest, reply)

    async def _received(self, request: Request, model: type[M]) -> tuple[M, Form, bytes]:
        """A request's message, the form of its answer, and a digest of all of it."""
        form, limits = request.head.form, self._limits
        if form is None:
            raise RefusedError(
                415, "content_type", f"expected a content type out of {', '.join(FORMS)}"
            )
        most = min(limits.body, SMALL) if request.head.is_small else limits.body
        body = await request.read(most, limits.upload)
        if request.head.is_small:
            message, digest = _decoded(model, form, limits.nodes, body)
        else:
            decoding = self._by_thread(request, _decoded, model, form, limits.nodes, body)
            message, digest = await decoding
        asked = f"{request.head.path} {request.head.reply_form.content_type}"
        return message, request.head.reply_form, digest + asked.encode()

    async def _by_thread(self, request: Request, decode: Callable[..., T], *args: Any) -> T:
        """Decodes something of a request, by a thread if it can take a while."""
        if request.head.is_small:
            return decode(*args)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoders, partial(decode, *args))

    def _with_room(
        self, host: Host, observations: int, form: Form, act: Callable[[], Awaitable[bytes]]
    ) -> Awaitable[bytes]:
        """Makes an answer with so many observations; holds what it may take, where that is much.

        Raises:
            RefusedError: it could be too large.
        """
        size = host.answer_bytes(observations, form)
        if size > self._limits.reply:
            raise RefusedError(
                413,
                "reply",
                f"the answer could have {size} bytes of observations in {form.name}; this server "
                f"allows {self._limits.reply}: ask for fewer steps or fewer episodes at a time",
            )
        return act() if size <= LARGE else self._with_much_room(size, act)

    async def _with_much_room(self, size: int, act: Callable[[], Awaitable[bytes]]) -> bytes:
        async with self.replies.made.hold(size, self._limits.request):
            return await act()


def _from_clients(values: dict[str, Any]) -> dict[str, Any]:
    """Values by name, as a client sent them."""
    return {name: from_client(value) for name, value in values.items()}


def _decoded(model: type[M], form: Form, nodes: int, body: bytes) -> tuple[M, bytes]:
    try:
        node = loads(body, form, nodes)
    except TooManyNodesError as error:
        raise RefusedError(413, "nodes", str(error)) from None
    except WireError as error:
        raise RefusedError(400, "malformed", str(error)) from None
    digest = body if len(body) <= SHORT else hashlib.blake2b(body).digest()
    return messages.message_of(model, node), digest


def _done(body: bytes, form: Form) -> Reply:
    return Reply(200, form.content_type, body)


def _failure(path: str, error: Exception, form: Form) -> Reply:
    logger.error("%s failed", path, exc_info=error)
    return refused(RefusedError(500, "server", "the server failed; its log says how"), form)


def _sent(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers), reply.content_type)


def _reply_form(request: HttpRequest) -> Form:
    """The form the client accepts, or else that of its request."""
    return Head("", request.scope["headers"]).reply_form


async def _refused(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return _sent(refused(error, _reply_form(request)))


async def _refused_route(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await _refused(request, RefusedError(error.status_code, "route", str(error.detail)))


async def _refused_parameters(request: HttpRequest, error: Exception) -> Response:
    # FastAPI's own answer repeats the input, which may have no JSON: then it fails itself.
    return await _refused(request, RefusedError(422, "invalid", "the path or query is not valid"))


async def _failed(request: HttpRequest, error: Exception) -> Response:
    return _sent(_failure(request.url.path, error, _reply_form(request)))
