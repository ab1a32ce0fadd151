"""Measure the main process's CPU time per environment step.

The environments do nothing, so only the overhead of a step remains: copying the actions, waking
the workers, waiting for their replies, and copying the results. The script counts the CPU time of
the calling thread (time.thread_time), not wall-clock time. Spinning would count as CPU time, so
the main process blocks instead; the figures include falling asleep and waking up. On a busy
machine the figures are higher, because other processes evict the caches.

Each figure is the median of the rounds, in microseconds per environment step. For comparison, a
bare loop uses as many sleeping processes as there are workers. It writes one byte to each process,
and reads one byte from each. Its figures are in microseconds per process and step.

With more workers than cores, workers also run on the main process's core and evict its caches. If
a step takes longer than five milliseconds, the main process also wakes the workers a second time.
``--own-cpu`` prevents both: the main process gets one core, all workers run on the others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any
from unittest import mock

from tqdm import tqdm

from benchmarks.shared.envs import IdleEnv
from benchmarks.shared.question import add_outputs, begin, finish, make_parser
from xuance_envs.engine.process import common_step
from xuance_envs.engine.system.current import system
from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Gym
from xuance_envs.measure import sample_actions
from xuance_envs.report import markdown_table
from xuance_envs.vector_envs import subproc_vec_env
from xuance_envs.vector_envs.vector_env import VecEnv

TARGET = 0.3
"""Target for 1,024 environments; a line in the plot."""


def step_all(vec_env: VecEnv, actions: Any, steps: int) -> None:
    for _ in range(steps):
        vec_env.step(actions)


def send_and_receive(vec_env: VecEnv, actions: Any, steps: int) -> None:
    """Make ``steps`` steps per environment on average, with send and recv."""
    wanted, done = steps * vec_env.num_envs, 0
    while done < wanted:
        env_ids = vec_env.recv().env_ids
        done += len(env_ids)
        vec_env.send(actions[env_ids], env_ids)


CALLS: dict[str, tuple[Callable[[VecEnv], Any], Callable[[VecEnv, Any, int], None]]] = {
    "step": (methodcaller("reset", seed=0), step_all),
    "send-recv": (methodcaller("async_reset", seed=0), send_and_receive),
}
"""Start function and step function of each stepping mode."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("parent_cost", __doc__)
    add = parser.add_argument
    add("--num-envs", type=int, nargs="+", default=[64, 256, 1024, 4096], metavar="N")
    add("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], metavar="W")
    add("--calls", nargs="+", choices=CALLS, default=list(CALLS), help="stepping modes")
    add("--rounds", type=int, default=7, help="timed runs of each combination")
    add("--steps", type=int, default=100, help="vector steps per run")
    add("--own-cpu", action="store_true", help="reserve a CPU for the main process")
    add_outputs(parser, "parent cost table", "plot the first stepping mode")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    results = measure_costs(args)
    bare = {w: measure_bare_loop(args, w) for w in args.workers}
    tables = {call: table([row for row in results if row["call"] == call]) for call in args.calls}
    for call, text in tables.items():
        print(f"\n{call}: µs of the main process's CPU time per environment step\n\n{text}")
    print(
        f"\nµs of the main process's CPU time per worker and step\n\n{worker_table(results, bare)}"
    )
    finish(args, __doc__, run, tables[args.calls[0]], results=results, bare_loop=bare)
    if args.png:
        draw(args.png, run, [row for row in results if row["call"] == args.calls[0]])


def measure_costs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all combinations of environments and workers."""
    sizes = [(n, w) for n in args.num_envs for w in args.workers if n % w == 0]
    results = []
    with tqdm(total=len(sizes), unit="size", dynamic_ncols=True, disable=None) as bar:
        for num_envs, workers in sizes:
            bar.set_description(f"{num_envs} in {workers}", refresh=True)
            results += measure_size(args, num_envs, workers)
            bar.update()
    return results


def measure_size(args: argparse.Namespace, num_envs: int, workers: int) -> list[dict[str, Any]]:
    """Measure each stepping mode with one number of environments and workers."""
    rounds: dict[str, list[float]] = {call: [] for call in args.calls}
    patience = 1.0 if args.own_cpu else common_step.PATIENCE
    with (
        mock.patch.object(subproc_vec_env, "SPIN", 0.0),
        mock.patch.object(common_step, "PATIENCE", patience),
        SubprocVecEnv_Gym([IdleEnv] * num_envs, in_series=num_envs // workers) as vec_env,
        reserved_cpu(vec_env.pids if args.own_cpu else ()),
    ):
        actions = sample_actions(vec_env.action_space, num_envs)[0]
        for _ in range(args.rounds):
            for call, microseconds in rounds.items():
                begin, go_on = CALLS[call]
                begin(vec_env)
                microseconds.append(cpu_microseconds(go_on, vec_env, actions, args.steps))
    return [
        {
            "call": call,
            "environments": num_envs,
            "workers": workers,
            "microseconds": statistics.median(microseconds),
            "rounds": microseconds,
        }
        for call, microseconds in rounds.items()
    ]


@contextmanager
def reserved_cpu(pids: Sequence[int]) -> Iterator[None]:
    """Run this process on one CPU, and other processes, if any are given, on the other CPUs."""
    cpus = system.cpu_affinity()
    if not pids or cpus is None or len(cpus) < 2:
        yield
        return
    own, *others = sorted(cpus)
    for pid in pids:
        system.set_cpu_affinity(pid, others)
    system.set_cpu_affinity(0, [own])
    try:
        yield
    finally:
        system.set_cpu_affinity(0, cpus)


def measure_bare_loop(args: argparse.Namespace, workers: int) -> float:
    """Return the CPU time per process and step of a bare loop over pipes, in microseconds."""
    pipes = [echoing_process() for _ in range(workers)]
    rounds = []
    with reserved_cpu([pid for pid, *_ in pipes] if args.own_cpu else ()):
        for _ in range(args.rounds):
            exchange(pipes, max(1, args.steps // 10))
            start = time.thread_time()
            exchange(pipes, args.steps)
            rounds.append((time.thread_time() - start) / (args.steps * workers) * 1e6)
    for pid, *ends in reversed(pipes):  # each process holds the pipes of those before it
        for end in ends:
            os.close(end)
        os.waitpid(pid, 0)
    return statistics.median(rounds)


def echoing_process() -> tuple[int, int, int]:
    """Start a process that answers each byte with one; return its pid and the pipe's two ends."""
    (requests, ours), (replies, theirs) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(ours)
        while os.read(requests, 1):
            os.write(theirs, b"x")
        os._exit(0)
    os.close(requests)
    os.close(theirs)
    return pid, ours, replies


def exchange(pipes: Sequence[tuple[int, int, int]], steps: int) -> None:
    for _ in range(steps):
        for _, requests, _ in pipes:
            os.write(requests, b"x")
        for _, _, replies in pipes:
            os.read(replies, 1)


def cpu_microseconds(
    go_on: Callable[[VecEnv, Any, int], None], vec_env: VecEnv, actions: Any, steps: int
) -> float:
    """Return this thread's CPU time per environment step, after a warm-up."""
    go_on(vec_env, actions, max(1, steps // 10))
    start = time.thread_time()
    go_on(vec_env, actions, steps)
    return (time.thread_time() - start) / (steps * vec_env.num_envs) * 1e6


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row per number of environments and a column per number of workers."""
    cost = {(row["environments"], row["workers"]): row["microseconds"] for row in results}
    workers = sorted({w for _, w in cost})
    rows = [
        [f"{n:,}", *(f"{cost[n, w]:.3f}" if (n, w) in cost else "-" for w in workers)]
        for n in sorted({n for n, _ in cost})
    ]
    header = ["environments", *(f"{w} worker{'s' if w != 1 else ''}" for w in workers)]
    return markdown_table(header, rows, words=0)


def worker_table(results: Sequence[dict[str, Any]], bare: dict[int, float]) -> str:
    """Return a table of the costs per worker, with the fewest environments measured."""
    fewest: dict[int, float] = {}
    for row in sorted(results, key=lambda row: -row["environments"]):
        if row["call"] == "step":
            fewest[row["workers"]] = row["microseconds"] * row["environments"] / row["workers"]
    rows = [
        [f"{w}", f"{fewest[w]:.2f}", f"{bare[w]:.2f}", f"{fewest[w] / bare[w]:.2f}"]
        for w in sorted(fewest)
    ]
    return markdown_table(["workers", "step", "bare loop", "ratio"], rows)


def draw(path: Path, run: dict[str, Any], results: Sequence[dict[str, Any]]) -> None:
    """Plot the cost against the number of environments and of workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    machine = run["machine"]
    figure.suptitle(
        f"CPU time of the main process, environments that do nothing; {machine['cores']} cores of "
        f"{machine['cpu']}"
    )
    axes = [("environments", "workers"), ("workers", "environments")]
    for place, (along, other) in enumerate(axes, start=1):
        axis = figure.add_subplot(1, 2, place)
        for value in sorted({row[other] for row in results}):
            mine = [row for row in results if row[other] == value]
            points = sorted((row[along], row["microseconds"]) for row in mine)
            name = other if value != 1 else other.removesuffix("s")
            axis.plot(*zip(*points, strict=True), marker="o", label=f"{value:,} {name}")
        axis.axhline(TARGET, color="#b03030", linestyle="--", linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel=along, ylabel="µs per environment step")
        ticks = sorted({row[along] for row in results})
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
