"""API messages under ``/api/v1``, which bypass ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request

from xuance_envs.engine.system.current import system
from xuance_envs.errors import counted
from xuance_envs.remote.server.access import Owner
from xuance_envs.remote.server.hosting import commands
from xuance_envs.remote.server.hosting.env_host import EnvHost
from xuance_envs.remote.server.hosting.sessions import Session, Sessions
from xuance_envs.remote.server.http import messages
from xuance_envs.remote.server.http.requests import (
    CONTENT_TYPES,
    LARGE_REPLY,
    SMALL_BODY,
    LargeReplies,
    Reply,
    RequestCycle,
    RequestHead,
    refused,
)
from xuance_envs.remote.server.limits import Account, Accounts, Capacity, throttle
from xuance_envs.remote.server.monitoring import OWNER_KEY, Metrics, loggable_path
from xuance_envs.remote.server.settings import Settings
from xuance_envs.remote.wire.constants import API_PREFIX
from xuance_envs.remote.wire.failures import EnvsFailedError, RefusedError, refusal_of
from xuance_envs.remote.wire.formats import WireFormat, dumps
from xuance_envs.remote.wire.values import from_client

logger = logging.getLogger("xuance_envs")

M = TypeVar("M", bound=messages.RequestModel)
T = TypeVar("T")

TOKENS_INTERVAL = 1.0  # seconds between checks of the tokens file


class MessageRoute(NamedTuple):
    model: type[messages.RequestModel]
    # Receives the message, the session (or else the account) and the head; returns the body.
    act: Callable[[Any, Any, RequestHead], Awaitable[bytes]]
    in_session: bool = True  # requests run in the order of their session, and may be large


class Api:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self.metrics = Metrics(settings.access_log)
        self.replies = LargeReplies(settings.limits)
        self.capacity = Capacity(settings)
        self.accounts = Accounts(self.capacity)
        self.sessions = Sessions(self.capacity, self.metrics, self.replies)
        routes = {
            "session/create": MessageRoute(messages.CreateSession, self.create_session, False),
            "episode/create": MessageRoute(messages.CreateEpisodes, self.create_episodes),
            "episode/vectorized_reset": MessageRoute(messages.Reset, self.reset),
            "episode/vectorized_step": MessageRoute(messages.Step, self.step),
            "episode/call": MessageRoute(messages.Call, self.call),
            "episode/states": MessageRoute(messages.States, self.states),
            "episode/statistics": MessageRoute(messages.Statistics, self.statistics, False),
        }
        self.post_routes = {f"{API_PREFIX}/{path}": route for path, route in routes.items()}
        # Two threads suffice, because decoding holds the GIL most of the time.
        self.decoders = ThreadPoolExecutor(2, "xuance_envs-decode")

    def reload_tokens_on_sighup(self) -> None:
        """Reload the tokens on SIGHUP, if this thread can handle signals."""

        def reload() -> None:
            self._reload_task = asyncio.create_task(self.reload_tokens())

        with suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(system.HANGUP, reload)

    async def watch_tokens(self) -> None:
        while True:
            await asyncio.sleep(TOKENS_INTERVAL)
            await self.reload_tokens(only_if_changed=True)

    async def reload_tokens(self, only_if_changed: bool = False) -> None:
        """Reload the tokens, or keep them after an error; close the sessions of revoked tokens."""
        tokens = self._settings.tokens
        try:
            reload = tokens.reload_if_changed if only_if_changed else tokens.reload
            if await asyncio.to_thread(reload) is False:
                return
        except (OSError, ValueError) as error:
            logger.error("cannot reload the tokens, the previous ones stay valid: %s", error)
            return
        logger.info("reloaded the tokens: %d", len(tokens))
        for session in self.sessions:
            if not tokens.accepts(session.account.owner):
                await self.sessions.close(session, "token revoked")
        for limited in (self.capacity, self.sessions, self.accounts):
            limited.update_limits()

    async def answer(self, request: RequestCycle) -> Reply:
        account, head = None, request.head
        try:
            if head.method != "POST":
                raise RefusedError(405, "route", "Method Not Allowed")
            owner = self._settings.tokens.owner(head.authorization)
            request.owner = owner.name
            account = self.accounts.begin(owner)
            if (rate := account.quota.requests).per_second is not None:
                await throttle((rate,))
                rate.record()
            route = self.post_routes[head.path]
            if head.is_small:
                return await self._act(route, request, account)
            max_body = account.limits.body if route.in_session else SMALL_BODY
            async with self.accounts.reserve_body(account, head.length, max_body):
                return await self._act(route, request, account)
        except RefusedError as error:
            return refused(error, head.reply_format)
        except Exception as error:
            return failure(head.path, error, head.reply_format)
        finally:
            if account is not None:
                account.requests -= 1

    async def _act(self, route: MessageRoute, request: RequestCycle, account: Account) -> Reply:
        head = request.head
        message, digest = await self._receive(request, route.model)
        if not route.in_session:
            return ok(await route.act(message, account, head), head.reply_format)
        assert isinstance(message, messages.SessionRequestModel)
        session = self.sessions.get(message.session_id, account.owner)

        async def reply() -> Reply:
            try:
                return ok(await route.act(message, session, head), head.reply_format)
            except Exception as error:
                refusal = refusal_of(error, self._settings.permissions.tracebacks)
                if refusal is None:
                    raise
                if isinstance(refusal, EnvsFailedError):
                    self.metrics.failures += refusal.is_env_failure
                    logger.warning("session %d, error %s: %s", session.number, refusal.id, error)
                return refused(refusal, head.reply_format)

        return await session.run_once(message.sequence, digest, reply)

    async def _receive(self, request: RequestCycle, model: type[M]) -> tuple[M, bytes]:
        """Return the message, and a digest that identifies the request."""
        head, limits = request.head, self._limits
        if head.body_format is None:
            expected = b" or ".join(CONTENT_TYPES).decode()
            raise RefusedError(415, "content_type", f"expected a content type of {expected}")
        max_body = min(limits.body, SMALL_BODY) if head.is_small else limits.body
        body = await request.read(max_body, limits.upload)
        decode = partial(messages.decode, model, head.body_format, limits.nodes, body)
        message, digest = decode() if head.is_small else await self._run_in_thread(decode)
        return message, digest + head.digest

    async def _run_in_thread(self, decode: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.decoders, decode)

    async def create_session(
        self, message: messages.CreateSession, account: Account, head: RequestHead
    ) -> bytes:
        session = self.sessions.open(account, message)
        answer = {"session_id": session.id, "env_ids": self._settings.catalogue.ids}
        return dumps(answer, head.reply_format)

    async def create_episodes(
        self, message: messages.CreateEpisodes, session: Session, head: RequestHead
    ) -> bytes:
        def decode() -> dict[str, Any]:
            return {name: from_client(value) for name, value in message.kwargs.items()}

        kwargs = decode() if head.is_small else await self._run_in_thread(decode)
        functions = self._settings.catalogue.functions(message.env_id, message.num_envs, kwargs)
        workers = message.num_workers
        if workers > message.num_envs:
            expected = f"expected at most {message.num_envs}, one per environment, got {workers}"
            raise RefusedError(422, "num_workers", f"num_workers: {expected}")
        if workers > (limit := session.account.limits.workers):
            text = f"num_workers: this server allows at most {limit} per request, got {workers}"
            raise RefusedError(429, "workers", text)
        host, ids = await self.sessions.create_envs(session, message, functions)
        return dumps({"episode_ids": ids, **host.description}, head.reply_format)

    async def reset(self, message: messages.Reset, session: Session, head: RequestHead) -> bytes:
        host, envs = session.find(message.episode_ids)
        if isinstance(message.seed, list):
            _check_count("seed", "seed", message.seed, len(envs))
        self._settings.permissions.check_options(message.options)
        reset = partial(commands.reset, envs=envs, message=message)
        async with self._reply_budget(host, len(envs), head.reply_format):
            return await host.run(reset, head.reply_format, reset_envs=envs)

    async def step(self, message: messages.Step, session: Session, head: RequestHead) -> bytes:
        host, envs = session.find(message.episode_ids)
        steps, wire_format = message.steps, head.reply_format
        if steps > (limit := session.account.limits.repeats):
            text = f"this server limits steps per request to {limit}, got {steps}"
            raise RefusedError(422, "steps", text)
        if not host.auto_reset:
            async with self._reply_budget(host, len(envs) * steps, wire_format):
                return await host.repeat(envs, message, wire_format)
        every = range(host.num_envs)
        if steps != 1 or (envs != every and list(envs) != list(every)):
            rule = "episodes created with auto_reset are stepped together and once per request"
            expected = f"expected steps=1 and all episodes ({host.num_envs}) in order"
            text = f"{rule}: {expected}, got steps={steps} and {counted(len(envs), 'episode')}"
            raise RefusedError(422, "auto_reset", text)
        async with self._reply_budget(host, len(envs), wire_format):
            return await host.step(message, wire_format, not head.is_small)

    async def call(self, message: messages.Call, session: Session, head: RequestHead) -> bytes:
        host, envs = session.find(message.episode_ids)
        self._settings.permissions.check_operation(message.operation, message.name)
        if message.operation == "set_attr":
            _check_count("values", "value", message.values, len(envs))
        return await host.invoke(envs, message, head.reply_format)

    async def states(self, message: messages.States, session: Session, head: RequestHead) -> bytes:
        numbers, wire_format = message.states, head.reply_format
        if message.operation == "drop":
            return dumps({"dropped": await session.drop_states(numbers)}, wire_format)
        host, envs = session.find(message.episode_ids)
        if message.operation == "save":
            return await host.save_states(envs, session.state_numbers, wire_format)
        if message.operation == "load":
            _check_count("states", "state", numbers, len(envs))
            load = host.state_loader(envs, numbers, session.state_holders(numbers))
        else:
            source_host, sources = session.find(message.sources, distinct=False)
            if source_host is not host:
                text = "expected sources and episodes that one request created, got those of 2"
                raise RefusedError(422, "sources", text)
            if len(sources) not in (1, len(envs)):
                expected = f"one source, or one per episode ({len(envs)})"
                raise RefusedError(422, "sources", f"expected {expected}, got {len(sources)}")
            host.check_ready(sources)
            load = partial(host.clone, sources, envs, message.fork_rng)
        load_states = partial(
            commands.load_states, envs=envs, repeating=not host.auto_reset, load=load
        )
        async with self._reply_budget(host, len(envs), wire_format):
            return await host.run(load_states, wire_format, reset_envs=envs)

    async def statistics(
        self, message: messages.Statistics, account: Account, head: RequestHead
    ) -> bytes:
        """Return step times, even while the session executes another request."""
        session = self.sessions.get(message.session_id, account.owner)
        host, _ = session.find(message.episode_ids)
        return dumps({"times": host.times()}, head.reply_format)

    def owner(self, request: Request) -> Owner:
        """Return the owner of an ASGI request and record it for the access log."""
        owner = self._settings.tokens.owner(dict(request.scope["headers"]).get(b"authorization"))
        request.scope[OWNER_KEY] = owner.name
        return owner

    def check_page_token(self, request: Request) -> None:
        if self._settings.pages_need_token:
            self.owner(request)

    def is_admin(self, request: Request) -> bool:
        try:
            return self.owner(request).is_admin
        except RefusedError:
            return False

    def _reply_budget(
        self, host: EnvHost, observations: int, wire_format: WireFormat
    ) -> AbstractAsyncContextManager[None]:
        """Check the size of a reply before it is built; reserve memory for it if it is large."""
        size = host.replies.max_bytes(observations, wire_format)
        if size > self._limits.reply:
            reply = f"the reply could contain {size} bytes of observations as {wire_format.name}"
            allowed = f"this server allows {self._limits.reply}"
            text = f"{reply}, but {allowed}: request fewer steps or fewer episodes"
            raise RefusedError(413, "reply", text)
        if size <= LARGE_REPLY:
            return nullcontext()
        return self.replies.build_budget.reserve(size, self._limits.request)


def _check_count(code: str, unit: str, given: Sized, count: int) -> None:
    if len(given) != count:
        raise RefusedError(422, code, f"expected {counted(count, unit)}, got {len(given)}")


def ok(body: bytes, wire_format: WireFormat) -> Reply:
    return Reply(200, wire_format.content_type, body)


def failure(path: str, error: Exception, wire_format: WireFormat) -> Reply:
    logger.error("%s failed", loggable_path(path), exc_info=error)
    refusal = RefusedError(500, "server", "internal server error; see the server's log")
    return refused(refusal, wire_format)
