"""Atari games as in the DQN paper, and a rollout of a small torch policy."""

import torch

from xuance_envs import RolloutCollector, make_vec


class Policy(torch.nn.Module):
    def __init__(self, num_actions):
        super().__init__()
        layers = [torch.nn.Conv2d(4, 8, 8, 4), torch.nn.ReLU(), torch.nn.Flatten()]
        self.body = torch.nn.Sequential(*layers, torch.nn.Linear(8 * 20 * 20, num_actions + 1))

    def get_actions_and_values(self, states, actions=None):
        out = self.body(states / 255)
        policy = torch.distributions.Categorical(logits=out[:, :-1])
        actions = policy.sample() if actions is None else actions
        return actions, policy.log_prob(actions), out[:, -1], policy.entropy()


envs = make_vec("ALE/Pong-v5", 2, backend="dummy", atari_preset="dqn")
print(envs.observation_space.shape)
collector = RolloutCollector(envs, Policy(envs.action_space.n), 16, device="cpu")
collector.rollout()
print(tuple(collector.states.shape), tuple(collector.advantages(0.99, 0.95).shape))
collector.close()
