"""OpenAPI descriptions of routes registered outside FastAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from xuance_envs.remote import messages
from xuance_envs.remote.wire.constants import API_PREFIX
from xuance_envs.remote.wire.formats import WireFormat

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the body is not JSON or msgpack"},
    401: {"description": "a token is missing or wrong"},
    403: {"description": "the operator does not allow this name"},
    404: {"description": "no session, episode, state or environment of this token has this id"},
    409: {"description": "an environment failed, or the session's state does not permit this"},
    413: {"description": "the request or its reply is too large"},
    415: {"description": "the content type is neither JSON nor msgpack"},
    422: {"description": "a field is missing, unknown or out of bounds"},
    429: {"description": "a limit on sessions, environments, states or requests is reached"},
}


def _described(path: str, model: type[messages.RequestModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    answer = {form.value: {"schema": {"type": "object"}} for form in WireFormat}
    return {
        "summary": model.__doc__,
        "operationId": path.removeprefix(f"{API_PREFIX}/").replace("/", "_"),
        "requestBody": {
            "required": True,
            "content": {form.value: {"schema": schema} for form in WireFormat},
        },
        "responses": {
            "200": {"description": "done", "content": answer},
            **{str(status): answer for status, answer in REFUSALS.items()},
        },
        "security": [{"token": []}],
    }


def add_descriptions(app: FastAPI, post_routes: Mapping[str, type[messages.RequestModel]]) -> None:
    """Add the POST routes and token authentication to an application's OpenAPI document."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, model in post_routes.items():
            schema["paths"][path] = {"post": _described(path, model)}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
