"""Measure the duration of a training run with several vectorized environments.

The same PPO (examples/train_ppo.py) trains on CartPole-v1 for the same number of environment
steps. Only the vectorized environment differs; from_gymnasium converts Gymnasium's. With
--peers xuance, XuanCe's PPO trains on XuanCe's environments and on this package's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from benchmarks.peers.elsewhere import in_xuance
from benchmarks.shared.contest import in_turn
from benchmarks.shared.question import add_outputs, begin, finish, make_parser
from xuance_envs.compat.native import from_gymnasium
from xuance_envs.demo import load_example
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym, SubprocVecEnv_Gym
from xuance_envs.report import markdown_table
from xuance_envs.rollout.collector import RolloutCollector
from xuance_envs.vector_envs.vector_env import VecEnv

MODULE = "benchmarks.peers.xuance_training"


def theirs(make: Callable[..., Any], env_id: str, num_envs: int) -> VecEnv:
    """Adapt Gymnasium's vector environment to ``VecEnv``."""
    functions = [partial(gymnasium.make, env_id)] * num_envs
    envs = make(functions, autoreset_mode=AutoresetMode.SAME_STEP)
    return from_gymnasium(envs, copy=False)


def ours(make: Callable[..., VecEnv], env_id: str, num_envs: int) -> VecEnv:
    return make([partial(Gym_Env, env_id)] * num_envs, copy=False)


