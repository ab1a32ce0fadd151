"""Contenders timed side by side, and what can be concluded from that."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tqdm import tqdm

from benchmarks.peers import PEERS, Entry, LeftOut, Peer, make_peer
from xuance_envs.measure import Runner, Throughput, measure, progress_ticks

WIDE_SPREAD = 0.1
"""Rounds that differ by more than this do not tell contenders apart that are close together."""

SPREAD_AGAIN = 0.15
"""Contenders whose rounds differ by more than this are timed in as many rounds again."""

MOST_NAMES = 4
"""More contenders with such rounds than these are only counted."""


_R = TypeVar("_R")


@dataclass
class Results:
    """What one run of a script found out.

    Attributes:
        panels: the contenders, by number of environments.
        notes: what a reader of the figures must know, in sentences.
    """

    panels: dict[int, list[Throughput]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def race(
    args: argparse.Namespace,
    what: str,
    make_runners: Callable[[ExitStack], Mapping[str, Runner]],
    note: Callable[[str], None],
) -> dict[str, Throughput]:
    """Times contenders in interleaved rounds; they live side by side meanwhile.

    Where the rounds of one differ by more than :data:`SPREAD_AGAIN`, there are as many rounds again
    of all: a ratio is one of figures that were taken within the same round.

    Args:
        args: has ``rounds`` and ``seconds``.
        what: is stepped, for the progress bar and the notes.
        make_runners: makes the contenders; the stack closes them.
        note: takes a sentence where the rounds differ too much.
    """

    def show(name: str, rate: float) -> None:
        bar.set_description(f"{what}: {name}", refresh=False)
        bar.set_postfix_str(f"{rate:,.0f} steps/s", refresh=False)
        bar.update()

    with (
        tqdm(desc=f"{what}: starting", unit="run", dynamic_ncols=True) as bar,
        ExitStack() as stack,
    ):
        runners = make_runners(stack)
        bar.reset(total=progress_ticks(len(runners), args.rounds))
        stack.enter_context(imports_uncollected())
        timed = partial(measure, runners, rounds=args.rounds, seconds=args.seconds, progress=show)
        measured = timed()
        if any(each.spread > SPREAD_AGAIN for each in measured.values()):
            bar.total += progress_ticks(len(runners), args.rounds)
            measured = _joined(measured, timed())
            note(f"{what}: twice the rounds, as they differed by over {SPREAD_AGAIN:.0%}.")
    for sentence in wide_spread(what, measured.values()):
        note(sentence)
    return measured


def _joined(
    first: Mapping[str, Throughput], second: Mapping[str, Throughput]
) -> dict[str, Throughput]:
    """The rounds of both, by contender."""
    return {
        name: Throughput(name, each.num_envs, each.rates + second[name].rates)
        for name, each in first.items()
    }


def in_turn(
    names: Iterable[str], rounds: Iterable[_R], unit: str, what: str = ""
) -> Iterator[tuple[_R, str]]:
    """Rounds of contenders, every second one in reverse, with a progress bar.

    Args:
        names: of the contenders.
        rounds: what each round goes by.
        unit: what one contender does in a round.
        what: is done by all of them, for the progress bar.

    Yields:
        The round, and whose turn it is.
    """
    order, turns = list(names), list(rounds)
    with tqdm(total=len(order) * len(turns), unit=unit, dynamic_ncols=True) as bar:
        for turn in turns:
            for name in order:
                bar.set_description(f"{what}, {name}" if what else name)
                yield turn, name
                bar.update()
            order.reverse()


@contextmanager
def imports_uncollected() -> Iterator[None]:
    """What is there already is not looked at by Python's collector, only what is made meanwhile.

    The collector would go through everything that the peers in this process have imported, torch
    above all, at the cost of whoever steps here, and not of those with a process of their own.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def wide_spread(what: str, measured: Iterable[Throughput]) -> list[str]:
    """A warning, if the rounds differ too much to conclude from small differences."""
    results = list(measured)
    wide = sorted((each for each in results if each.spread > WIDE_SPREAD), key=_spread)
    if not wide:
        return []
    names = ", ".join(f"{each.name} ({each.spread:.0%})" for each in wide)
    if len(wide) > MOST_NAMES:
        names = f"{len(wide)} of {len(results)} contenders, by up to {wide[-1].spread:.0%}"
    return [
        f"{what}: the rounds differ by more than {WIDE_SPREAD:.0%}, too much to conclude from "
        f"small differences, for {names}."
    ]


def _spread(result: Throughput) -> float:
    return result.spread


def join_peers(
    names: Iterable[str], entry: Entry, what: str, peers: Mapping[str, Peer] = PEERS
) -> dict[str, Runner]:
    """The peers that can take part, by title; the entry is told which cannot, and why."""
    runners: dict[str, Runner] = {}
    for name in names:
        peer = peers[name]
        try:
            runners[peer.title] = make_peer(peer, entry)
        except LeftOut as reason:
            why = str(reason).partition("\n")[0]
            entry.note(f"{peer.title}, {what}: left out, {why}.")
    return runners


def ratios(panel: Sequence[Throughput], others: Sequence[str]) -> dict[str, dict[str, float]]:
    """How many times as fast as each of the others every contender is, round by round."""
    by_name = {result.name: result for result in panel}
    return {
        result.name: {
            other: result.relative_to(by_name[other]) for other in others if other in by_name
        }
        for result in panel
    }
