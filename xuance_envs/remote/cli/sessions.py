"""Command-line arguments and implementation of ``python -m xuance_envs sessions``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xuance_envs.errors import RemoteAuthenticationError, RemoteError
from xuance_envs.remote.cli.serve import ServeError
from xuance_envs.remote.wire.constants import API_PREFIX

TOKEN_VARIABLE = "XUANCE_ENVS_TOKEN"

# Options, by the client's argument that they set.
_OPTIONS = {
    "base_url": "--url",
    "verify": "--ca",
    "user_token": f"--token-file or {TOKEN_VARIABLE}",
}

COLUMNS = ("session", "name", "environments", "steps", "age_seconds", "idle_seconds")


def add_sessions_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8001",
        help="address of the server (default: %(default)s)")  # fmt: skip
    add("--token-file", type=Path, metavar="FILE",
        help="file that contains only an admin token (default: the token in the environment "
        f"variable {TOKEN_VARIABLE})")  # fmt: skip
    add("--ca", type=Path, metavar="FILE",
        help="file of CA certificates for an https server")  # fmt: skip
    add("--end", type=int, action="append", default=[], metavar="SESSION",
        help="number of a session to end; may be repeated")  # fmt: skip
    add("--json", action="store_true", help="print the server's reply as JSON")


def run_sessions(args: argparse.Namespace) -> None:
    """End the given sessions, then list the remaining ones."""
    try:
        from xuance_envs.remote.client.api_client import ApiClient

        token = os.environ.get(TOKEN_VARIABLE)
        if args.token_file is not None:
            token = args.token_file.read_text(encoding="utf-8").strip()
        connection = ApiClient(args.url, token, 30.0, args.ca or True)
    except (ImportError, OSError, ValueError) as error:
        name, colon, text = str(error).partition(":")
        raise ServeError(f"{_OPTIONS.get(name, name)}{colon}{text}") from error
    try:
        for number in args.end:
            connection.request("DELETE", f"{API_PREFIX}/sessions/{number}")
        answer = connection.request("GET", f"{API_PREFIX}/sessions", repeatable=True)
        print(json.dumps(answer) if args.json else _session_table(answer["sessions"]))
    except RemoteAuthenticationError as error:
        remedy = f"give --token-file FILE or set {TOKEN_VARIABLE}"
        raise ServeError(f"{connection.server} requires an admin token: {remedy}") from error
    except RemoteError as error:
        raise ServeError(str(error)) from error
    finally:
        connection.close()


def _session_table(sessions: Sequence[Mapping[str, Any]]) -> str:
    rows = [COLUMNS, *([str(each[name]) for name in COLUMNS] for each in sessions)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
