"""Learning curves of a continuous task: the example's PPO, and published settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from xuance_envs.demo import load_example
from xuance_envs.report import markdown_table

EPISODES = 100
"""Number of last episodes in a mean return."""


@dataclass
class Curve:
    """One training run: seconds, and (environment steps, return) of each episode."""

    seconds: float
    returns: list[tuple[int, float]]

    @property
    def last(self) -> float:
        """The mean return of the last episodes."""
        return float(np.mean([score for _, score in self.returns[-EPISODES:]] or [np.nan]))

    def at(self, steps: Sequence[int]) -> list[float]:
        """Return the mean return before each of these steps; NaN before the first episode."""
        when, scores = np.array(self.returns or [(0, np.nan)]).T
        ends = when.searchsorted(steps, side="right")
        return [
            float(np.mean(scores[max(end - EPISODES, 0) : end])) if end else np.nan for end in ends
        ]


def ours(env_id: str, steps: int, seed: int) -> Curve:
    """Train with ``examples/train_ppo.py`` in 32 environments."""
    from xuance_envs.rollout.collector import RolloutCollector

    ppo = load_example()
    torch.manual_seed(seed)
    settings = ppo.settings_for(env_id)
    envs = ppo.make_envs(env_id, 32, "subproc", settings.gamma)
    agent = ppo.Agent(envs.observation_space.shape, envs.action_space)
    returns: list[tuple[int, float]] = []
    with RolloutCollector(
        envs, agent, settings.steps_per_env, device="cpu", seed=seed
    ) as collector:
        start = time.perf_counter()
        updates = ppo.train(collector, agent, settings)
        for _ in takewhile(lambda _: collector.global_steps < steps, updates):
            returns += [(collector.global_steps, r) for r in collector.finished_ep_returns]
        returns += [(collector.global_steps, r) for r in collector.finished_ep_returns]
        return Curve(time.perf_counter() - start, returns)


def sb3(
    env_id: str, steps: int, seed: int, num_envs: int, anneal: bool = False, **settings: Any
) -> Curve:
    """Train with Stable-Baselines3's PPO and ``VecNormalize``."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    returns: list[tuple[int, float]] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            ends = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            returns.extend((self.num_timesteps, float(score)) for score in ends)
            return True

    envs = VecNormalize(make_vec_env(env_id, num_envs, seed=seed), gamma=settings["gamma"])
    rate = settings.pop("learning_rate")
    schedule = (lambda rest: rate * rest) if anneal else rate
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu", learning_rate=schedule, **settings)
    start = time.perf_counter()
    model.learn(steps, callback=Watch())
    seconds = time.perf_counter() - start
    envs.close()
    return Curve(seconds, returns)


CLEANRL: dict[str, Any] = {
    "num_envs": 1,
    "anneal": True,
    "learning_rate": 3e-4,
    "n_steps": 2048,
    "batch_size": 64,
    "n_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "clip_range_vf": 0.2,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "policy_kwargs": {"activation_fn": torch.nn.Tanh, "net_arch": [64, 64]},
}
"""Settings of CleanRL's ``ppo_continuous_action``."""

ZOO: dict[str, dict[str, Any]] = {
    "HalfCheetah": {
        "num_envs": 1,
        "learning_rate": 2.0633e-05,
        "n_steps": 512,
        "batch_size": 64,
        "n_epochs": 20,
        "gamma": 0.98,
        "gae_lambda": 0.92,
        "clip_range": 0.1,
        "ent_coef": 0.000401762,
        "vf_coef": 0.58096,
        "max_grad_norm": 0.8,
        "policy_kwargs": {
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": torch.nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
    },
    "Pendulum": {
        "num_envs": 4,
        "learning_rate": 1e-3,
        "n_steps": 1024,
        "batch_size": 64,
        "n_epochs": 10,
        "gamma": 0.9,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "ent_coef": 0.0,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
}
"""Settings of RL Baselines3 Zoo, by task."""


def learners_of(env_id: str) -> dict[str, Callable[[int, int], Curve]]:
    """Return training functions by name."""
    learners = {
        "ours": partial(ours, env_id),
        "SB3, settings of CleanRL": lambda steps, seed: sb3(env_id, steps, seed, **CLEANRL),
    }
    zoo = ZOO.get(env_id.partition("-")[0])
    if zoo is not None:
        learners["SB3, settings of its zoo"] = lambda steps, seed: sb3(env_id, steps, seed, **zoo)
    return learners


def measure(
    env_id: str, names: Sequence[str] | None, steps: int, seeds: Sequence[int]
) -> dict[str, list[Curve]]:
    """Train each learner with each seed, interleaved, because the machine's speed varies."""
    learners = learners_of(env_id)
    found: dict[str, list[Curve]] = {name: [] for name in learners if not names or name in names}
    with tqdm(
        total=len(found) * len(seeds), unit="training", dynamic_ncols=True, disable=None
    ) as bar:
        for seed in seeds:
            for name, curves in found.items():
                bar.set_description(f"{name}, seed {seed}")
                curves.append(learners[name](steps, seed))
                bar.write(
                    f"seed {seed}, {name}: {curves[-1].seconds:.0f} s, "
                    f"mean return {curves[-1].last:.1f}"
                )
                bar.update()
    return found


def table(found: dict[str, list[Curve]]) -> str:
    """Return a table with a row per learner."""
    first = np.array([curve.seconds for curve in next(iter(found.values()))])
    rows = []
    for name, curves in found.items():
        last = [curve.last for curve in curves]
        seconds = np.array([curve.seconds for curve in curves])
        rows.append(
            [
                name,
                f"{np.mean(last):,.0f}",
                f"{min(last):,.0f} to {max(last):,.0f}",
                f"{np.median(seconds):,.0f}",
                f"{np.median(seconds / first):.2f}",
            ]
        )
    header = [
        "learner",
        f"mean return of {EPISODES} episodes",
        "range over seeds",
        "s",
        "time / first row",
    ]
    return markdown_table(header, rows)


def draw(found: dict[str, list[Curve]], steps: int, title: str, path: Path) -> None:
    """Draw the mean over the seeds, and the range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    at = np.linspace(0, steps, 201)[1:]
    for name, curves in found.items():
        scores = np.array([curve.at(at.tolist()) for curve in curves])
        drawn = ~np.isnan(scores).any(axis=0)
        (line,) = axes.plot(at[drawn], scores[:, drawn].mean(0), label=name)
        lowest, highest = scores[:, drawn].min(0), scores[:, drawn].max(0)
        axes.fill_between(at[drawn], lowest, highest, alpha=0.2, color=line.get_color())
    axes.set(title=title, xlabel="environment steps", ylabel=f"mean return of {EPISODES} episodes")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
