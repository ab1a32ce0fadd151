"""Command-line arguments and implementation of the commands ``tokens`` and ``sessions``."""

from __future__ import annotations

import argparse
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xuance_envs.errors import RemoteAuthenticationError, RemoteError
from xuance_envs.remote.cli import CommandError
from xuance_envs.remote.server.access import NAME, NAME_RULE
from xuance_envs.remote.wire.constants import API_PREFIX

TOKEN_BYTES = 24
TOKEN_VARIABLE = "XUANCE_ENVS_TOKEN"

# Arguments of the client, and the command-line options that set them.
_OPTIONS = {
    "base_url": "--url",
    "verify": "--ca",
    "user_token": f"--token-file or {TOKEN_VARIABLE}",
}

COLUMNS = ("session", "name", "environments", "steps", "age_seconds", "idle_seconds")


def add_tokens_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_tokens)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "print lines for a tokens file, each with a name and a new random token"
    new = actions.add_parser("new", help=summary, description=f"tokens new: {summary}.")
    add = new.add_argument
    add("names", nargs="*", metavar="NAME", help="name of a user: letters, digits and . @ + - _")
    add("--count", type=int, default=0, metavar="N",
        help="create N tokens with numbered names, such as student001")  # fmt: skip
    add("--prefix", default="student", metavar="TEXT",
        help="beginning of the numbered names (default: %(default)s)")  # fmt: skip


def run_tokens(args: argparse.Namespace) -> None:
    if args.count < 0:
        raise CommandError(f"--count: expected at least 0, got {args.count}")
    if not (args.names or args.count):
        raise CommandError("no token to create: give names, or --count N with N of at least 1")
    digits = len(str(args.count))
    numbered = (f"{args.prefix}{number:0{digits}}" for number in range(1, args.count + 1))
    names = [*args.names, *numbered]
    for name in names:
        if not NAME.fullmatch(name):
            raise CommandError(f"NAME or --prefix: expected {NAME_RULE}, got {name!a}")
    width = max(map(len, names))
    for name in names:
        print(f"{name:{width}}  {secrets.token_hex(TOKEN_BYTES)}")


def add_sessions_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_sessions)
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8001",
        help="address of the server (default: %(default)s)")  # fmt: skip
    add("--token-file", type=Path, metavar="FILE",
        help="file that contains only an admin token (default: the token in the environment "
        f"variable {TOKEN_VARIABLE})")  # fmt: skip
    add("--ca", type=Path, metavar="FILE", help="file of CA certificates for an https server")
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
        raise CommandError(f"{_OPTIONS.get(name, name)}{colon}{text}") from error
    try:
        for number in args.end:
            connection.request("DELETE", f"{API_PREFIX}/sessions/{number}")
        answer = connection.request("GET", f"{API_PREFIX}/sessions", repeatable=True)
        print(json.dumps(answer) if args.json else _session_table(answer["sessions"]))
    except RemoteAuthenticationError as error:
        remedy = f"give --token-file FILE or set {TOKEN_VARIABLE}"
        raise CommandError(f"{connection.server} requires an admin token: {remedy}") from error
    except RemoteError as error:
        raise CommandError(str(error)) from error
    finally:
        connection.close()


def _session_table(sessions: Sequence[Mapping[str, Any]]) -> str:
    rows = [COLUMNS, *([str(each[name]) for name in COLUMNS] for each in sessions)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
