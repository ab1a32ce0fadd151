"""Measure how long stepping is interrupted when a node of a Ray cluster is lost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.shared.on_ray import local_cluster
from benchmarks.shared.question import add_outputs, begin, finish, make_parser
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.measure import sample_actions
from xuance_envs.report import markdown_table
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("ray_loss", __doc__)
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=int, default=64, metavar="N", help="half on each of two nodes")
    add("--steps", type=int, default=200, help="vector steps before and after each failure")
    add("--rounds", type=int, default=3, help="node failures, one after the other")
    add_outputs(parser, "ray loss table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    with local_cluster(2) as cluster:
        rounds = [lose_a_node(args, cluster) for _ in tqdm(range(args.rounds), unit="node")]
    print(f"\n{args.num_envs} × {args.env} on two nodes, one of which fails\n")
    rows = [
        [f"{k}", f"{found['seconds']:.1f}", f"{found['restarted']}", f"{found['lost_steps']}"]
        for k, found in enumerate(rounds, start=1)
    ]
    header = ("round", "seconds of interruption", "restarted", "steps lost by the other node")
    text = markdown_table(header, rows)
    print(text)
    finish(args, __doc__, run, text, results=rounds)


def lose_a_node(args: argparse.Namespace, cluster: Any) -> dict[str, Any]:
    """Step, remove the second node, and continue stepping."""
    node = cluster.add_node(num_cpus=2)
    half = args.num_envs // 2
    functions = [partial(Gym_Env, args.env)] * args.num_envs
    with RayVecEnv_Gym(functions, half, on_worker_failure="restart", start_timeout=60) as envs:
        envs.reset(seed=0)
        actions = sample_actions(envs.action_space, args.num_envs)
        expected = np.zeros(args.num_envs, np.int64)
        longest, restarted, lost_steps, after = 0.0, 0, 0, 0
        for k in range(10**9):
            if k == args.steps:
                cluster.remove_node(node, allow_graceful=False)
            start = perf_counter()
            _, _, terminated, truncated, infos = envs.step(actions[k % len(actions)])
            longest = max(longest, perf_counter() - start)
            marks, there = infos.column("worker_restarted")
            lost = there & (marks != 0)
            restarted += int(lost.sum())
            expected += 1
            steps, _ = infos.column("episode_step")
            lost_steps += int((steps != expected)[~lost].sum())
            expected[terminated | truncated] = 0
            after += restarted > 0
            if after > args.steps:
                break
    return {"seconds": longest, "restarted": restarted, "lost_steps": lost_steps}


if __name__ == "__main__":
    main()
