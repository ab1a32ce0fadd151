"""Replies to refused and failed requests."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Response
from fastapi import Request as StarletteRequest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from xuance_envs.remote.server.http.requests import Reply, RequestHead, refused
from xuance_envs.remote.server.monitoring.request_log import loggable_path
from xuance_envs.remote.wire.failures import RefusedError
from xuance_envs.remote.wire.formats import WireFormat

logger = logging.getLogger("xuance_envs")


def add_error_handlers(app: FastAPI) -> None:
    for kind in (RefusedError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(Exception, _failed)


def failure(path: str, error: Exception, wire_format: WireFormat) -> Reply:
    logger.error("%s failed", loggable_path(path), exc_info=error)
    refusal = RefusedError(500, "server", "internal server error; see the server's log")
    return refused(refusal, wire_format)


def to_response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers), reply.content_type)


def reply_format(request: StarletteRequest) -> WireFormat:
    """Return the format that the client accepts, or else the format of its request."""
    return RequestHead("", request.scope["headers"]).reply_format


async def _refused(request: StarletteRequest, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = RefusedError(error.status_code, "route", str(error.detail))
    elif not isinstance(error, RefusedError):  # without the input, which JSON may not represent
        error = RefusedError(422, "invalid", "the path or query is not valid")
    return to_response(refused(error, reply_format(request)))


async def _failed(request: StarletteRequest, error: Exception) -> Response:
    return to_response(failure(request.url.path, error, reply_format(request)))
