"""Measure the overhead of the compatibility interfaces, against the libraries they replace."""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium

from benchmarks.peers import PEERS, Entry, Peer
from benchmarks.peers.tianshou import bare, stepped_by
from benchmarks.shared.contest import join_peers, race
from benchmarks.shared.question import (
    add_outputs,
    add_rounds,
    begin,
    finish,
    make_parser,
    with_notes,
)
from xuance_envs.engine.cpus import available_cpus
from xuance_envs.measure import Runner, StepLoop, Throughput, sample_actions
from xuance_envs.report import markdown_table

Maker = Callable[[Entry], Runner]


def ours(path: str, **options: Any) -> Maker:
    """Return a function that creates a runner for one of this package's classes."""
    module, _, name = path.rpartition(".")

    def make(entry: Entry) -> StepLoop:
        vec_env = getattr(importlib.import_module(module), name)(entry.env_fns(), **options)
        entry.stack.callback(vec_env.close)
        vec_env.reset()
        return StepLoop(vec_env, entry.num_envs, entry.actions)

    return make


THEIRS, OURS = "tianshou.env", "xuance_envs.compat.tianshou"
WAIT_NUM = 4


def tianshou(module: str, name: str, **options: Any) -> Maker:
    """Return a function that creates a runner of Tianshou's interface; its steps include resets."""
    return lambda entry: stepped_by(module, name, entry, **options)


def bare_pipes(one_each: bool) -> Maker:
    """Return a function that creates a bare loop with a process per environment or per CPU."""

    def make(entry: Entry) -> Runner:
        cpus = min(available_cpus(), entry.num_envs)
        processes = entry.num_envs if one_each else cpus
        return bare(entry, WAIT_NUM, processes, spins=processes < available_cpus())

    return make


def engine(entry: Entry) -> StepLoop:
    """Create a runner of the environment's own vectorized implementation."""
    bare = gymnasium.make_vec(
        entry.env_id, num_envs=entry.num_envs, vectorization_mode="vector_entry_point"
    )
    entry.stack.callback(bare.close)
    bare.reset(seed=0)
    return StepLoop(bare, entry.num_envs, entry.actions)


def native(entry: Entry) -> StepLoop:
    """Create a runner of the same implementation through ``from_gymnasium``."""
    from xuance_envs.compat.native import make_native

    made = make_native(entry.env_id, entry.num_envs)
    entry.stack.callback(made.close)
    made.reset(seed=0)
    return StepLoop(made, entry.num_envs, entry.actions)


def panels() -> dict[str, tuple[list[int], dict[str, Maker], str]]:
    """Return each topic's numbers of environments, its implementations, and its baseline."""
    peer = {name: known.make for name, known in PEERS.items()}
    return {
        "gymnasium": (
            [64],
            {
                "Gymnasium AsyncVectorEnv": peer["gymnasium-async"],
                "compat AsyncVectorEnv": ours("xuance_envs.compat.gymnasium.AsyncVectorEnv"),
                "compat AsyncVectorEnv, same step": ours(
                    "xuance_envs.compat.gymnasium.AsyncVectorEnv", autoreset_mode="SameStep"
                ),
                "SubprocVecEnv": ours("xuance_envs.SubprocVecEnv"),
                "compat SyncVectorEnv, same step": ours(
                    "xuance_envs.compat.gymnasium.SyncVectorEnv", autoreset_mode="SameStep"
                ),
                "DummyVecEnv": ours("xuance_envs.DummyVecEnv"),
            },
            "Gymnasium AsyncVectorEnv",
        ),
        "sb3": (
            [8, 64],
            {
                "SB3 SubprocVecEnv": peer["sb3-subproc"],
                "compat SubprocVecEnv": ours("xuance_envs.compat.sb3.SubprocVecEnv"),
                "compat SubprocVecEnv, caller_steps": ours(
                    "xuance_envs.compat.sb3.SubprocVecEnv", caller_steps=True
                ),
                "SubprocVecEnv": ours("xuance_envs.SubprocVecEnv"),
            },
            "SB3 SubprocVecEnv",
        ),
        "native": (
            [64, 1024],
            {
                "bare engine": engine,
                "from_gymnasium": native,
                "EnvPool": peer["envpool"],
            },
            "bare engine",
        ),
        "tianshou": (
            [8],
            {
                "Tianshou SubprocVectorEnv": tianshou(THEIRS, "SubprocVectorEnv"),
                "Tianshou ShmemVectorEnv": tianshou(THEIRS, "ShmemVectorEnv"),
                "compat SubprocVectorEnv": tianshou(OURS, "SubprocVectorEnv"),
                "compat SubprocVectorEnv, caller_steps": tianshou(
                    OURS, "SubprocVectorEnv", caller_steps=True
                ),
                "Tianshou ShmemVectorEnv, wait_num=4": tianshou(
                    THEIRS, "ShmemVectorEnv", wait_num=WAIT_NUM
                ),
                "compat ShmemVectorEnv, wait_num=4": tianshou(
                    OURS, "ShmemVectorEnv", wait_num=WAIT_NUM
                ),
                "compat ShmemVectorEnv, wait_num=4, in_series=auto": tianshou(
                    OURS, "ShmemVectorEnv", wait_num=WAIT_NUM, in_series="auto"
                ),
                # Upper bounds: bare loops neither check nor handle errors. SubprocVecEnv has no
                # wait_num, no dicts of infos and no call for each reset.
                "bare loop over pipes, wait_num=4": bare_pipes(one_each=True),
                "bare loop over pipes, wait_num=4, a process per CPU": bare_pipes(one_each=False),
                "SubprocVecEnv": ours("xuance_envs.SubprocVecEnv"),
                "SubprocVecEnv, caller_steps": ours("xuance_envs.SubprocVecEnv", caller_steps=True),
            },
            "Tianshou SubprocVectorEnv",
        ),
    }


