"""Compare asynchronous stepping (send and recv) with synchronous steps.

The script has three parts, each with a table:

- ``slow``: environments that sleep for 0.5 ms per step, and one that sleeps for 50 ms. Only the
  steps of the fast environments count.
- ``waiting``: many more environments than cores, which sleep for 5 ms per step.
- ``unequal``: CartPole, while another process keeps one core half busy. A synchronous step waits
  for the slower group; ``send`` and ``recv`` do not.

After each ``recv``, the received environments get new actions immediately.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.peers import Entry
from benchmarks.shared.busy_core import BusyCore, Disturbed
from benchmarks.shared.contest import join_peers, race
from benchmarks.shared.envs import IdleEnv, SleepingEnv
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
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Gym
from xuance_envs.measure import Runner, StepLoop, Throughput, sample_actions
from xuance_envs.report import markdown_table
from xuance_envs.vector_envs.vector_env import VecEnv

QUICK_SECONDS, SLOW_SECONDS, WAITING_SECONDS = 0.5e-3, 50e-3, 5e-3


def in_workers(workers: int, functions: Sequence[Callable[[], Any]]) -> VecEnv:
    """Distribute environments evenly over a number of workers."""
    return SubprocVecEnv_Gym(functions, in_series=-(-len(functions) // workers))


STEPPED: dict[str, Callable[..., VecEnv]] = {
    "step": SubprocVecEnv_Gym,
    "step, pin_workers=False": partial(SubprocVecEnv_Gym, pin_workers=False),
    "step, caller_steps": partial(SubprocVecEnv_Gym, caller_steps=True),
}
RECEIVED: dict[str, Callable[..., VecEnv]] = {
    "send, recv()": SubprocVecEnv_Gym,
    "send, recv(), 4 workers": partial(in_workers, 4),
    "send, recv(), 8 workers": partial(in_workers, 8),
}
ONE_PROCESS_EACH = ("gymnasium-async", "sb3-subproc", "tianshou-shmem")


@dataclass
class Part:
    """Results of one part: measurements, additional ratio columns, and notes."""

    title: str
    measured: dict[str, Throughput] = field(default_factory=dict)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [
            [
                name,
                f"{result.median:,.0f}",
                f"{result.spread:.0%}",
                *(
                    f"{column[name]:.2f}" if name in column else "-"
                    for column in self.ratios.values()
                ),
            ]
            for name, result in self.measured.items()
        ]
        table = markdown_table(["implementation", "steps/s", "spread", *self.ratios], rows)
        return f"{self.title}:\n\n{with_notes(table, self.notes)}"

    def record(self) -> dict[str, Any]:
        """Return all measurements for the JSON file."""
        results = [
            {
                "contender": name,
                "steps_per_second": result.median,
                "spread": result.spread,
                "rounds": result.rates,
                "ratios": {
                    title: column[name] for title, column in self.ratios.items() if name in column
                },
            }
            for name, result in self.measured.items()
        ]
        return {"title": self.title, "notes": self.notes, "results": results}


class SendRecvLoop:
    """A runner that sends actions to the received environments immediately after each ``recv``.

    Only the steps of the environments in ``counted`` count; None means all.
    """

    def __init__(
        self,
        vec_env: VecEnv,
        actions: Iterable[Any],
        *,
        min_envs: int | None = None,
        counted: range | None = None,
    ) -> None:
        counted = range(vec_env.num_envs) if counted is None else counted
        self.num_envs = len(counted)
        self._vec_env = vec_env
        self._actions = itertools.cycle(actions)
        self._min_envs = min_envs
        self._counts = np.zeros(vec_env.num_envs, np.int64)
        self._counts[counted] = 1
        vec_env.async_reset(seed=0)

    def run(self, steps: int) -> float:
        """Run until the counted environments' mean number of steps is ``steps``."""
        recv, send, counts = self._vec_env.recv, self._vec_env.send, self._counts
        wanted, done = steps * self.num_envs, 0
        start = perf_counter()
        while done < wanted:
            env_ids = recv(self._min_envs).env_ids
            send(next(self._actions)[env_ids], env_ids)
            done += int(counts[env_ids].sum())
        return (perf_counter() - start) * wanted / done


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("asynchronous_stepping", __doc__)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add_peers(parser, ONE_PROCESS_EACH)
    add(
        "--slow-envs",
        type=int,
        default=16,
        metavar="N",
        help="environments in the part 'slow', including the slow one",
    )
    where = "environments in the part"
    add("--waiting-envs", type=int, default=32, metavar="N", help=f"{where} 'waiting'")
    add("--unequal-envs", type=int, default=64, metavar="N", help=f"{where} 'unequal'")
    add_rounds(parser, seconds=1.0)
    add_outputs(parser, "asynchronous stepping tables")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    parts = {name: PARTS[name](args) for name in dict.fromkeys(args.parts)}
    for part in parts.values():
        print(f"\n{part}")
    print(f"\n{args.rounds} rounds of {args.seconds:g} s")
    text = "\n\n".join(map(str, parts.values()))
    finish(args, __doc__, run, text, results={name: part.record() for name, part in parts.items()})


def timed(
    args: argparse.Namespace, what: str, runners: dict[str, Runner], part: Part
) -> dict[str, Throughput]:
    """Time the runners round by round; the caller closes them."""
    return race(args, what, lambda _: runners, part.notes.append)


