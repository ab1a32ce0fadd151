"""The demo's training run: train an agent, plot its learning curve and record a GIF.

PPO comes from ``examples/train_ppo.py``, so that there is only one implementation.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from tqdm import tqdm

from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.gym.gym_vec_env import DummyVecEnv_Gym, SubprocVecEnv_Gym
from xuance_envs.report import plot_learning
from xuance_envs.rollout.collector import RolloutCollector
from xuance_envs.rollout.recorder import GifRecorder
from xuance_envs.transforms.normalize_observations import NormalizeObservations

ENV_ID = "CartPole-v1"
GOAL = 475.0
"""Mean return at which CartPole-v1 counts as solved."""

NUM_ENVS = 32
EPISODES = 100
"""Number of recent episodes that the mean return covers."""

MAX_STEPS = 1_000_000
GIF_FPS = 50.0


@dataclass
class TrainingHistory:
    """Episode returns, duration and normalization statistics of a training run."""

    steps: int = 0
    seconds: float = 0.0
    episodes: list[tuple[int, float]] = field(default_factory=list)
    means: list[tuple[int, float]] = field(default_factory=list)
    scale: dict[str, Any] = field(default_factory=dict)

    @property
    def mean_return(self) -> float:
        return self.means[-1][1]


def show_learning(seed: int, goal: float, out: Path) -> bool:
    """Train an agent, save its learning curve and a GIF; return whether it reached the goal."""
    print(
        f"\nTraining PPO on {ENV_ID} (SubprocVecEnv_Gym, {NUM_ENVS} environments, seed {seed})\n"
        f"until the mean return of the last {EPISODES} episodes reaches {goal:g}:",
        flush=True,
    )
    agent, history = train(seed, goal)
    reached = history.mean_return >= goal
    print(
        f"{'Goal reached' if reached else 'STOPPED'} after {history.seconds:.1f} s and "
        f"{history.steps:,} environment steps: mean return {history.mean_return:.1f}"
    )
    curve = out / f"{ENV_ID}-learning.png"
    plot_learning(
        history.episodes, history.means, curve, title=f"PPO on {ENV_ID}, seed {seed}", goal=goal
    )
    print("Learning curve and GIF of the trained agent:", flush=True)
    print(curve)
    print(record(agent, history.scale, out / f"{ENV_ID}-agent.gif", seed), flush=True)
    return reached


def train(seed: int, goal: float) -> tuple[Any, TrainingHistory]:
    """Train until the mean return reaches the goal, and show progress."""
    ppo = load_example()
    torch.manual_seed(seed)
    # Small layers are faster with one thread, and the workers need the other cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = ppo.Settings()
    last: deque[float] = deque(maxlen=EPISODES)
    history = TrainingHistory()
    envs = NormalizeObservations(
        SubprocVecEnv_Gym([partial(Gym_Env, ENV_ID)] * NUM_ENVS, copy=False, caller_steps=True)
    )
    agent = ppo.Agent(envs.observation_space.shape, envs.action_space)
    start = time.perf_counter()
    with (
        RolloutCollector(envs, agent, settings.steps_per_env, device="cpu", seed=seed) as collector,
        tqdm(unit=" steps", unit_scale=True, desc="learning", disable=None) as bar,
    ):
        for _ in ppo.train(collector, agent, settings):
            history.steps = collector.global_steps
            last.extend(collector.finished_ep_returns)
            history.episodes += [(history.steps, score) for score in collector.finished_ep_returns]
            history.means.append((history.steps, float(np.mean(last)) if last else 0.0))
            bar.set_postfix_str(f"mean return {history.mean_return:.1f}", refresh=False)
            bar.update(history.steps - bar.n)
            enough = len(last) == EPISODES and history.mean_return >= goal
            if enough or history.steps >= MAX_STEPS:
                break
    history.seconds, history.scale = time.perf_counter() - start, envs.state_dict()
    torch.set_num_threads(threads)
    return agent, history


def record(agent: Any, scale: dict[str, Any], path: Path, seed: int) -> Path:
    envs = NormalizeObservations(
        DummyVecEnv_Gym([partial(Gym_Env, ENV_ID, render_mode="rgb_array")])
    )
    envs.load_state_dict(scale)
    envs.freeze()
    recorder = GifRecorder(envs.max_episode_steps, GIF_FPS, path.parent)
    with RolloutCollector(
        envs, agent, steps_per_env=10, device="cpu", recorder=recorder, seed=seed
    ) as collector:
        while not recorder.paths:
            collector.rollout()
    return recorder.paths[0].rename(path)


def load_example() -> ModuleType:
    """Import ``examples/train_ppo.py`` from beside the package (clone) or inside it (wheel)."""
    package = Path(__file__).parent
    candidates = [folder / "examples" / "train_ppo.py" for folder in (package, package.parent)]
    found = next(path for path in candidates if path.is_file())
    spec = importlib.util.spec_from_file_location("xuance_envs_train_ppo", found)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module here
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it by this name
    spec.loader.exec_module(module)
    return module
