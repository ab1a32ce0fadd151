"""Tianshou's DQN on CartPole; only the vectorized environment is from xuance_envs.

Needs Tianshou 2.0 or later: pip install tianshou.
Run: python examples/tianshou_dqn.py --epochs 5 --epoch-steps 10000 --num-envs 8
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch


def learn(make_envs: Any, epochs: int, epoch_steps: int, num_envs: int, seed: int) -> Any:
    """Train with a vectorized environment class; return the algorithm and the result."""
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, CollectStats, VectorReplayBuffer
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

    np.random.seed(seed)
    torch.manual_seed(seed)
    env_fns = [lambda: gymnasium.make("CartPole-v1")] * num_envs
    train_envs, test_envs = make_envs(env_fns), make_envs(env_fns)
    train_envs.seed(seed)
    test_envs.seed(seed + num_envs)
    env = gymnasium.make("CartPole-v1")
    net = Net(state_shape=4, action_shape=2, hidden_sizes=(64, 64))
    policy = DiscreteQLearningPolicy(
        model=net, action_space=env.action_space, eps_training=0.1, eps_inference=0.0
    )
    optim = AdamOptimizerFactory(lr=1e-3)
    algorithm: Any = DQN(
        policy=policy, optim=optim, gamma=0.99, n_step_return_horizon=3, target_update_freq=320
    )
    buffer = VectorReplayBuffer(20_000, num_envs)
    training = Collector[CollectStats](algorithm, train_envs, buffer, exploration_noise=True)
    training.reset()
    training.collect(n_step=16 * num_envs)
    result = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=training,
            test_collector=Collector[CollectStats](algorithm, test_envs),
            max_epochs=epochs,
            epoch_num_steps=epoch_steps,
            collection_step_num_env_steps=2 * num_envs,
            update_step_num_gradient_steps_per_sample=0.25,
            test_step_num_episodes=num_envs,
            batch_size=64,
        )
    )
    train_envs.close()
    test_envs.close()
    return algorithm, result


def main() -> None:
    """Train, and print the mean return of the best test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--epoch-steps", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--num-envs", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    args = parser.parse_args()
    try:
        # The changed line; before: from tianshou.env import SubprocVectorEnv
        from xuance_envs.compat.tianshou import SubprocVectorEnv
    except ImportError as error:
        raise SystemExit(f"this example needs Tianshou: {error}") from error
    _, result = learn(SubprocVectorEnv, args.epochs, args.epoch_steps, args.num_envs, args.seed)
    print(f"mean return of the best test: {result.best_reward:.0f}")


if __name__ == "__main__":
    main()
