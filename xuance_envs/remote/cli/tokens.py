"""Command-line arguments and implementation of ``python -m xuance_envs tokens``."""

from __future__ import annotations

import argparse
import secrets

from xuance_envs.remote.cli.serve import ServeError
from xuance_envs.remote.server.access import NAME, NAME_RULE

TOKEN_BYTES = 24


def add_tokens_arguments(parser: argparse.ArgumentParser) -> None:
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
    """Print one line per name."""
    if args.count < 0:
        raise ServeError(f"--count: expected at least 0, got {args.count}")
    if not (args.names or args.count):
        raise ServeError("no token to create: give names, or --count N with N of at least 1")
    digits = len(str(args.count))
    numbered = (f"{args.prefix}{number:0{digits}}" for number in range(1, args.count + 1))
    names = [*args.names, *numbered]
    for name in names:
        if not NAME.fullmatch(name):
            raise ServeError(f"NAME or --prefix: expected {NAME_RULE}, got {name!a}")
    width = max(map(len, names))
    for name in names:
        print(f"{name:{width}}  {secrets.token_hex(TOKEN_BYTES)}")
