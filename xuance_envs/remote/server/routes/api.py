"""HTTP routes under ``/api/v1``."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fastapi import FastAPI, Response
from fastapi import Request as StarletteRequest
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from xuance_envs._version import __version__
from xuance_envs.remote.server.access.tokens import Owner
from xuance_envs.remote.server.hosting import commands
from xuance_envs.remote.server.hosting.env_host import EnvHost
from xuance_envs.remote.server.hosting.hosted_vec_env import HostedEnvConfig
from xuance_envs.remote.server.hosting.session import Session
from xuance_envs.remote.server.hosting.sessions import Sessions
from xuance_envs.remote.server.http.large_replies import LARGE_REPLY, LargeReplies
from xuance_envs.remote.server.http.requests import (
    CONTENT_TYPES,
    SMALL_BODY,
    Reply,
    Request,
    RequestHead,
    refused,
)
from xuance_envs.remote.server.limits.admission import Account, Accounts, throttle
from xuance_envs.remote.server.limits.capacity import Capacity
from xuance_envs.remote.server.monitoring.metrics import Metrics
from xuance_envs.remote.server.monitoring.request_log import OWNER_KEY
from xuance_envs.remote.server.routes import messages
from xuance_envs.remote.server.routes.error_replies import (
    add_error_handlers,
    failure,
    reply_format,
    to_response,
)
from xuance_envs.remote.server.routes.openapi import REFUSALS
from xuance_envs.remote.server.settings import Settings
from xuance_envs.remote.wire.bounds import TooManyNodesError
from xuance_envs.remote.wire.constants import API_PREFIX, PROTOCOL_VERSION
from xuance_envs.remote.wire.failures import EnvsFailedError, RefusedError, refusal_of
from xuance_envs.remote.wire.formats import WireFormat, dumps, loads
from xuance_envs.remote.wire.nodes import WireError
from xuance_envs.remote.wire.values import from_client

logger = logging.getLogger("xuance_envs")

M = TypeVar("M", bound=messages.RequestModel)
S = TypeVar("S", bound=messages.SessionRequestModel)
T = TypeVar("T")

Handler = Callable[[Request, Account], Awaitable[Reply]]

MAX_INLINE_BODY = 1024  # maximum bytes of a body that serves as its own digest

CALL_FIELDS = ("operation", "name", "args", "kwargs", "values", "mode")


class MessageRoute(NamedTuple):
    handler: Handler
    model: type[messages.RequestModel]
    accepts_large: bool = True


class Api:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self.metrics = Metrics()
        self.replies = LargeReplies(settings.limits)
        self.capacity = Capacity(settings)
        self.accounts = Accounts(self.capacity)
        self.sessions = Sessions(self.capacity, self.metrics, self.replies)
        routes = {
            "session/create": MessageRoute(self.create_session, messages.CreateSession, False),
            "episode/create": MessageRoute(self.create_episodes, messages.CreateEpisodes),
            "episode/vectorized_reset": MessageRoute(self.reset, messages.Reset),
            "episode/vectorized_step": MessageRoute(self.step, messages.Step),
            "episode/call": MessageRoute(self.call, messages.Call),
            "episode/states": MessageRoute(self.states, messages.States),
            "episode/statistics": MessageRoute(self.statistics, messages.Statistics, False),
        }
        self.post_routes = {f"{API_PREFIX}/{path}": route for path, route in routes.items()}
        # Two threads suffice, because decoding holds the GIL most of the time.
        self._decoders = ThreadPoolExecutor(2, "xuance_envs-decode")

    def add_to(self, app: FastAPI) -> None:
        for path in self.post_routes:
            # Starlette routes, because FastAPI routes accept only JSON.
            app.router.routes.append(Route(path, self._answer_http, methods=["POST"]))
        app.add_api_route(f"{API_PREFIX}/version", self.version, methods=["GET"])
        app.add_api_route(
            f"{API_PREFIX}/session/{{session_id}}",
            self.delete_session,
            methods=["DELETE"],
            openapi_extra={"security": [{"token": []}]},
            responses=REFUSALS,
        )
        add_error_handlers(app)

    async def answer(self, request: Request) -> Reply:
        account = None
        try:
            owner = self._settings.tokens.owner(request.head.authorization)
            request.owner = owner.name
            account = self.accounts.begin(owner)
            if (rate := account.quota.requests).is_limited:
                await throttle((rate,))
                rate.record()
            route = self.post_routes[request.head.path]
            if request.head.is_small:
                return await route.handler(request, account)
            max_body = account.limits.body if route.accepts_large else SMALL_BODY
            async with self.accounts.reserve_body(account, request.head.length, max_body):
                return await route.handler(request, account)
        except RefusedError as error:
            return refused(error, request.head.reply_format)
        except Exception as error:
            return failure(request.head.path, error, request.head.reply_format)
        finally:
            if account is not None:
                self.accounts.end(account)

    def close(self) -> None:
        self._decoders.shutdown(wait=False)

    async def _answer_http(self, http: StarletteRequest) -> Response:
        """Answer a POST request that arrives through ASGI."""

        async def read(limit: int, seconds: float) -> bytes:
            async def read_body() -> bytes:
                body = bytearray()
                async for piece in http.stream():
                    body += piece
                    if len(body) > limit:
                        raise RefusedError(
                            413, "body", f"expected a request of at most {limit} bytes"
                        )
                return bytes(body)

            try:
                return await asyncio.wait_for(read_body(), seconds)
            except asyncio.TimeoutError:
                raise RefusedError(
                    408, "slow", f"the request did not arrive completely within {seconds:g} s"
                ) from None
            except ClientDisconnect:
                raise RefusedError(
                    400, "disconnected", "the client disconnected before the request was complete"
                ) from None

        path = http.scope["path"].removeprefix(http.scope.get("root_path", ""))
        request = Request(RequestHead(path, http.scope["headers"]), read)
        reply = await self.answer(request)
        http.scope[OWNER_KEY] = request.owner
        return to_response(reply)

    async def version(self) -> dict[str, Any]:
        """Return the versions of the server and the protocol. Requires no token."""
        return {"name": "xuance_envs", "version": __version__, "protocol": PROTOCOL_VERSION}

    async def create_session(self, request: Request, account: Account) -> Reply:
        message, _, _ = await self._receive(request, messages.CreateSession)
        session = self.sessions.open(account, message.share_frames, message.nonce)
        answer = {"session_id": session.id, "env_ids": self._settings.catalogue.ids}
        return _ok(dumps(answer, request.head.reply_format), request.head.reply_format)

    def create_episodes(self, request: Request, account: Account) -> Awaitable[Reply]:
        async def act(
            message: messages.CreateEpisodes, session: Session, wire_format: WireFormat
        ) -> bytes:
            kwargs = await self._decode_in_thread(request, _decode_kwargs, message.kwargs)
            functions = self._settings.catalogue.functions(message.env_id, message.num_envs, kwargs)
            config = HostedEnvConfig(functions, message.seed, message.auto_reset)
            host, ids = await self.sessions.create_envs(session, config)
            return dumps({"episode_ids": ids, **host.description}, wire_format)

        return self._in_session(request, account, messages.CreateEpisodes, act)

    def reset(self, request: Request, account: Account) -> Awaitable[Reply]:
        async def act(message: messages.Reset, session: Session, wire_format: WireFormat) -> bytes:
            host, envs = session.find(message.episode_ids)
            if isinstance(message.seed, list) and len(message.seed) != len(envs):
                raise RefusedError(
                    422, "seed", f"expected {len(envs)} seeds, got {len(message.seed)}"
                )
            self._settings.permissions.check_options(message.options)
            reset = partial(commands.reset, envs=envs, seed=message.seed, options=message.options)
            run = partial(host.run, reset, wire_format, reset_envs=envs)
            return await self._with_reply_budget(host, len(envs), wire_format, run)

        return self._in_session(request, account, messages.Reset, act)

    def step(self, request: Request, account: Account) -> Awaitable[Reply]:
        async def act(message: messages.Step, session: Session, wire_format: WireFormat) -> bytes:
            host, envs = session.find(message.episode_ids)
            actions, steps = message.actions, message.steps
            if steps > account.limits.repeats:
                raise RefusedError(
                    422,
                    "steps",
                    f"this server allows at most {account.limits.repeats} steps per request, "
                    f"got {steps}",
                )
            if not host.auto_reset:
                repeat = partial(host.repeat, envs, actions, steps, wire_format)
                return await self._with_reply_budget(host, len(envs) * steps, wire_format, repeat)
            if steps != 1 or list(envs) != list(range(host.num_envs)):
                raise RefusedError(
                    422,
                    "auto_reset",
                    "episodes created with auto_reset are stepped together and once per request: "
                    f"expected steps=1 and all {host.num_envs} episodes in order, got "
                    f"steps={steps} and {len(envs)} episodes",
                )
            layout = message.layout if wire_format is WireFormat.MSGPACK else None
            large = not request.head.is_small
            step = partial(host.step, actions, wire_format, large, layout)
            return await self._with_reply_budget(host, len(envs), wire_format, step)

        return self._in_session(request, account, messages.Step, act)

    def call(self, request: Request, account: Account) -> Awaitable[Reply]:
        async def act(message: messages.Call, session: Session, wire_format: WireFormat) -> bytes:
            host, envs = session.find(message.episode_ids)
            self._settings.permissions.check_operation(message.operation, message.name)
            if message.operation == "set_attr" and len(message.values) != len(envs):
                raise RefusedError(
                    422, "values", f"expected {len(envs)} values, got {len(message.values)}"
                )
            fields = {name: getattr(message, name) for name in CALL_FIELDS}
            return await host.invoke(envs, wire_format, **fields)

        return self._in_session(request, account, messages.Call, act)

    def states(self, request: Request, account: Account) -> Awaitable[Reply]:
        async def act(message: messages.States, session: Session, wire_format: WireFormat) -> bytes:
            numbers = message.states
            if message.operation == "drop":
                return dumps({"dropped": await session.drop_states(numbers)}, wire_format)
            host, envs = session.find(message.episode_ids)
            if message.operation == "save":
                return await host.save_states(envs, session.state_numbers, wire_format)
            if message.operation == "load":
                if len(numbers) != len(envs):
                    raise RefusedError(
                        422, "states", f"expected {len(envs)} states, got {len(numbers)}"
                    )
                load = host.state_loader(envs, numbers, session.state_holders(numbers))
            else:
                source_host, sources = session.find(message.sources, distinct=False)
                if source_host is not host or len(sources) not in (1, len(envs)):
                    raise RefusedError(
                        422,
                        "sources",
                        f"expected 1 or {len(envs)} sources that were created by the same request "
                        f"as the episodes, got {len(sources)}",
                    )
                host.check_ready(sources)
                load = partial(host.clone, sources, envs, message.fork_rng)
            load_states = partial(
                commands.load_states, envs=envs, repeating=not host.auto_reset, load=load
            )
            run = partial(host.run, load_states, wire_format, reset_envs=envs)
            return await self._with_reply_budget(host, len(envs), wire_format, run)

        return self._in_session(request, account, messages.States, act)

    async def statistics(self, request: Request, account: Account) -> Reply:
        """Return step times, even while the session executes another request."""
        message, _, _ = await self._receive(request, messages.Statistics)
        session = self.sessions.get(message.session_id, account.owner)
        host, _ = session.find(message.episode_ids)
        return _ok(
            dumps({"times": host.times()}, request.head.reply_format), request.head.reply_format
        )

    async def delete_session(self, session_id: str, request: StarletteRequest) -> Response:
        """Close a session and its environments."""
        session = self.sessions.get(session_id, self.owner(request))
        await self.sessions.close(session, "closed by its client")
        wire_format = reply_format(request)
        return to_response(_ok(dumps({"closed": True}, wire_format), wire_format))

    def owner(self, request: StarletteRequest) -> Owner:
        """Return the owner of an ASGI request and record it for the access log."""
        header = request.headers.get("authorization")
        owner = self._settings.tokens.owner(None if header is None else header.encode("latin-1"))
        request.scope[OWNER_KEY] = owner.name
        return owner

    def is_admin(self, request: StarletteRequest) -> bool:
        try:
            return self.owner(request).is_admin
        except RefusedError:
            return False

    async def _in_session(
        self,
        request: Request,
        account: Account,
        model: type[S],
        act: Callable[[S, Session, WireFormat], Awaitable[bytes]],
    ) -> Reply:
        """Execute a request in its session; a repeated request gets the stored reply."""
        message, wire_format, digest = await self._receive(request, model)
        session = self.sessions.get(message.session_id, account.owner)

        async def reply() -> Reply:
            try:
                return _ok(await act(message, session, wire_format), wire_format)
            except Exception as error:
                refusal = refusal_of(error, self._settings.permissions.tracebacks)
                if refusal is None:
                    raise
                if isinstance(refusal, EnvsFailedError):
                    self.metrics.failures += refusal.is_env_failure
                    logger.warning("session %d, error %s: %s", session.number, refusal.id, error)
                return refused(refusal, wire_format)

        return await session.run_once(message.sequence, digest, reply)

    async def _receive(self, request: Request, model: type[M]) -> tuple[M, WireFormat, bytes]:
        """Return the message, the reply format, and a digest that identifies the request."""
        wire_format, limits = request.head.body_format, self._limits
        if wire_format is None:
            raise RefusedError(
                415, "content_type", f"expected a content type of {' or '.join(CONTENT_TYPES)}"
            )
        max_body = min(limits.body, SMALL_BODY) if request.head.is_small else limits.body
        body = await request.read(max_body, limits.upload)
        if request.head.is_small:
            message, digest = _decode(model, wire_format, limits.nodes, body)
        else:
            decoding = self._decode_in_thread(
                request, _decode, model, wire_format, limits.nodes, body
            )
            message, digest = await decoding
        fields = f"{request.head.path} {request.head.reply_format.content_type}"
        return message, request.head.reply_format, digest + fields.encode()

    async def _decode_in_thread(self, request: Request, decode: Callable[..., T], *args: Any) -> T:
        """Decode part of a request, in a thread unless it is small."""
        if request.head.is_small:
            return decode(*args)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoders, partial(decode, *args))

    def _with_reply_budget(
        self,
        host: EnvHost,
        observations: int,
        wire_format: WireFormat,
        act: Callable[[], Awaitable[bytes]],
    ) -> Awaitable[bytes]:
        """Check the size of the reply of ``act``; reserve memory if it is large; run ``act``."""
        size = host.replies.max_bytes(observations, wire_format)
        if size > self._limits.reply:
            raise RefusedError(
                413,
                "reply",
                f"the reply could contain {size} bytes of observations as {wire_format.name}, but "
                f"this server allows {self._limits.reply}: request fewer steps or fewer episodes",
            )
        return act() if size <= LARGE_REPLY else self._with_reserved_reply(size, act)

    async def _with_reserved_reply(self, size: int, act: Callable[[], Awaitable[bytes]]) -> bytes:
        async with self.replies.build_budget.reserve(size, self._limits.request):
            return await act()


def _decode_kwargs(values: dict[str, Any]) -> dict[str, Any]:
    return {name: from_client(value) for name, value in values.items()}


def _decode(model: type[M], wire_format: WireFormat, nodes: int, body: bytes) -> tuple[M, bytes]:
    try:
        node = loads(body, wire_format, nodes)
    except TooManyNodesError as error:
        raise RefusedError(413, "nodes", str(error)) from None
    except WireError as error:
        raise RefusedError(400, "malformed", str(error)) from None
    digest = body if len(body) <= MAX_INLINE_BODY else hashlib.blake2b(body).digest()
    return messages.message_of(model, node), digest


def _ok(body: bytes, wire_format: WireFormat) -> Reply:
    return Reply(200, wire_format.content_type, body)
