"""What ``python -m xuance_envs sessions`` takes and does: a server's sessions, seen and ended."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xuance_envs.errors import RemoteAuthenticationError, RemoteError
from xuance_envs.remote.cli import ServeError
from xuance_envs.remote.wire.constants import API_PREFIX

if TYPE_CHECKING:
    from xuance_envs.remote.client_session import ApiClient

__all__ = ["TOKEN_VARIABLE", "add_sessions_arguments", "run_sessions"]

TOKEN_VARIABLE = "XUANCE_ENVS_TOKEN"

COLUMNS = ("session", "name", "environments", "steps", "age_seconds", "idle_seconds")


def add_sessions_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what ``sessions`` takes."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8001", help="the server (default: %(default)s)")
    add("--token-file", type=Path, metavar="FILE",
        help="file with the token of an admin, and nothing else; the variable "
        f"{TOKEN_VARIABLE} does the same")  # fmt: skip
    add("--ca", type=Path, metavar="FILE",
        help="certificates of the authorities that vouch for an https server")  # fmt: skip
    add("--end", type=int, action="append", default=[], metavar="SESSION",
        help="end this session; may be given more than once")  # fmt: skip
    add("--json", action="store_true", help="print what the server answers")


def run_sessions(args: argparse.Namespace) -> None:
    """Ends the sessions that are to be ended, and lists those there are."""
    try:
        from xuance_envs.remote.client_session import ApiClient

        token = os.environ.get(TOKEN_VARIABLE)
        if args.token_file is not None:
            token = args.token_file.read_text(encoding="utf-8").strip()
        connection = ApiClient(args.url, token, 30.0, args.ca or True)
    except (ImportError, OSError, ValueError) as error:
        raise ServeError(str(error)) from error
    try:
        for number in args.end:
            connection.request("DELETE", f"{API_PREFIX}/sessions/{number}")
        print(_listed(connection, args.json))
    except RemoteAuthenticationError as error:
        raise ServeError(
            f"{connection.server}: expected the token of an admin of this server, in a file that "
            f"--token-file names or in {TOKEN_VARIABLE}"
        ) from error
    except RemoteError as error:
        raise ServeError(str(error)) from error
    finally:
        connection.close()


def _listed(connection: ApiClient, as_json: bool) -> str:
    answer: Any = connection.request("GET", f"{API_PREFIX}/sessions", repeatable=True)
    if as_json:
        return json.dumps(answer)
    rows = [COLUMNS, *([str(each[name]) for name in COLUMNS] for each in answer["sessions"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
