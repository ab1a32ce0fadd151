"""Measure the cost of saving, restoring and cloning environments, and of resuming workers.

One environment is saved and loaded into another; one is cloned into eight in two workers.
Loading a state is compared with repeating the actions. Throughput with on_worker_failure="resume"
is compared with that of "restart". Each round creates a vectorized environment for each option,
and steps the two in turns. Environments that record actions are compared with environments that do
not.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from benchmarks.shared.question import add_outputs, add_rounds, begin, finish, make_parser
from xuance_envs import Atari_Env, Gym_Env, SubprocVecEnv
from xuance_envs.report import markdown_table
from xuance_envs.state.checkpointer import EnvCheckpointer
from xuance_envs.state.recorders import record

ENVS: dict[str, Callable[[], Any]] = {
    "CartPole": partial(Gym_Env, "CartPole-v1"),
    "HalfCheetah": partial(Gym_Env, "HalfCheetah-v5"),
    "Breakout": partial(Atari_Env, "Breakout", image_size=84),
}
LOST = 64, 16, 16
"""Numbers of environments for comparing "resume" with "restart", in the order of ``ENVS``."""


def microseconds(do: Callable[[], Any], rounds: int) -> float:
    """Return the median microseconds of a call."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        do()
        times.append(time.perf_counter() - begun)
    return float(np.median(times)) * 1e6


def actions_of(env: Any, count: int) -> list[Any]:
    env.action_space.seed(0)
    return [env.action_space.sample() for _ in range(count)]


def stepped(env: Any, actions: Sequence[Any]) -> None:
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def of_one(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure saving and loading one environment, and replaying some steps."""
    env, twin = ENVS[name](), ENVS[name]()
    for each in (env, twin):
        record(each)
        each.reset(seed=0)
    actions = actions_of(env, args.steps)
    stepped(env, actions)
    source, target = EnvCheckpointer(env), EnvCheckpointer(twin)
    data = source.save()

    def load() -> None:
        target.prepare(data, trusted=False).apply()

    load()
    save_time, load_time = microseconds(source.save, 200), microseconds(load, 200)
    replay = microseconds(lambda: stepped(twin, actions), 5)
    for each in (env, twin):
        each.close()
    return {
        "environment": name,
        "bytes": len(data),
        "save_us": save_time,
        "load_us": load_time,
        "replay_us": replay,
        "replay_over_load": replay / load_time,
    }


def of_many(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure cloning one environment into eight in two workers, and file sizes."""
    with SubprocVecEnv([ENVS[name]] * 8, in_series=4) as envs:
        envs.reset(seed=0)
        for action in actions_of(envs, 50):
            envs.step([action] * 8)
        on_disk = len(envs.save_state().to_bytes()) / 8
        envs.clone_state(3, range(8))
        clone = microseconds(lambda: envs.clone_state(3, range(8)), 400)
        return {"clone_us": clone, "file_bytes_each": on_disk}


def of_losses(name: str, num_envs: int, args: argparse.Namespace) -> float:
    """Return the throughput with "resume" relative to "restart", as the median over the rounds.

    The speed of equal processes differs by several percent, depending on where they run. States are
    saved every few hundred to 2,048 steps, so a turn covers several saves.
    """
    functions, seconds, ratios = [ENVS[name]] * num_envs, args.seconds, []
    for _ in range(args.rounds):
        with (
            SubprocVecEnv(functions, on_worker_failure="restart") as restarting,
            SubprocVecEnv(functions, on_worker_failure="resume") as resuming,
        ):
            actions = [actions_of(restarting, 1)[0]] * num_envs
            for envs in (restarting, resuming):
                envs.reset(seed=0)
                rate(envs, actions, seconds)
            rates: dict[Any, float] = dict.fromkeys((restarting, resuming), 0.0)
            for envs in (restarting, resuming, resuming, restarting):
                rates[envs] += rate(envs, actions, seconds)
            ratios.append(rates[resuming] / rates[restarting])
    return float(np.median(ratios))


def of_recording(make: Callable[[], Any], args: argparse.Namespace) -> float:
    """Return the cost of recording actions, relative to the CPU time of a step."""
    plain, recorded = make(), make()
    record(recorded)
    times: list[list[float]] = []
    for env in (plain, recorded):
        env.reset(seed=0)
    actions = actions_of(plain, args.steps)
    for _ in range(10 * args.rounds):
        times.append([])
        for env in (plain, recorded):
            begun = time.process_time()
            stepped(env, actions)
            times[-1].append(time.process_time() - begun)
    return float(np.median([after / before for before, after in times])) - 1


def recording_envs() -> dict[str, Callable[[], Any]]:
    """Return functions that create the installed environments with action recorders."""
    found: dict[str, Callable[[], Any]] = {}
    if importlib.util.find_spec("ale_py"):
        gymnasium.register_envs(importlib.import_module("ale_py"))
        found["ale-py's Breakout"] = partial(gymnasium.make, "ALE/Breakout-v5")
    if importlib.util.find_spec("Box2D"):
        importlib.import_module("Box2D")
        found["LunarLander"] = partial(gymnasium.make, "LunarLander-v3")
    return found


def rate(envs: Any, actions: Any, seconds: float) -> float:
    begun = time.perf_counter()
    steps = 0
    while (passed := time.perf_counter() - begun) < seconds:
        envs.step(actions)
        steps += 1
    return steps / passed


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser("state", __doc__)
    add_rounds(parser, rounds=7, seconds=1.0)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS), metavar="ENV")
    parser.add_argument("--steps", type=int, default=200, help="steps to replay")
    add_outputs(parser, "state table")
    args = parser.parse_args(argv)
    run = begin()
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    results = []
    for name in args.envs:
        num_envs = dict(zip(ENVS, LOST, strict=True))[name]
        row = {**of_one(name, args), **of_many(name, args)}
        row["resume_over_restart"] = of_losses(name, num_envs, args)
        results.append(row)
    header = ["environment", "bytes", "save", "load", "1 → 8", "on disk", "replay / load", "resume"]
    table = markdown_table(
        header,
        [
            [
                row["environment"],
                f"{row['bytes']:,}",
                f"{row['save_us']:.0f} µs",
                f"{row['load_us']:.0f} µs",
                f"{row['clone_us']:.0f} µs",
                f"{row['file_bytes_each']:,.0f} B",
                f"{row['replay_over_load']:.0f}",
                f"{row['resume_over_restart']:.2f}",
            ]
            for row in results
        ],
    )
    print(table)
    recording = {name: of_recording(make, args) for name, make in recording_envs().items()}
    for name, share in recording.items():
        print(f"recording actions, {name}: {share:+.2%} of a step")
    finish(args, __doc__, run, table, results=results, recording=recording)


if __name__ == "__main__":
    main()
