"""Admin routes: list all sessions and end any of them."""

from __future__ import annotations

from time import monotonic
from typing import Any

from fastapi import FastAPI, Request

from xuance_envs.remote.server.access import ADMIN
from xuance_envs.remote.server.routes.api import Api
from xuance_envs.remote.server.routes.openapi import NEEDS_TOKEN
from xuance_envs.remote.wire.constants import API_PREFIX
from xuance_envs.remote.wire.failures import RefusedError


def add_admin_routes(app: FastAPI, api: Api) -> None:
    path = f"{API_PREFIX}/sessions"

    def check(request: Request) -> None:
        if not api.owner(request).is_admin:
            declared = f"the token file declares one as 'NAME TOKEN {ADMIN}'"
            raise RefusedError(403, "admin", f"an admin token is required: {declared}")

    @app.get(path, summary="All sessions. Requires an admin token.", **NEEDS_TOKEN)
    async def sessions(request: Request) -> dict[str, Any]:
        check(request)
        rows, now = [], monotonic()
        for session in api.sessions:
            since = session.idle_since
            row = {
                "session": session.number,
                "name": session.account.owner.name,
                "environments": session.environments,
                "steps": session.steps,
                "age_seconds": round(now - session.opened_at, 1),
                "idle_seconds": 0.0 if since is None else round(now - since, 1),
            }
            rows.append(row)
        return {"sessions": rows}

    end_summary = "End any session. Requires an admin token."

    @app.delete(f"{path}/{{number}}", summary=end_summary, **NEEDS_TOKEN)
    async def end(number: int, request: Request) -> dict[str, Any]:
        check(request)
        for session in api.sessions:
            if session.number == number:
                await api.sessions.close(session, "ended by an admin")
                return {"closed": True}
        raise RefusedError(404, "session", f"no session {number}: it may have ended already")
