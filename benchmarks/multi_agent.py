"""Measure steps per second of multi-agent environments, against other libraries and bare loops."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import many_worlds
from benchmarks.peers.elsewhere import ROOT, OtherPython
from benchmarks.peers.entry import Entry, LeftOut
from benchmarks.shared.contest import Results, race
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
from benchmarks.shared.reference import LIMIT, Limit
from xuance_envs import MultiAgentVecEnv, SubprocVecMultiAgentEnv
from xuance_envs.measure import Runner, Throughput
from xuance_envs.report import markdown_table

WORLDS = {
    "spread": "MPE simple_spread_v3, 3 agents",
    "states": "MPE simple_spread_v3 with state",
    "cheap": "cheap, 8 agents",
    "rich": "cheap, 8 agents with masks and numeric infos",
    "terminating": "cheap, 8 agents that terminate early",
}
PEERS = {
    "xuance-dummy": "XuanCe Dummy",
    "xuance-subproc": "XuanCe Subproc, in_series=1",
    "xuance-subproc-8": "XuanCe Subproc, in_series=8",
    "supersuit": "SuperSuit, 2 CPUs",
    "agilerl": "AgileRL Async",
}
SCRIPT = Path(__file__).parent / "peers" / "many_standalone.py"


class Loop:
    """The upper bound: a loop that steps environments in series with prepared action dicts.

    It resets environments after episodes, and reads nothing that a step returns.
    """

    def __init__(self, world: str, num_envs: int, low: int, high: int) -> None:
        self._envs = [many_worlds.make(world) for _ in range(low, high)]
        for i, env in enumerate(self._envs):
            env.reset(seed=i)
        agents = self._envs[0].possible_agents
        rows = actions_for(world, num_envs)
        self._actions = itertools.cycle(
            [[dict(zip(agents, list(row), strict=True)) for row in each[low:high]] for each in rows]
        )
        self._count = len(agents)
        self._states = [env.state for env in self._envs] if world == "states" else []

    def run(self, steps: int) -> float:
        envs, count = self._envs, self._count
        batches = itertools.islice(self._actions, steps)
        start = time.perf_counter()
        for batch in batches:
            for env, actions in zip(envs, batch):  # noqa: B905  # strict=True is slower
                if len(env.agents) != count:
                    actions = {agent: actions[agent] for agent in env.agents}
                env.step(actions)
                if not env.agents:
                    env.reset()
            for state in self._states:
                state()
        return time.perf_counter() - start

    def close(self) -> None:
        for env in self._envs:
            env.close()


class Steps:
    """A runner for a vectorized environment of this package.

    ``as_dicts`` selects dicts of actions by agent.
    """

    def __init__(self, envs: Any, actions: Sequence[np.ndarray], as_dicts: bool) -> None:
        self.num_envs = envs.num_envs
        self._envs = envs
        given: Sequence[Any] = actions
        if as_dicts:
            given = [
                [dict(zip(envs.agents, row, strict=True)) for row in rows.tolist()]
                for rows in actions
            ]
        self._actions = itertools.cycle(given)
        envs.reset()

    def run(self, steps: int) -> float:
        step = self._envs.step
        batches = itertools.islice(self._actions, steps)
        start = time.perf_counter()
        for batch in batches:
            step(batch)
        return time.perf_counter() - start

    def close(self) -> None:
        self._envs.close()


def actions_for(world: str, num_envs: int) -> list[np.ndarray]:
    """Return random actions of all agents, one array per step."""
    draw = np.random.default_rng(0)
    shape = 64, num_envs, 3 if world in ("spread", "states") else many_worlds.AGENTS
    return list(draw.integers(many_worlds.ACTIONS, size=shape))


AS_IT_COMES = "automatic backend"
"""MultiAgentVecEnv without the argument ``backend``."""

OURS: Mapping[str, tuple[Callable[..., Any], dict[str, Any], bool]] = {
    AS_IT_COMES: (MultiAgentVecEnv, {}, False),
    "Dummy": (MultiAgentVecEnv, {"backend": "dummy"}, False),
    "Subproc": (MultiAgentVecEnv, {"backend": "subproc"}, False),
    "Subproc, caller_steps": (
        MultiAgentVecEnv,
        {"backend": "subproc", "caller_steps": True},
        False,
    ),
    "SubprocVecMultiAgentEnv": (SubprocVecMultiAgentEnv, {}, True),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser("multi_agent", __doc__)
    add = parser.add_argument
    add("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS), metavar="WORLD")
    add("--num-envs", type=int, default=16, metavar="N")
    add_rounds(parser)
    add_peers(parser, PEERS)
    add_outputs(parser, "multi-agent table")
    args = parser.parse_args(argv)
    run = begin()
    results = Results()
    rows: list[dict[str, Any]] = []
    for world in args.worlds:
        make_runners = partial(contenders, world, args.num_envs, chosen_peers(args, PEERS), results)
        measured = race(args, WORLDS[world], make_runners, results.note)
        rows += [record(world, each, measured) for each in measured.values()]
    print(f"\n{args.num_envs} environments, random actions, {args.rounds} rounds\n")
    header = (
        "environments",
        "implementation",
        "steps/s",
        "spread",
        "of the limit",
        "× XuanCe Subproc",
    )
    shown = [
        [
            WORLDS[row["world"]],
            row["contender"],
            f"{row['steps_per_second']:,.0f}",
            f"{row['spread']:.0%}",
            f"{row['of_limit']:.2f}",
            "" if row["of_xuance"] is None else f"{row['of_xuance']:.2f}",
        ]
        for row in rows
    ]
    text = with_notes(markdown_table(header, shown), results.notes)
    print(text)
    finish(args, __doc__, run, text, notes=results.notes, results=rows)


def contenders(
    world: str, num_envs: int, peers: Sequence[str], results: Results, stack: ExitStack
) -> dict[str, Runner]:
    """Make and reset all implementations."""
    actions = actions_for(world, num_envs)
    runners: dict[str, Runner] = {}

    def add(name: str, runner: Any) -> None:
        runners[name] = runner
        stack.callback(runner.close)

    add(LIMIT, Limit(world, num_envs, Loop))
    for name, (kind, options, as_dicts) in OURS.items():
        envs = kind([partial(many_worlds.make, world)] * num_envs, **options)
        add(name, Steps(envs, actions, as_dicts))
        if name == AS_IT_COMES:
            results.note(f"{WORLDS[world]}: {name}: {envs.autotuned.choice.name}.")
    for peer in peers:
        entry = Entry(world, num_envs, actions, stack, results.note)
        try:
            runners[PEERS[peer]] = elsewhere(peer, entry)
        except LeftOut as reason:
            why = str(reason).partition("\n")[0]
            results.note(f"{PEERS[peer]}, {world}: left out, {why}.")
    return runners


def elsewhere(peer: str, entry: Entry) -> OtherPython:
    """Make the runner of a library that runs in its own virtual environment."""
    of_xuance = peer.startswith("xuance")
    if entry.env_id == "terminating" and of_xuance:
        raise LeftOut("raises KeyError when an agent terminates early")
    if entry.env_id == "states" and not of_xuance:
        raise LeftOut("does not support states")
    home = ".venv-xuance" if of_xuance else ".venv-multi-agent"
    python = ROOT / home / "bin" / "python"
    if not python.exists():
        raise LeftOut(f"not installed (make bench-peers creates {home})")
    runner = OtherPython(peer, python, entry, SCRIPT)
    entry.stack.callback(runner.close)
    return runner


def record(world: str, result: Throughput, measured: Mapping[str, Throughput]) -> dict[str, Any]:
    xuance = measured.get(PEERS["xuance-subproc"])
    return {
        "world": world,
        "contender": result.name,
        "steps_per_second": result.median,
        "spread": result.spread,
        "rounds": result.rates,
        "of_limit": result.relative_to(measured[LIMIT]),
        "of_xuance": None if xuance is None else result.relative_to(xuance),
    }


if __name__ == "__main__":
    main()
