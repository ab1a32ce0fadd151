"""Stable-Baselines3's PPO on CartPole; only the vectorized environment is from xuance_envs.

Needs Stable-Baselines3: pip install "xuance_envs[sb3]". Run: python examples/sb3_ppo.py
"""

from __future__ import annotations

import argparse

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

# was: from stable_baselines3.common.vec_env import SubprocVecEnv
from xuance_envs.compat.sb3 import SubprocVecEnv


def main() -> None:
    """Evaluate, train and evaluate again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timesteps", type=int, default=50_000, help="default: %(default)s")
    parser.add_argument("--num-envs", type=int, default=8, help="default: %(default)s")
    args = parser.parse_args()

    torch.set_num_threads(1)  # small policy; the other cores step environments
    envs = make_vec_env("CartPole-v1", args.num_envs, seed=1, vec_env_cls=SubprocVecEnv)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=1e-3,
        seed=1,
        device="cpu",
        verbose=1,
    )
    before, _ = evaluate_policy(model, envs, n_eval_episodes=20)
    model.learn(args.timesteps, log_interval=20)
    after, _ = evaluate_policy(model, envs, n_eval_episodes=20)
    envs.close()
    print(f"mean return of 20 episodes: {before:.0f} before, {after:.0f} after training")


if __name__ == "__main__":
    main()
