"""What the scripts have in common: their options, how they begin, and where the answer goes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.shared.record import describe_run, replace_between, save, summary

OUTPUTS = ("json", "page", "table", "png")


def make_parser(name: str, question: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's question, as it stands there."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=question,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_rounds(parser: argparse.ArgumentParser, rounds: int = 7, seconds: float = 0.5) -> None:
    """How often and for how long each contender is timed."""
    add = parser.add_argument
    add("--rounds", type=int, default=rounds, help="timed runs of each contender, interleaved")
    add("--seconds", type=float, default=seconds, help="how long each of them lasts")


def add_peers(parser: argparse.ArgumentParser, choices: Iterable[str]) -> None:
    """Which other libraries take part: see :func:`chosen_peers`."""
    choices = list(choices)
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=choices,
        metavar="PEER",
        help=f"beside other libraries, as far as installed: these, or else all of "
        f"{', '.join(choices)}",
    )


def chosen_peers(args: argparse.Namespace, choices: Iterable[str]) -> list[str]:
    """None without ``--peers``, all for ``--peers`` alone."""
    if args.peers is None:
        return []
    return list(args.peers or choices)


def add_outputs(parser: argparse.ArgumentParser, table: str, picture: str | None = None) -> None:
    """Where the answer goes besides the terminal.

    Args:
        parser: gets the options.
        table: between which markers of a page the table belongs.
        picture: what there is to draw, if there is anything.
    """
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="keep everything that was measured")
    add("--page", type=Path, metavar="FILE", help="put the table between the file's markers")
    add("--table", default=table, metavar="NAME", help="of the markers (default: %(default)s)")
    if picture is not None:
        add("--png", type=Path, metavar="FILE", help=picture)


def begin() -> dict[str, Any]:
    """Describes the run, and shows that; the first thing to do, while the machine is quiet."""
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
    """Writes the files that were asked for; printing is the script's own.

    Args:
        args: the options, all of which are kept as settings.
        question: the script's docstring.
        run: what :func:`begin` gave.
        text: for the page: tables in Markdown.
        **content: for the JSON file.
    """
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name not in OUTPUTS}
        save(args.json, question, dict(run), settings=settings, **content)
    if args.page:
        replace_between(args.page, args.table, text)


def with_notes(table: str, notes: Iterable[str]) -> str:
    """A table with what its reader must know, in sentences below."""
    listed = [f"- {note}" for note in notes]
    return "\n".join([table, *([""] if listed else []), *listed])
