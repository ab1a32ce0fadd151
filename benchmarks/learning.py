"""Measure the time until CartPole-v1 is solved: the demo's PPO and Stable-Baselines3's PPO.

With a different task, such as --env HalfCheetah-v5, measure the return after a number of steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.shared import curves
from benchmarks.shared.question import add_outputs, begin, finish, make_parser
from xuance_envs import demo
from xuance_envs.report import markdown_table

MOST_STEPS = 500_000
OURS = "ours"


def ours(seed: int, goal: float) -> tuple[float, int, float]:
    """Return seconds, environment steps and mean return of the demo's training run."""
    _, course = demo.train(seed, goal)
    return course.seconds, course.steps, course.mean_return


def sb3(seed: int, goal: float, num_envs: int, **settings: Any) -> tuple[float, int, float]:
    """Return the same figures for Stable-Baselines3's PPO, which stops at the goal."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class UntilGoal(BaseCallback):
        def _on_step(self) -> bool:
            scores = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            return len(scores) < demo.EPISODES or float(np.mean(scores)) < goal

    envs = make_vec_env(demo.ENV_ID, num_envs, seed=seed)
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    start = time.perf_counter()
    model.learn(MOST_STEPS, callback=UntilGoal())
    elapsed = time.perf_counter() - start
    envs.close()
    scores = [episode["r"] for episode in model.ep_info_buffer]
    return elapsed, model.num_timesteps, float(np.mean(scores))


def sb3_alike(seed: int, goal: float) -> tuple[float, int, float]:
    """Train Stable-Baselines3's PPO with the demo's settings, as far as it supports them."""
    settings = demo.load_example().Settings()
    return sb3(
        seed,
        goal,
        demo.NUM_ENVS,
        n_steps=settings.steps_per_env,
        batch_size=settings.batch_size,
        n_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip,
        ent_coef=settings.entropy_weight,
        vf_coef=settings.value_weight,
        max_grad_norm=settings.max_gradient,
        policy_kwargs={"activation_fn": torch.nn.ReLU},
    )


def sb3_tuned(seed: int, goal: float) -> tuple[float, int, float]:
    """Train Stable-Baselines3's PPO with its zoo's settings for CartPole-v1 (for 100,000 steps)."""
    return sb3(
        seed,
        goal,
        8,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        learning_rate=lambda rest: 1e-3 * max(1 - (1 - rest) * MOST_STEPS / 1e5, 0.1),
        gamma=0.98,
        gae_lambda=0.8,
        clip_range=0.2,
        ent_coef=0.0,
    )


LEARNERS: dict[str, Callable[[int, float], tuple[float, int, float]]] = {
    OURS: ours,
    "SB3, settings of ours": sb3_alike,
    "SB3, settings of its zoo": sb3_tuned,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser("learning", __doc__)
    add = parser.add_argument
    add("--env", default=demo.ENV_ID, metavar="ID", help="default: %(default)s")
    add(
        "--steps",
        type=int,
        default=1_000_000,
        help="environment steps on other tasks (default: %(default)s)",
    )
    add(
        "--seeds",
        type=int,
        nargs="+",
        metavar="SEED",
        help="default: 1 to 5; on other tasks 1 to 3",
    )
    add("--goal", type=float, default=demo.GOAL, help="mean return (default: %(default)s)")
    add("--learners", nargs="+", metavar="LEARNER", help="default: all")
    add_outputs(parser, "learning table", "plot the learning curves of other tasks")
    args = parser.parse_args(argv)
    known = LEARNERS if args.env == demo.ENV_ID else curves.learners_of(args.env)
    for name in args.learners or ():
        if name not in known:
            parser.error(f"--learners: expected some of {', '.join(known)}, got {name}")
    torch.set_num_threads(1)
    run = begin()
    if args.env != demo.ENV_ID:
        compare_curves(args, run)
        return
    args.seeds, args.learners = args.seeds or [1, 2, 3, 4, 5], args.learners or list(LEARNERS)
    found: dict[str, list[tuple[float, int, float]]] = {name: [] for name in args.learners}
    for seed in args.seeds:  # interleaved, because the machine's speed varies
        for name in args.learners:
            found[name].append(LEARNERS[name](seed, args.goal))
            seconds, steps, score = found[name][-1]
            print(f"seed {seed}, {name}: {seconds:.1f} s, {steps:,} steps, {score:.1f}", flush=True)
    print(f"\n{demo.ENV_ID} until the mean return of 100 episodes is {args.goal:g}, one thread\n")
    text = table(found, args.goal)
    print(text)
    results = [
        {"learner": name, "seconds": s, "steps": n, "mean_return": score, "seed": seed}
        for name, trials in found.items()
        for seed, (s, n, score) in zip(args.seeds, trials, strict=True)
    ]
    finish(args, __doc__, run, text, results=results)


def compare_curves(args: argparse.Namespace, run: dict[str, Any]) -> None:
    seeds = args.seeds or [1, 2, 3]
    found = curves.measure(args.env, args.learners, args.steps, seeds)
    text = curves.table(found)
    title = f"PPO on {args.env}, {args.steps:,} environment steps, {len(seeds)} seeds, one thread"
    print(f"\n{title}\n\n{text}")
    if args.png:
        curves.draw(found, args.steps, title, args.png)
    results = [
        {"learner": name, "seed": seed, "seconds": curve.seconds, "returns": curve.returns}
        for name, trained in found.items()
        for seed, curve in zip(seeds, trained, strict=True)
    ]
    finish(args, __doc__, run, text, results=results)


def table(found: dict[str, list[tuple[float, int, float]]], goal: float) -> str:
    own = np.median([seconds for seconds, _, _ in next(iter(found.values()))])
    rows = []
    for name, trials in found.items():
        seconds = [trial[0] for trial in trials]
        reached = sum(score >= goal for _, _, score in trials)
        rows.append(
            [
                name,
                f"{reached} of {len(trials)}",
                f"{np.median(seconds):.1f}",
                f"{max(seconds):.1f}",
                f"{np.median([steps for _, steps, _ in trials]):,.0f}",
                f"{np.median(seconds) / own:.2f}",
            ]
        )
    header = ["learner", "solved", "median s", "slowest s", "median steps", "time / first row"]
    return markdown_table(header, rows)


if __name__ == "__main__":
    main()
