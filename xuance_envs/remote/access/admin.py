"""The routes for the token of somebody who looks after the server: who has what, and ending it."""

from __future__ import annotations

from time import monotonic
from typing import Any

from fastapi import FastAPI, Request

from xuance_envs.remote.access.tokens import ADMIN
from xuance_envs.remote.api import Api
from xuance_envs.remote.failures import RefusedError
from xuance_envs.remote.openapi import REFUSALS
from xuance_envs.remote.sessions import Session
from xuance_envs.remote.wire.constants import API_PREFIX

__all__ = ["add_admin_routes"]


def add_admin_routes(app: FastAPI, api: Api) -> None:
    """Adds the routes to an application."""
    described: dict[str, Any] = {
        "openapi_extra": {"security": [{"token": []}]},
        "responses": REFUSALS,
    }

    def check(request: Request) -> None:
        if not api.owner(request).is_admin:
            raise RefusedError(
                403,
                "admin",
                f"this takes the token of an admin: a line 'NAME TOKEN {ADMIN}' in the file of "
                "tokens",
            )

    @app.get(f"{API_PREFIX}/sessions", summary="Every session there is. For admins.", **described)
    async def sessions(request: Request) -> dict[str, Any]:
        check(request)
        return {"sessions": [_session_row(session) for session in api.sessions]}

    @app.delete(
        f"{API_PREFIX}/sessions/{{number}}",
        summary="Ends anybody's session. For admins.",
        **described,
    )
    async def end(number: int, request: Request) -> dict[str, Any]:
        check(request)
        for session in api.sessions:
            if session.number == number:
                await api.sessions.close(session, "an admin ended it")
                return {"closed": True}
        raise RefusedError(404, "session", f"there is no session {number}")


def _session_row(session: Session) -> dict[str, Any]:
    since = session.idle_since
    return {
        "session": session.number,
        "name": session.account.owner.name,
        "environments": session.environments,
        "steps": session.steps,
        "age_seconds": round(monotonic() - session.opened_at, 1),
        "idle_seconds": 0.0 if since is None else round(monotonic() - since, 1),
    }
