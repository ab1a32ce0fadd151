"""Treasure or time: PPO on mo-gymnasium's deep-sea-treasure, with several linear scalarizations.

    python examples/multi_objective_ppo.py
    python examples/multi_objective_ppo.py --weights 0.5 5 --steps 100000

A submarine searches for treasures. More valuable treasures are farther away. A reward has two
components: the treasure, and -1 for each step. One policy is trained for each weight of this time
penalty: the greater the weight, the nearer the treasure that the policy reaches.

The script needs the extras `torch` and `multi-objective`. It uses the PPO of `train_ppo.py`.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import mo_gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from train_ppo import Agent, Settings, train

from xuance_envs import DummyVecEnv, RolloutCollector, VecEnv, transforms

ENV = "deep-sea-treasure-v0"
SIDE = 11
SETTINGS = Settings(32, 5e-3, 100_000, batch_size=256, gamma=0.995, entropy_weight=0.1)


def places(obs: NDArray[np.int32]) -> NDArray[np.float32]:
    """Encode rows and columns as one-hot vectors."""
    return np.eye(SIDE, dtype=np.float32)[obs].reshape(len(obs), -1)


def make_envs(num_envs: int, time_weight: float) -> VecEnv:
    """Create environments with one-hot states and normalized rewards ``treasure - time_weight``."""
    envs: VecEnv = DummyVecEnv([partial(mo_gymnasium.make, ENV)] * num_envs)
    envs = transforms.EpisodeStatistics(envs)  # records vector returns, before all other transforms
    envs = transforms.ScalarizeRewards(envs, [1.0, time_weight])
    envs = transforms.NormalizeRewards(envs, SETTINGS.gamma)
    return transforms.TransformObservations(envs, places, Box(0, 1, (2 * SIDE,), np.float32))


def learn(time_weight: float, steps: int, num_envs: int, seed: int) -> NDArray[np.float64]:
    """Train a policy; return the mean ``(treasure, -steps)`` of at least 100 test episodes."""
    torch.manual_seed(seed)
    envs = make_envs(num_envs, time_weight)
    agent = Agent(envs.obs_shape, envs.action_space)
    returns: list[Any] = []
    with RolloutCollector(envs, agent, SETTINGS.steps_per_env, seed=seed) as collector:
        for _ in train(collector, agent, SETTINGS):
            if collector.global_steps >= steps:
                break
        obs, _ = envs.reset(seed=seed + 1)
        while len(returns) < 100:
            with torch.no_grad():
                logits = agent.policy_head(agent.policy_body(torch.from_numpy(obs)))
            obs, *_, infos = envs.step(logits.argmax(-1).numpy())
            returns += [info["episode"]["r"] for info in infos if "episode" in info]
            for env, info in enumerate(infos):
                obs[env] = info.get("reset_obs", obs[env])
    return np.mean(returns, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    add = partial(parser.add_argument, metavar="N")
    add("--weights", type=float, nargs="+", default=[0.5, 1.4, 5.0], help="weights of the penalty")
    add("--steps", type=int, default=60_000, help="environment steps per weight")
    add("--num-envs", type=int, default=16)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for weight in args.weights:
        began = time.perf_counter()
        treasure, steps = learn(weight, args.steps, args.num_envs, args.seed)
        print(
            f"time weight {weight:g}: treasure {treasure:.1f} in {-steps:.1f} steps "
            f"(trained for {time.perf_counter() - began:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
