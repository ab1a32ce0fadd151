"""Comparison of implementations over environments that differ in one property."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS
from benchmarks.shared.contenders import CONTENDERS, DEFAULT, KINDS, join
from benchmarks.shared.contest import Results, race
from benchmarks.shared.envs import MadeUpEnv
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
from xuance_envs.measure import Throughput
from xuance_envs.report import markdown_table

Sweep = dict[str, dict[str, Throughput]]
"""Measurements by the property's value and by implementation."""


def sweep_parser(name: str, question: str | None, *, num_envs: int) -> argparse.ArgumentParser:
    parser = make_parser(name, question)
    add = parser.add_argument
    add("--num-envs", type=int, default=num_envs, metavar="N", help="default: %(default)s")
    add(
        "--contenders",
        nargs="+",
        choices=CONTENDERS,
        default=list(DEFAULT),
        metavar="NAME",
        help=f"names: {', '.join(CONTENDERS)} (default: {', '.join(DEFAULT)})",
    )
    add_peers(parser, PEERS)
    add_rounds(parser, seconds=0.4)
    add_outputs(parser, f"{name} table", "plot the medians")
    return parser


def measure_sweep(
    args: argparse.Namespace, env_fns: Mapping[str, Callable[[], Any]], results: Results
) -> Sweep:
    """Time the implementations over each kind of environment."""
    names = dict.fromkeys([*args.contenders, *chosen_peers(args, PEERS)])
    sweep: Sweep = {}
    for value, env_fn in env_fns.items():
        functions = [env_fn] * args.num_envs
        make = partial(_join, names, functions, value, results)
        sweep[value] = race(args, value, make, results.note)
    return sweep


def _join(names: Any, functions: Any, value: str, results: Results, stack: Any) -> Any:
    return join(names, functions, MadeUpEnv.action_space, value, stack, results.note)


def answer(
    args: argparse.Namespace,
    question: str | None,
    label: str,
    env_fns: Mapping[str, Callable[[], Any]],
) -> None:
    """Measure, print and save a sweep; ``label`` names the property."""
    run = begin()
    results = Results()
    sweep = measure_sweep(args, env_fns, results)
    text = with_notes(sweep_table(label, sweep), results.notes)
    print(f"\n{args.num_envs} environments\n\n{text}")
    finish(args, question, run, text, notes=results.notes, results=sweep_records(sweep))
    if args.png:
        title = f"{args.num_envs} environments that do nothing, {run['machine']['cores']} cores"
        draw_sweep(args.png, title, label, sweep)


def contenders_in(sweep: Sweep) -> list[str]:
    """Return all implementations that took part at least once."""
    return list(dict.fromkeys(name for found in sweep.values() for name in found))


def sweep_table(title: str, sweep: Sweep) -> str:
    """Return steps per second: implementations by row, values by column."""
    rows = [
        [
            name,
            *(f"{found[name].median:,.0f}" if name in found else "-" for found in sweep.values()),
        ]
        for name in contenders_in(sweep)
    ]
    return markdown_table([f"steps/s by {title}", *sweep], rows)


def sweep_records(sweep: Sweep) -> list[dict[str, Any]]:
    """Return all figures for the JSON file."""
    return [
        {
            "value": value,
            "contender": result.name,
            "steps_per_second": result.median,
            "spread": result.spread,
            "rounds": result.rates,
        }
        for value, found in sweep.items()
        for result in found.values()
    ]


def draw_sweep(path: Path, title: str, label: str, sweep: Sweep) -> None:
    """Plot steps per second against equally spaced values; this package's lines are solid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.add_subplot()
    axis.set_title(title, fontsize="medium")
    values: Sequence[str] = list(sweep)
    for name in contenders_in(sweep):
        places = [k for k, value in enumerate(values) if name in sweep[value]]
        rates = [sweep[values[k]][name].median for k in places]
        style = "-" if KINDS[name] == "xuance_envs" else "--"
        axis.plot(places, rates, style, marker="o", markersize=4, label=name)
    axis.set_xticks(range(len(values)), values)
    axis.set(yscale="log", xlabel=label, ylabel="environment steps per second")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
