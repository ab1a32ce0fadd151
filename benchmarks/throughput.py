"""How many environment steps per second, by number of environments?"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
from tqdm import tqdm

from benchmarks.ours import BACKENDS, WRAPPERS, make_ours
from benchmarks.peers import PEERS, Entry, LeftOut, make_peer
from benchmarks.record import describe_run, save, summary
from benchmarks.reference import BareLoop, Limit
from xuance_envs.measure import (
    Runner,
    StepLoop,
    Throughput,
    measure,
    progress_ticks,
    sample_actions,
)
from xuance_envs.report import markdown_table, plot_throughput

BARE = "bare loop over one"
LIMIT = "limit of the cores"
WIDE_SPREAD = 0.1
"""Rounds that differ by more than this do not tell contenders apart that are close together."""


@dataclass
class Results:
    """What one run of this script found out.

    Attributes:
        panels: the contenders, by number of environments.
        notes: what a reader of the figures must know, in sentences.
    """

    panels: dict[int, list[Throughput]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


RunnerMaker = Callable[[argparse.Namespace, int, Results, ExitStack], dict[str, Runner]]
"""Makes the contenders over so many environments; see :func:`make_runners`."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, nargs="+", default=[1, 8, 64, 256], metavar="N")
    add(
        "--backends",
        nargs="+",
        choices=BACKENDS,
        default=["dummy", "subproc", "caller"],
        metavar="BACKEND",
        help=f"ours: {', '.join(BACKENDS)}",
    )
    add("--wrapper", choices=WRAPPERS, default="gym_env", help="what our backends step")
    add(
        "--peers",
        nargs="*",
        choices=PEERS,
        metavar="PEER",
        help=f"beside other libraries, as far as installed: these, or else all of "
        f"{', '.join(PEERS)}",
    )
    add("--rounds", type=int, default=7, help="timed runs of each contender, interleaved")
    add("--seconds", type=float, default=0.5, help="how long each of them lasts")
    add("--json", type=Path, metavar="FILE", help="keep everything that was measured")
    add("--png", type=Path, metavar="FILE", help="draw the medians")
    args = parser.parse_args(argv)
    if args.peers == []:
        args.peers = list(PEERS)
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = describe_run()
    print(summary(run), flush=True)
    results = Results()
    for num_envs in dict.fromkeys(args.num_envs):
        results.panels[num_envs] = measure_size(args, num_envs, results, make_runners)
    print(f"\n{args.env}, random actions, {args.rounds} rounds of {args.seconds:g} s\n")
    print(table(results))
    for note in results.notes:
        print(f"- {note}")
    if args.json:
        settings = {name: getattr(args, name) for name in ("env", "wrapper", "rounds", "seconds")}
        found = {"settings": settings, "notes": results.notes, "results": records(results)}
        save(args.json, __doc__, run, **found)
    if args.png:
        draw(args, run, results)


def measure_size(
    args: argparse.Namespace, num_envs: int, results: Results, make_runners: RunnerMaker
) -> list[Throughput]:
    """Time all contenders over so many environments; they live side by side meanwhile."""

    def show(name: str, rate: float) -> None:
        bar.set_description(f"{num_envs} × {name}", refresh=False)
        bar.set_postfix_str(f"{rate:,.0f} steps/s", refresh=False)
        bar.update()

    with tqdm(desc=f"{num_envs} × starting", unit="run") as bar, ExitStack() as stack:
        runners = make_runners(args, num_envs, results, stack)
        bar.reset(total=progress_ticks(len(runners), args.rounds))
        measured = measure(runners, rounds=args.rounds, seconds=args.seconds, progress=show)
    wide = [result.name for result in measured.values() if result.spread > WIDE_SPREAD]
    if wide:
        results.note(
            f"{num_envs} environments: the rounds differ by more than {WIDE_SPREAD:.0%}, too much "
            f"to conclude from small differences, for {', '.join(wide)}."
        )
    return list(measured.values())


def make_runners(
    args: argparse.Namespace, num_envs: int, results: Results, stack: ExitStack
) -> dict[str, Runner]:
    """Every contender, after its first reset; the stack closes them."""
    with gymnasium.make(args.env) as env:
        actions = sample_actions(env.action_space, num_envs)
    bare = BareLoop(args.env, [row[:1] for row in actions])
    stack.callback(bare.close)
    limit = Limit(args.env, num_envs)
    stack.callback(limit.close)
    runners: dict[str, Runner] = {BARE: bare, LIMIT: limit}
    for name in args.backends:
        backend = BACKENDS[name]
        vec_env = stack.enter_context(make_ours(backend, args.wrapper, args.env, num_envs))
        runners[backend.title] = StepLoop(vec_env, num_envs, actions)
    entry = Entry(args.env, num_envs, actions, stack, results.note)
    for name in args.peers or ():
        title = PEERS[name].title
        try:
            runners[title] = make_peer(PEERS[name], entry)
        except LeftOut as reason:
            results.note(f"{title}, {num_envs} environments: left out, {reason}.")
    return runners


def baselines(results: Results) -> list[str]:
    """What the contenders are compared with: the limit, and the peers that took part."""
    names = {result.name for panel in results.panels.values() for result in panel}
    return [LIMIT, *(peer.title for peer in PEERS.values() if peer.title in names)]


def ratios(panel: Sequence[Throughput], others: Sequence[str]) -> dict[str, dict[str, float]]:
    """How many times as fast as each of the others every contender is, round by round."""
    by_name = {result.name: result for result in panel}
    return {
        result.name: {
            other: result.relative_to(by_name[other]) for other in others if other in by_name
        }
        for result in panel
    }


def table(results: Results) -> str:
    others = baselines(results)
    rows = []
    for panel in results.panels.values():
        ratio = ratios(panel, others)
        for result in panel:
            cells = [ratio[result.name].get(other) for other in others]
            rows.append(
                [
                    str(result.num_envs),
                    result.name,
                    f"{result.median:,.0f}",
                    f"{result.spread:.0%}",
                    *("-" if cell is None else f"{cell:.2f}" for cell in cells),
                ]
            )
    header = ["envs", "contender", "steps/s", "spread", "of the limit"]
    return markdown_table(header + [f"× {other}" for other in others[1:]], rows, words=2)


def records(results: Results) -> list[dict[str, Any]]:
    """Every contender's figures, for the JSON file."""
    others = baselines(results)
    return [
        {
            "environments": result.num_envs,
            "beside": num_envs,
            "contender": result.name,
            "steps_per_second": result.median,
            "spread": result.spread,
            "rounds": result.rates,
            "relative_to": ratios(panel, others)[result.name],
        }
        for num_envs, panel in results.panels.items()
        for result in panel
    ]


def draw(args: argparse.Namespace, run: dict[str, Any], results: Results) -> None:
    kinds = {backend.title: "xuance_envs" for backend in BACKENDS.values()}
    kinds |= {BARE: "reference"} | {peer.title: "others" for peer in PEERS.values()}
    machine = run["machine"]
    plot_throughput(
        results.panels,
        args.png,
        title=f"{args.env}, random actions, {machine['cores']} cores of {machine['cpu']}",
        kinds=kinds,
        limit=LIMIT,
    )


if __name__ == "__main__":
    main()
