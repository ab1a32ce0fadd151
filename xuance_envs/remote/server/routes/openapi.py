"""OpenAPI document of all routes, including those registered outside FastAPI."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.routing import Route

from xuance_envs.remote.server.http.messages import RequestModel
from xuance_envs.remote.server.http.requests import Reply
from xuance_envs.remote.wire.constants import API_PREFIX
from xuance_envs.remote.wire.formats import WireFormat

OPENAPI_PATH = "/openapi.json"

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


def _described(path: str, model: type[RequestModel]) -> dict[str, Any]:
    def content(schema: dict[str, Any]) -> dict[str, Any]:
        return {wire_format.value: {"schema": schema} for wire_format in WireFormat}

    success = {"description": "success", "content": content({"type": "object"})}
    refusals = {str(status): answer for status, answer in REFUSALS.items()}
    return {
        "summary": model.__doc__,
        "operationId": path.removeprefix(f"{API_PREFIX}/").replace("/", "_"),
        "requestBody": {"required": True, "content": content(model.model_json_schema())},
        "responses": {"200": success, **refusals},
        **_SECURITY,
    }


def add_document(
    app: FastAPI,
    post_routes: Mapping[str, type[RequestModel]],
    root_path: str,
    check: Callable[[Request], Any],
) -> Reply:
    """Add a route for the OpenAPI document, and return its reply; ``check`` may refuse requests."""
    document = app.openapi()
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, model in post_routes.items():
        document["paths"][path] = {"post": _described(path, model)}
    if root_path:
        document["servers"] = [{"url": root_path}]
    # Encoded once: FastAPI would encode it for each request, which would delay other clients.
    reply = Reply(200, "application/json", json.dumps(document).encode())

    async def encoded(request: Request) -> Response:
        check(request)
        return Response(reply.body, reply.status, None, reply.content_type)

    app.router.routes.append(Route(OPENAPI_PATH, encoded))
    return reply