def measure_slow(args: argparse.Namespace) -> Part:
    """Measure with one environment that is a hundred times slower than the others."""
    others, half = range(args.slow_envs - 1), args.slow_envs // 2
    quick = [partial(SleepingEnv, QUICK_SECONDS)] * len(others)
    mixed = [*quick, partial(SleepingEnv, SLOW_SECONDS)]
    actions = sample_actions(IdleEnv.action_space, args.slow_envs)
    make = partial(SubprocVecEnv_Gym, in_series=1)
    part = Part(
        f"{len(others)} environments that sleep {QUICK_SECONDS * 1e3:g} ms per step, without and "
        f"with a slow environment that sleeps {SLOW_SECONDS * 1e3:g} ms; in_series=1. "
        f"Only the steps of the {len(others)} fast ones count"
    )
    receive = f"send, recv({half})"
    without = f"{receive}, without the slow one"
    with ExitStack() as stack:
        loop = partial(SendRecvLoop, min_envs=half, counted=others)
        alone = stack.enter_context(make(quick))
        runners: dict[str, Runner] = {
            without: loop(alone, [batch[: len(others)] for batch in actions])
        }
        runners[receive] = loop(stack.enter_context(make(mixed)), actions)
        runners["step"] = stepped(stack.enter_context(make(mixed)), actions, len(others))
        runners |= peers(args, mixed, actions, len(others), stack, part)
        part.measured = timed(args, "slow", runners, part)
    part.ratios["× without the slow one"] = relative(part.measured, without)
    return part


def measure_waiting(args: argparse.Namespace) -> Part:
    """Measure sleeping environments, each in its own process."""
    count = args.waiting_envs
    functions = [partial(SleepingEnv, WAITING_SECONDS)] * count
    actions = sample_actions(IdleEnv.action_space, count)
    ideal = count / WAITING_SECONDS
    part = Part(
        f"{count} environments that sleep {WAITING_SECONDS * 1e3:g} ms per step; in_series=1. "
        f"The ideal is {ideal:,.0f} steps/s"
    )
    make = partial(SubprocVecEnv_Gym, functions, in_series=1)
    with ExitStack() as stack:
        runners: dict[str, Runner] = {"step": stepped(stack.enter_context(make()), actions, count)}
        for min_envs in (1, max(1, count // 4)):
            envs = stack.enter_context(make())
            runners[f"send, recv({min_envs})"] = SendRecvLoop(envs, actions, min_envs=min_envs)
        runners |= peers(args, functions, actions, count, stack, part)
        part.measured = timed(args, "waiting", runners, part)
    part.ratios["× ideal"] = {name: result.median / ideal for name, result in part.measured.items()}
    return part


def measure_unequal(args: argparse.Namespace) -> Part:
    """Measure with one core at half speed."""
    count = args.unequal_envs
    functions = [partial(Gym_Env, "CartPole-v1")] * count
    actions = sample_actions(IdleEnv.action_space, count)
    part = Part(f"{count} × CartPole-v1, on an idle machine and with one core half busy")
    with ExitStack() as stack:
        busy = BusyCore()
        stack.callback(busy.close)
        alone: dict[str, Runner] = {}
        for name, make in STEPPED.items():
            envs = stack.enter_context(make(functions))
            alone[name] = stepped(envs, actions, count)
        for name, make in RECEIVED.items():
            envs = stack.enter_context(make(functions))
            alone[name] = SendRecvLoop(envs, actions)
        beside = {f"{name}, half busy": Disturbed(each, busy) for name, each in alone.items()}
        part.measured = timed(args, "unequal", alone | beside, part)
        share = float(np.mean([each.share for each in beside.values()]))
    part.notes.append(f"In the rows 'half busy', another process used {share:.0%} of one core.")
    pairs = zip(beside, alone, strict=True)
    part.ratios["× idle"] = {
        name: part.measured[name].relative_to(part.measured[other]) for name, other in pairs
    }
    step, *_ = beside
    relatives = relative(part.measured, step)
    part.ratios["× step, half busy"] = {name: relatives[name] for name in beside}
    return part


def stepped(envs: VecEnv, actions: Sequence[Any], counted: int) -> StepLoop:
    """Create a runner with synchronous steps that counts the first ``counted`` environments."""
    envs.reset(seed=0)
    return StepLoop(envs, counted, actions)


def peers(
    args: argparse.Namespace,
    functions: Sequence[Callable[[], Any]],
    actions: Sequence[Any],
    counted: int,
    stack: ExitStack,
    part: Part,
) -> dict[str, Runner]:
    """Create runners of the requested other libraries, with one process per environment."""
    entry = Entry("", len(functions), actions, stack, part.notes.append, functions)
    runners = join_peers(chosen_peers(args, ONE_PROCESS_EACH), entry, "in a process each")
    for runner in runners.values():
        runner.num_envs = counted
    return runners


def relative(measured: dict[str, Throughput], other: str) -> dict[str, float]:
    return {name: result.relative_to(measured[other]) for name, result in measured.items()}


PARTS: dict[str, Callable[[argparse.Namespace], Part]] = {
    "slow": measure_slow,
    "waiting": measure_waiting,
    "unequal": measure_unequal,
}


if __name__ == "__main__":
    main()
