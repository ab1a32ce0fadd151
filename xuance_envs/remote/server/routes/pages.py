"""FastAPI application: its OpenAPI document, status page, metrics and routes for sessions."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.resources
import json
import re
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from xuance_envs._version import __version__
from xuance_envs.remote.server.access import ADMIN
from xuance_envs.remote.server.hosting.sessions import Session
from xuance_envs.remote.server.http.connection_manager import ConnectionManager
from xuance_envs.remote.server.http.messages import RequestModel
from xuance_envs.remote.server.http.requests import Reply, RequestHead, refused
from xuance_envs.remote.server.monitoring import log_requests
from xuance_envs.remote.server.routes.api import Api, failure, ok
from xuance_envs.remote.server.settings import Settings
from xuance_envs.remote.wire.constants import API_PREFIX, PROTOCOL_VERSION
from xuance_envs.remote.wire.failures import RefusedError
from xuance_envs.remote.wire.formats import WireFormat, dumps

OPENAPI_PATH = "/openapi.json"
HEALTHY = Reply(200, "application/json", b'{"status":"ok"}')
MAX_CACHED = 16

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is not JSON or msgpack"},
    401: {"description": "a token is missing or wrong"},
    403: {"description": "the operator does not allow this name"},
    404: {"description": "no session, episode, state or environment of this token has this id"},
    409: {"description": "an environment failed, or the session is not ready for the request"},
    413: {"description": "the request or its reply is too large"},
    415: {"description": "the content type is neither JSON nor msgpack"},
    422: {"description": "a field is missing, unknown or out of bounds"},
    429: {"description": "a limit on sessions, environments, states or requests is reached"},
}

_SECURITY = {"security": [{"token": list[str]()}]}

# Keyword arguments of routes that need a token.
NEEDS_TOKEN: dict[str, Any] = {"openapi_extra": _SECURITY, "responses": REFUSALS}


def create_app(api: Api, manager: ConnectionManager, settings: Settings) -> ASGIApp:
    """Create the application for the routes that ``ServerConnection`` does not answer itself."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        api.reload_tokens_on_sighup()
        loops = [manager.watch, api.sessions.expire, api.sessions.watch]
        loops += [api.watch_tokens] if settings.watch_tokens else []
        tasks = [asyncio.create_task(loop()) for loop in loops]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await api.sessions.close_all()
            api.decoders.shutdown(wait=False)

    app = FastAPI(
        title="xuance_envs",
        version=__version__,
        summary="Reinforcement-learning environments behind HTTP.",
        openapi_url=None,  # FastAPI's pages would load scripts from other servers
        lifespan=lifespan,
    )
    for kind in (RefusedError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(Exception, _failed)
    add_pages(app, api)
    document = add_document(app, api, manager.proxies.root_path)
    if not settings.pages_need_token:
        manager.add_static_reply(OPENAPI_PATH, document)
    manager.add_static_reply("/healthz", HEALTHY)
    return log_requests(app, api.metrics, manager.proxies)


def add_pages(app: FastAPI, api: Api) -> None:
    """Add the routes, which show token names only to admins."""
    metrics = api.metrics
    images: dict[int, tuple[NDArray[np.uint8], bytes]] = {}  # encoded, by session
    encode_lock = asyncio.Lock()
    page = importlib.resources.files(__package__).joinpath("status.html").read_text("utf-8")
    headers = {"Content-Security-Policy": policy_for(page), "X-Content-Type-Options": "nosniff"}

    def find(number: int) -> Session | None:
        return next((each for each in api.sessions if each.number == number), None)

    async def png_of(number: int, frame: NDArray[np.uint8]) -> bytes:
        """Encode a frame in a thread, once."""
        async with encode_lock:
            cached = images.pop(number, None)
            if cached is None or cached[0] is not frame:
                cached = frame, await asyncio.to_thread(png, frame)
            images[number] = cached
            while len(images) > MAX_CACHED:
                del images[next(iter(images))]
            return cached[1]

    @app.get(f"{API_PREFIX}/version")
    async def version() -> dict[str, Any]:
        """Return the versions of the server and the protocol. Requires no token."""
        return {"name": "xuance_envs", "version": __version__, "protocol": PROTOCOL_VERSION}

    @app.delete(f"{API_PREFIX}/session/{{session_id}}", **NEEDS_TOKEN)
    async def delete_session(session_id: str, request: Request) -> Response:
        """Close a session and its environments."""
        session = api.sessions.get(session_id, api.owner(request))
        await api.sessions.close(session, "closed by its client")
        wire_format = _reply_format(request)
        return _to_response(ok(dumps({"closed": True}, wire_format), wire_format))

    path = f"{API_PREFIX}/sessions"

    def check_admin(request: Request) -> None:
        if not api.owner(request).is_admin:
            declared = f"the tokens file declares one as 'NAME TOKEN {ADMIN}'"
            raise RefusedError(403, "admin", f"an admin token is required: {declared}")

    @app.get(path, summary="All sessions. Requires an admin token.", **NEEDS_TOKEN)
    async def sessions(request: Request) -> dict[str, Any]:
        check_admin(request)
        rows = [
            {
                "session": session.number,
                "name": session.account.owner.name,
                "environments": session.environments,
                "steps": session.steps,
                "age_seconds": round(monotonic() - session.opened_at, 1),
                "idle_seconds": round(session.idle_seconds, 1),
            }
            for session in api.sessions
        ]
        return {"sessions": rows}

    end_summary = "End any session. Requires an admin token."

    @app.delete(f"{path}/{{number}}", summary=end_summary, **NEEDS_TOKEN)
    async def end(number: int, request: Request) -> dict[str, Any]:
        check_admin(request)
        if (session := find(number)) is None:
            raise RefusedError(404, "session", f"no session {number}: it may have ended already")
        await api.sessions.close(session, "ended by an admin")
        return {"closed": True}

    @app.get("/", include_in_schema=False)
    async def status_page() -> Response:
        return Response(page, 200, headers, "text/html; charset=utf-8")

    @app.get("/status.json", summary="Data of the status page.")
    async def status(request: Request) -> dict[str, Any]:
        api.check_page_token(request)
        return {
            "version": __version__,
            "sessions": metrics.sessions,
            "environments": metrics.environments,
            "steps": metrics.steps,
            "steps_per_second": round(metrics.steps_per_second(), 1),
            "frames": [
                {"session": session.number, "environments": session.environments}
                for session in api.sessions
                if _shared_frame(session) is not None
            ],
            **({"names": api.sessions.by_name()} if api.is_admin(request) else {}),
        }

    refusals: dict[int | str, dict[str, Any]] = {
        404: {"description": "the session shares no frame"},
        422: {"description": "the session number is not an integer"},
    }
    frame_summary = "Last rendered frame of a session that shares its frames."

    @app.get("/frames/{number}.png", summary=frame_summary, responses=refusals)
    async def frame(number: int, request: Request) -> Response:
        api.check_page_token(request)
        session = find(number)
        if session is None or (shared := _shared_frame(session)) is None:
            raise RefusedError(404, "frame", f"session {number} shares no frame")
        image = await png_of(number, shared)
        return Response(image, 200, {"Cache-Control": "no-store"}, "image/png")

    @app.get("/healthz", summary="Health check.")
    async def health() -> Response:
        return _to_response(HEALTHY)

    @app.get("/metrics", summary="Metrics in Prometheus's text format.")
    async def counts(request: Request) -> Response:
        api.check_page_token(request)
        names = api.sessions.by_name() if api.is_admin(request) else None
        return Response(metrics.text(names), 200, None, "text/plain; version=0.0.4; charset=utf-8")


def _described(path: str, model: type[RequestModel]) -> dict[str, Any]:
    def content(schema: dict[str, Any]) -> dict[str, Any]:
        return {wire_format.value: {"schema": schema} for wire_format in WireFormat}

    success = {"description": "success", "content": content({"type": "object"})}
    return {
        "summary": model.__doc__,
        "operationId": path.removeprefix(f"{API_PREFIX}/").replace("/", "_"),
        "requestBody": {"required": True, "content": content(model.model_json_schema())},
        "responses": {200: success, **REFUSALS},
        **_SECURITY,
    }


def add_document(app: FastAPI, api: Api, root_path: str) -> Reply:
    """Add a route for the OpenAPI document, and return its reply."""
    document = app.openapi()
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, route in api.post_routes.items():
        document["paths"][path] = {"post": _described(path, route.model)}
    if root_path:
        document["servers"] = [{"url": root_path}]
    # Encoded once: FastAPI would encode it for each request, which would delay other clients.
    reply = Reply(200, "application/json", json.dumps(document).encode())

    @app.get(OPENAPI_PATH, include_in_schema=False)
    async def encoded(request: Request) -> Response:
        api.check_page_token(request)
        return _to_response(reply)

    return reply


def _to_response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers), reply.content_type)


