"""Measure environment steps per second, by number of environments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium

from benchmarks.peers import PEERS, Entry
from benchmarks.shared.contenders import KINDS
from benchmarks.shared.contest import Results, join_peers, race, ratios
from benchmarks.shared.ours import BACKENDS, WRAPPERS, make_ours
from benchmarks.shared.question import (
    add_outputs,
    add_peers,
    add_rounds,
    begin,
    chosen_peers,
    finish,
    make_parser,
    with_notes,
)
from benchmarks.shared.reference import LIMIT, BareLoop, Limit
from xuance_envs.measure import Runner, StepLoop, sample_actions
from xuance_envs.report import markdown_table, plot_throughput

BARE = "bare loop over one"
MOST_COLUMNS = 3
"""Number of baselines with a column; the JSON file has all ratios."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("throughput", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, nargs="+", default=[1, 8, 64, 256], metavar="N")
    add(
        "--backends",
        nargs="+",
        choices=BACKENDS,
        default=["dummy", "subproc", "caller"],
        metavar="BACKEND",
        help=f"of this package: {', '.join(BACKENDS)}",
    )
    add(
        "--wrapper",
        choices=WRAPPERS,
        default="gym_env",
        help="environments of this package's backends: Gym_Env, or plain gymnasium.make",
    )
    add_peers(parser, PEERS)
    add_rounds(parser)
    add_outputs(parser, "throughput table", "plot the medians")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    results = Results()
    for num_envs in dict.fromkeys(args.num_envs):
        make = partial(make_runners, args, num_envs, results)
        measured = race(args, f"{num_envs} environments", make, results.note)
        results.panels[num_envs] = list(measured.values())
    text = with_notes(table(results), results.notes)
    print(f"\n{args.env}, random actions, {args.rounds} rounds of {args.seconds:g} s\n\n{text}")
    finish(args, __doc__, run, text, notes=results.notes, results=records(results))
    if args.png:
        draw(args, run, results)


def make_runners(
    args: argparse.Namespace, num_envs: int, results: Results, stack: ExitStack
) -> dict[str, Runner]:
    """Make and reset all implementations; the stack closes them."""
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
    return runners | join_peers(chosen_peers(args, PEERS), entry, f"{num_envs} environments")


def baselines(results: Results) -> list[str]:
    """Return the baselines: :data:`LIMIT`, and the other libraries that took part."""
    names = {result.name for panel in results.panels.values() for result in panel}
    return [LIMIT, *(peer.title for peer in PEERS.values() if peer.title in names)]


def columns(results: Results) -> list[str]:
    """Return the baselines with a column: all, or only the usual ones if there are many."""
    others = baselines(results)
    usual = [PEERS[name].title for name in ("gymnasium-sync", "gymnasium-async", "envpool")]
    if len(others) - 1 <= MOST_COLUMNS:
        return others
    return [LIMIT, *(other for other in usual if other in others)]


def table(results: Results) -> str:
    others = columns(results)
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
    header = ["envs", "implementation", "steps/s", "spread", "of the limit"]
    return markdown_table(header + [f"× {other}" for other in others[1:]], rows, words=2)


def records(results: Results) -> list[dict[str, Any]]:
    """Return all figures for the JSON file."""
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
    machine = run["machine"]
    plot_throughput(
        results.panels,
        args.png,
        title=f"{args.env}, random actions, {machine['cores']} cores of {machine['cpu']}",
        kinds=KINDS | {BARE: "reference"},
        limit=LIMIT,
    )


if __name__ == "__main__":
    main()
