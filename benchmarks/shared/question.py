"""Shared code of the scripts: options, start and output."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.shared.record import describe_run, replace_between, save, summary

OUTPUTS = ("json", "page", "table", "png")


def make_parser(name: str, question: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the script's docstring as help."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=question,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_rounds(parser: argparse.ArgumentParser, rounds: int = 7, seconds: float = 0.5) -> None:
    add = parser.add_argument
    add("--rounds", type=int, default=rounds, help="interleaved timed runs of each implementation")
    add("--seconds", type=float, default=seconds, help="duration of each run")


def add_peers(parser: argparse.ArgumentParser, choices: Iterable[str]) -> None:
    """Add the option for other libraries; see :func:`chosen_peers`."""
    choices = list(choices)
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=choices,
        metavar="PEER",
        help=f"also measure these installed libraries; without names, all of {', '.join(choices)}",
    )


def chosen_peers(args: argparse.Namespace, choices: Iterable[str]) -> list[str]:
    """Return the selected libraries: none without ``--peers``, all for ``--peers`` alone."""
    if args.peers is None:
        return []
    return list(args.peers or choices)


def add_outputs(parser: argparse.ArgumentParser, table: str, picture: str | None = None) -> None:
    """Add the options for output files; ``table`` names the page's markers."""
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write all measurements")
    add("--page", type=Path, metavar="FILE", help="write the table between the file's markers")
    add("--table", default=table, metavar="NAME", help="name of the markers (default: %(default)s)")
    if picture is not None:
        add("--png", type=Path, metavar="FILE", help=picture)


def begin() -> dict[str, Any]:
    """Record and print the run's description; call this first, while the machine is idle."""
    run = describe_run()
    print(summary(run), flush=True)
    return run


def finish(
    args: argparse.Namespace,
    question: str | None,
    run: Mapping[str, Any],
    text: str,
    **content: Any,
) -> None:
    """Write the requested files; the script itself prints."""
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name not in OUTPUTS}
        save(args.json, question, dict(run), settings=settings, **content)
    if args.page:
        replace_between(args.page, args.table, text)


def with_notes(table: str, notes: Iterable[str]) -> str:
    """Append notes to a table."""
    listed = [f"- {note}" for note in notes]
    return "\n".join([table, *([""] if listed else []), *listed])