TOPICS = ("gymnasium", "sb3", "native", "tianshou")
ELSEWHERE = {"tianshou"}
"""Topics that need their own virtual environment: ``.venv-tianshou/bin/python -m ...``."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("compat", __doc__)
    add = parser.add_argument
    add(
        "topics",
        nargs="*",
        metavar="TOPIC",
        help=f"one of {', '.join(TOPICS)} (default: all but the last)",
    )
    add("--num-envs", type=int, nargs="+", metavar="N", help="default: those of the topic")
    add_rounds(parser)
    add_outputs(parser, "compat table")
    args = parser.parse_args(argv)
    unknown = set(args.topics) - set(TOPICS)
    if unknown:
        parser.error(f"unknown topic: {', '.join(sorted(unknown))}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    warnings.filterwarnings("ignore", module="gymnasium")  # EnvPool's spaces
    run = begin()
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for topic, (sizes, makers, base) in panels().items():
        if topic not in (args.topics or set(TOPICS) - ELSEWHERE):
            continue
        for num_envs in args.num_envs or sizes:
            measured = measure_size(args, makers, num_envs, notes)
            rows += [record(topic, result, measured.get(base)) for result in measured.values()]
    print(f"\nCartPole-v1, random actions, {args.rounds} rounds of {args.seconds:g} s\n")
    header = ("topic", "environments", "implementation", "steps/s", "× the first")
    shown = [
        [
            row["topic"],
            str(row["environments"]),
            row["contender"],
            f"{row['steps_per_second']:,.0f}",
            "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        ]
        for row in rows
    ]
    text = with_notes(markdown_table(header, shown), notes)
    print(text)
    finish(args, __doc__, run, text, notes=notes, results=rows)


def measure_size(
    args: argparse.Namespace, makers: dict[str, Maker], num_envs: int, notes: list[str]
) -> dict[str, Throughput]:
    """Time the implementations over one number of environments, in the same rounds."""

    what = f"{num_envs} environments"

    def make_runners(stack: ExitStack) -> dict[str, Runner]:
        with gymnasium.make("CartPole-v1") as env:
            actions = sample_actions(env.action_space, num_envs)
        entry = Entry("CartPole-v1", num_envs, actions, stack, notes.append)
        peers = {name: Peer(name, make) for name, make in makers.items()}
        return join_peers(peers, entry, what, peers)

    return race(args, what, make_runners, notes.append)


def record(topic: str, result: Throughput, base: Throughput | None) -> dict[str, Any]:
    return {
        "topic": topic,
        "contender": result.name,
        "environments": result.num_envs,
        "steps_per_second": result.median,
        "rounds": result.rates,
        "ratio": None if base is None else result.relative_to(base),
    }


if __name__ == "__main__":
    main()