MAKERS: dict[str, Callable[[str, int], VecEnv]] = {
    "Dummy": partial(ours, DummyVecEnv_Gym),
    "Subproc": partial(ours, SubprocVecEnv_Gym),
    "Subproc, caller_steps": partial(ours, partial(SubprocVecEnv_Gym, caller_steps=True)),
    "Gymnasium Sync": partial(theirs, SyncVectorEnv),
    "Gymnasium Async": partial(theirs, AsyncVectorEnv),
}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("training", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, default=32, metavar="N", help="default: %(default)s")
    add("--steps", type=int, default=40_000, help="environment steps (default: %(default)s)")
    add("--contenders", nargs="+", choices=MAKERS, default=list(MAKERS), metavar="NAME")
    add("--rounds", type=int, default=3, help="interleaved training runs")
    add(
        "--peers",
        choices=["xuance"],
        help="measure this library's PPO, in its own virtual environment",
    )
    add("--game", default="ALE/Breakout-v5", metavar="ID", help="XuanCe PPO's second environment")
    add(
        "--game-steps",
        type=int,
        default=4_000,
        help="environment steps in this game (default: %(default)s)",
    )
    add_outputs(parser, "training table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    torch.set_num_threads(1)
    run = begin()
    if args.peers:
        compare_in_xuance(args, run)
        return
    trainings = measure_trainings(args)
    found = [record(name, trainings) for name in trainings]
    parts = ("seconds", "range", "stepping", "time / first row", "return")
    header = ("vectorized environment", *parts)
    rows = [
        [
            row["contender"],
            f"{row['seconds']:.1f}",
            f"{min(row['rounds']):.1f}-{max(row['rounds']):.1f}",
            f"{row['stepping']:.0%}",
            f"{row['times_the_first']:.2f}",
            f"{row['mean_return']:.0f}",
        ]
        for row in found
    ]
    text = markdown_table(header, rows)
    print(f"\n{args.num_envs} × {args.env}, {args.steps:,} environment steps of PPO\n\n{text}")
    finish(args, __doc__, run, text, results=found)


def measure_trainings(args: argparse.Namespace) -> dict[str, list[tuple[float, float, float]]]:
    """Return seconds, seconds in steps and mean return, by implementation and round."""
    trainings: dict[str, list[tuple[float, float, float]]] = {name: [] for name in args.contenders}
    train(
        MAKERS[args.contenders[0]](args.env, args.num_envs), 1, 0
    )  # one-time initialization of torch
    for seed, name in in_turn(trainings, range(args.rounds), "training"):
        vec_env = MAKERS[name](args.env, args.num_envs)
        trainings[name].append(train(vec_env, args.steps, seed))
    return trainings


def train(vec_env: VecEnv, steps: int, seed: int) -> tuple[float, float, float]:
    """Return seconds, seconds in steps and mean return; close the environments."""
    ppo = load_example()
    torch.manual_seed(seed)
    settings = ppo.Settings()
    vec_env = ppo.prepared(vec_env, settings.gamma)
    agent = ppo.Agent(vec_env.observation_space.shape, vec_env.action_space)
    stepping = 0.0
    step_async, step_wait = vec_env.step_async, vec_env.step_wait

    def timed(call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal stepping
        start = time.perf_counter()
        result = call(*arguments)
        stepping += time.perf_counter() - start
        return result

    vec_env.step_async = partial(timed, step_async)  # type: ignore[method-assign]
    vec_env.step_wait = partial(timed, step_wait)  # type: ignore[method-assign]
    length = settings.steps_per_env
    with RolloutCollector(vec_env, agent, length, device="cpu", seed=seed) as collector:
        start = time.perf_counter()
        updates = ppo.train(collector, agent, settings)
        for _ in takewhile(lambda _: collector.global_steps < steps, updates):
            pass
        return time.perf_counter() - start, stepping, collector.mean_ep_return


XUANCES = {
    "XuanCe Subproc": "xuance",
    "xuance_envs, by install()": "ours",
    "xuance_envs, by install(caller_steps=True)": "ours-with-caller",
    "prepared steps": "nobody",
}


def compare_in_xuance(args: argparse.Namespace, run: Any) -> None:
    """Compare XuanCe's PPO on both packages' environments, in CartPole and in a game.

    Prepared steps show the upper bound, because only the agent remains.
    """
    cases = [(args.env, args.steps), (args.game, args.game_steps)]
    taken: dict[tuple[str, str], list[Sequence[float]]] = {}
    for env_id, steps in cases:
        for _, title in in_turn(XUANCES, range(args.rounds), "training", env_id):
            result = in_xuance(MODULE, XUANCES[title], env_id, args.num_envs, steps)
            taken.setdefault((env_id, title), []).append(result)
    rows, found = [], []
    for env_id, steps in cases:
        theirs = np.array(taken[env_id, "XuanCe Subproc"])[:, 0] / steps * 1e5
        for title in XUANCES:
            mine, busy = np.transpose(taken[env_id, title]) / steps * 1e5
            ratio = float(np.median(theirs / mine))
            spread = f"{mine.min():.1f}-{mine.max():.1f}"
            seconds, cpu = f"{np.median(mine):.1f}", f"{np.median(busy):.1f}"
            rows.append([env_id, title, seconds, spread, cpu, f"{ratio:.2f}"])
            found.append(
                {
                    "env": env_id,
                    "contender": title,
                    "steps": steps,
                    "rounds": mine.tolist(),
                    "cpu": busy.tolist(),
                }
            )
    header = (
        "environment",
        "vectorized environment",
        "s per 100,000 steps",
        "range",
        "CPU seconds of the main process",
        "× XuanCe Subproc",
    )
    text = markdown_table(header, rows)
    print(f"\nXuanCe's PPO in {args.num_envs} environments\n\n{text}")
    finish(args, __doc__, run, text, results=found)


def record(name: str, trainings: dict[str, list[tuple[float, float, float]]]) -> dict[str, Any]:
    """Return one row; the ratio is the median over the rounds."""
    seconds, stepping, returns = np.transpose(trainings[name])
    others = np.transpose(next(iter(trainings.values())))[0]
    return {
        "contender": name,
        "seconds": float(np.median(seconds)),
        "rounds": seconds.tolist(),
        "stepping": float(np.median(stepping / seconds)),
        "times_the_first": float(np.median(seconds / others)),
        "mean_return": float(np.median(returns)),
    }


if __name__ == "__main__":
    main()
