"""PPO in one file in CleanRL's style; only the vectorized environment is from xuance_envs.

Needs torch: pip install "xuance_envs[torch]". Run: python examples/cleanrl_style_ppo.py
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

# was: from gymnasium.vector import AsyncVectorEnv
from xuance_envs.compat.gymnasium import AsyncVectorEnv


class Agent(nn.Module):
    """A policy and a value function, each with a small network."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.policy = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
            nn.Linear(64, actions),
        )  # fmt: skip
        self.value = nn.Sequential(
            nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
            nn.Linear(64, 1),
        )  # fmt: skip


def main() -> None:
    """Train the agent: collect a rollout, update, repeat."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timesteps", type=int, default=60_000, help="default: %(default)s")
    parser.add_argument("--num-envs", type=int, default=8, help="default: %(default)s")
    args = parser.parse_args()
    num_steps, epochs, minibatches, gamma, gae_lambda, clip = 64, 8, 4, 0.99, 0.95, 0.2

    torch.manual_seed(1)
    torch.set_num_threads(1)  # small networks; the other cores step environments
    envs = AsyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * args.num_envs, autoreset_mode="SameStep"
    )
    envs = RecordEpisodeStatistics(envs)
    shape = (num_steps, args.num_envs)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)

    obs = torch.zeros((*shape, *envs.single_observation_space.shape))
    actions, log_probs, rewards, values, next_values, dones = (torch.zeros(shape) for _ in range(6))
    returns: list[float] = []
    next_obs = torch.from_numpy(envs.reset(seed=1)[0])
    for update in range(args.timesteps // (num_steps * args.num_envs)):
        for step in range(num_steps):
            obs[step] = next_obs
            with torch.no_grad():
                policy = Categorical(logits=agent.policy(next_obs))
                actions[step] = policy.sample()
                log_probs[step] = policy.log_prob(actions[step])
                values[step] = agent.value(next_obs).squeeze(-1)
            batch, reward, terminated, truncated, infos = envs.step(
                actions[step].numpy().astype(np.int64)
            )
            ended = terminated | truncated
            last_obs = batch.copy()  # `batch` has the first obs of new episodes
            for i in np.flatnonzero(ended):
                last_obs[i] = infos["final_obs"][i]
                returns.append(float(infos["episode"]["r"][i]))
            with torch.no_grad():
                value = agent.value(torch.from_numpy(last_obs)).squeeze(-1)
            next_values[step] = value * torch.from_numpy(~terminated)  # 0 if terminated
            rewards[step], dones[step] = torch.from_numpy(reward), torch.from_numpy(ended)
            next_obs = torch.from_numpy(batch)

        advantages, last = torch.zeros(shape), torch.zeros(args.num_envs)
        for t in reversed(range(num_steps)):
            delta = rewards[t] + gamma * next_values[t] - values[t]
            last = delta + gamma * gae_lambda * (1 - dones[t]) * last
            advantages[t] = last
        targets = (advantages + values).flatten()
        flat = [part.flatten(0, 1) for part in (obs, actions, log_probs, advantages)]

        for _ in range(epochs):
            for rows in torch.randperm(len(targets)).chunk(minibatches):
                states, chosen, old, gain = (part[rows] for part in flat)
                policy = Categorical(logits=agent.policy(states))
                ratio = (policy.log_prob(chosen) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                surrogate = torch.min(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain).mean()
                error = (agent.value(states).squeeze(-1) - targets[rows]).square().mean()
                loss = -surrogate + 0.5 * error - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        if update % 10 == 9:
            steps = (update + 1) * num_steps * args.num_envs
            print(f"{steps:7,} steps, return {np.mean(returns[-20:]):.0f}")
    envs.close()
    print(
        f"mean return: {np.mean(returns[:20]):.0f} at the start, "
        f"{np.mean(returns[-20:]):.0f} at the end"
    )


if __name__ == "__main__":
    main()
