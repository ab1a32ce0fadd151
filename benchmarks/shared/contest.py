"""Interleaved rounds of several implementations, and their evaluation."""

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
"""Spread above which small differences are not significant."""

SPREAD_AGAIN = 0.15
"""Spread above which the rounds are repeated."""

MOST_NAMES = 4
"""Number of implementations up to which a note lists names."""


_R = TypeVar("_R")


@dataclass
class Results:
    """Measurements of one script by number of environments, and notes for the reader."""

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
    """Time implementations in interleaved rounds; all of them exist at the same time.

    If the spread of one exceeds :data:`SPREAD_AGAIN`, all run the same number of rounds again,
    because ratios compare figures of the same round.
    """

    def show(name: str, rate: float) -> None:
        bar.set_description(f"{what}: {name}", refresh=False)
        bar.set_postfix_str(f"{rate:,.0f} steps/s", refresh=False)
        bar.update()

    with (
        tqdm(desc=f"{what}: starting", unit="run", dynamic_ncols=True, disable=None) as bar,
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
            note(f"{what}: rounds doubled, because they differed by more than {SPREAD_AGAIN:.0%}.")
    for sentence in wide_spread(what, measured.values()):
        note(sentence)
    return measured


def _joined(
    first: Mapping[str, Throughput], second: Mapping[str, Throughput]
) -> dict[str, Throughput]:
    """Concatenate the rounds of two measurements."""
    return {
        name: Throughput(name, each.num_envs, each.rates + second[name].rates)
        for name, each in first.items()
    }


def in_turn(
    names: Iterable[str], rounds: Iterable[_R], unit: str, what: str = ""
) -> Iterator[tuple[_R, str]]:
    """Yield rounds and names, every second round in reverse, with a progress bar."""
    order, turns = list(names), list(rounds)
    with tqdm(total=len(order) * len(turns), unit=unit, dynamic_ncols=True, disable=None) as bar:
        for turn in turns:
            for name in order:
                bar.set_description(f"{what}, {name}" if what else name)
                yield turn, name
                bar.update()
            order.reverse()


@contextmanager
def imports_uncollected() -> Iterator[None]:
    """Exclude existing objects from garbage collection within this context.

    The collector would otherwise traverse the imports of all libraries in this process, above all
    torch. This would slow down only the implementations that step in this process.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def wide_spread(what: str, measured: Iterable[Throughput]) -> list[str]:
    """Return a warning if the rounds differ too much for small differences to be significant."""
    results = list(measured)
    wide = sorted((each for each in results if each.spread > WIDE_SPREAD), key=_spread)
    if not wide:
        return []
    names = ", ".join(f"{each.name} ({each.spread:.0%})" for each in wide)
    if len(wide) > MOST_NAMES:
        names = f"{len(wide)} of {len(results)} implementations, up to {wide[-1].spread:.0%}"
    return [
        f"{what}: rounds differ by more than {WIDE_SPREAD:.0%}, so small differences are not "
        f"significant: {names}."
    ]


def _spread(result: Throughput) -> float:
    return result.spread


def join_peers(
    names: Iterable[str], entry: Entry, what: str, peers: Mapping[str, Peer] = PEERS
) -> dict[str, Runner]:
    """Make the libraries that can take part, by title; note the reason for all others."""
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
    """Return each implementation's speed relative to the others, as the median over the rounds."""
    by_name = {result.name: result for result in panel}
    return {
        result.name: {
            other: result.relative_to(by_name[other]) for other in others if other in by_name
        }
        for result in panel
    }
