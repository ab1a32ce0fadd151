"""Status page, health check, Prometheus metrics, and admin routes for sessions."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.resources
import re
import struct
import zlib
from time import monotonic
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from numpy.typing import NDArray

from xuance_envs._version import __version__
from xuance_envs.remote.server.access import ADMIN
from xuance_envs.remote.server.hosting.sessions import Session
from xuance_envs.remote.server.http.requests import Reply
from xuance_envs.remote.server.routes.api import Api
from xuance_envs.remote.server.routes.openapi import NEEDS_TOKEN
from xuance_envs.remote.wire.constants import API_PREFIX
from xuance_envs.remote.wire.failures import RefusedError

HEALTHY = Reply(200, "application/json", b'{"status":"ok"}')
MAX_CACHED = 16


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
        return Response(HEALTHY.body, HEALTHY.status, None, HEALTHY.content_type)

    @app.get("/metrics", summary="Metrics in Prometheus's text format.")
    async def counts(request: Request) -> Response:
        api.check_page_token(request)
        names = api.sessions.by_name() if api.is_admin(request) else None
        return Response(metrics.text(names), 200, None, "text/plain; version=0.0.4; charset=utf-8")


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