def _reply_format(request: Request) -> WireFormat:
    """Return the format that the client accepts, or else the format of its request."""
    return RequestHead("", request.scope["headers"]).reply_format


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = RefusedError(error.status_code, "route", str(error.detail))
    elif not isinstance(error, RefusedError):  # without the input, which JSON may not represent
        error = RefusedError(422, "invalid", "the path or query is not valid")
    return _to_response(refused(error, _reply_format(request)))


async def _failed(request: Request, error: Exception) -> Response:
    return _to_response(failure(request.url.path, error, _reply_format(request)))


def policy_for(page: str) -> str:
    """Return a content security policy that permits a page's own script and style only."""
    hashes = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, text in re.findall(r"<(style|script)>(.*?)</", page, re.DOTALL)
    }
    return (
        f"default-src 'none'; style-src 'sha256-{hashes['style']}'; "
        f"script-src 'sha256-{hashes['script']}'; img-src blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _shared_frame(session: Session) -> NDArray[np.uint8] | None:
    if not session.share_frames:
        return None
    return next((host.frame for host in session.hosts if host.frame is not None), None)


def png(frame: NDArray[np.uint8]) -> bytes:
    height, width, _ = frame.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row starts with filter type 0
    rows[:, 1:] = frame.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    image = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + header, b"IDAT" + zlib.compress(rows.tobytes(), 1), b"IEND"):
        image += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return image
