"""The commands about files: what is in a file of states."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from xuance_envs.report import markdown_table
from xuance_envs.state.file_format import header_of

__all__ = ["add_state_arguments", "run_state"]


def add_state_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what ``state`` takes."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of states, .xenvs")


def run_state(args: argparse.Namespace) -> None:
    """Print what a file of states says of itself; nothing in it is executed."""
    data = args.file.read_bytes()
    header = header_of(data)
    when = datetime.datetime.fromtimestamp(args.file.stat().st_mtime).isoformat(" ", "seconds")
    print(
        f"{args.file}: {len(header['envs'])} environments, {len(data):,} bytes "
        f"({header['bytes']:,} in memory), written {when}"
    )
    print("saved with", ", ".join(f"{k} {v}" for k, v in header["versions"].items()))
    for digest, what in header["what"].items():
        print(f"\n{digest}:")
        for name, value in what["is"].items():
            shown = ", ".join(value) if isinstance(value, list) else value
            print(f"  {name}: {shown}")
        print("  of", ", ".join(f"{name} {version}" for name, version in what["versions"].items()))
    print()
    rows = [_row(number, env) for number, env in enumerate(header["envs"])]
    print(markdown_table(["environment", "kind", "bytes", "what", "kept besides"], rows))
    if header["shared"]:
        print("for all together:", ", ".join(header["shared"]))


def _row(number: int, env: dict[str, Any]) -> list[str]:
    extras = ", ".join(f"{name} ({length:,} bytes)" for name, length in env["extras"].items())
    return [str(number), env["kind"], f"{env['bytes']:,}", env["what"][:8], extras]
