"""Reference implementation of rollouts: one environment after the other, one tensor at a time.

Tests compare the collector's results with it. It is simple, and slow.
"""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

from xuance_envs.rollout.transfer import Transfer


class Player:
    """An agent whose outputs depend on the states, and are equal for equal seeds."""

    def __init__(self, action_space, device="cpu"):
        self.space = action_space
        self.device = torch.device(device)
        self.random = torch.Generator().manual_seed(5)
        self.saw = []

    def get_actions_and_values(self, states, actions=None):
        parts = parts_of(states)
        count = len(parts[0])
        self.saw.append(
            [(part.shape, part.dtype, part.device, part.requires_grad) for part in parts]
        )
        values = sum(part.double().reshape(count, -1).sum(1) for part in parts) / 100
        if actions is None:
            actions = self.draw(count).to(self.device)
        log_probs = -values - actions.double().reshape(count, -1).sum(1)
        return actions, log_probs.float(), values.float(), None

    def draw(self, count):
        space = self.space
        shape = (count, *space.shape)
        if isinstance(space, spaces.Discrete):
            numbers = torch.randint(int(space.n), shape, generator=self.random)
            return numbers + int(space.start)
        if isinstance(space, spaces.MultiDiscrete):
            numbers = torch.rand(shape, generator=self.random)
            return (numbers * torch.from_numpy(space.nvec)).long()
        if isinstance(space, spaces.MultiBinary):
            return torch.rand(shape, generator=self.random) < 0.5
        return torch.rand(shape, generator=self.random)


class StagedTransfer(Transfer):
    """As if the CPU were elsewhere; checks that nothing is written to what is being copied."""

    def __init__(self, device):
        super().__init__(device)
        self.direct = False
        self.sent = []

    def send(self, host, there):
        assert (host.shape, host.dtype) == (there.shape, there.dtype)
        super().send(host, there)
        self.sent.append((host, host.clone()))

    def mark(self):
        return "mark"

    def wait(self, mark):
        if mark is not None:
            assert all(torch.equal(host, copied) for host, copied in self.sent)
            self.sent.clear()


class Reference:
    """Reference values of a collector's attributes."""

    def __init__(self, env_fns, agent, steps, convert, window=10):
        self.envs = [env_fn() for env_fn in env_fns]
        self.agent = agent
        self.steps = steps
        self.convert = convert
        self.window = window
        self.now = [convert(env.reset()[0]) for env in self.envs]
        self.all_returns = [[] for _ in self.envs]
        self.all_lengths = [[] for _ in self.envs]
        self.running = [(0.0, 0) for _ in self.envs]

    def rollout(self):
        names = ["states", "actions", "rewards", "values", "log_probs", "done_flags", "trunc_flags"]
        rows = {name: [] for name in names}
        end_states = [[] for _ in self.envs]
        for t in range(self.steps):
            actions, log_probs, values, _ = self.agent.get_actions_and_values(stacked(self.now))
            outcomes = []
            states = list(self.now)
            for i, env in enumerate(self.envs):
                action = actions[i].numpy().astype(env.action_space.dtype)
                observation, reward, terminated, truncated, info = env.step(action)
                self.now[i] = self.convert(observation)
                self.note(i, reward, terminated or truncated, info)
                if terminated or truncated:
                    end_states[i].append(self.now[i])
                    self.now[i] = self.convert(env.reset()[0])
                elif t == self.steps - 1:
                    end_states[i].append(self.now[i])
                    truncated = True
                outcomes.append((reward, terminated, truncated))
            rewards, terminated, truncated = zip(*outcomes, strict=True)
            rows["states"].append(stacked(states))
            rows["actions"].append(actions)
            rows["rewards"].append(torch.tensor(rewards, dtype=torch.float32))
            rows["values"].append(values)
            rows["log_probs"].append(log_probs)
            rows["done_flags"].append(torch.tensor(terminated, dtype=torch.int32))
            rows["trunc_flags"].append(torch.tensor(truncated, dtype=torch.int32))
        for name in names:
            setattr(self, name, stacked(rows[name]))
        is_box = isinstance(self.envs[0].action_space, spaces.Box)
        self.actions = self.actions.to(torch.float32 if is_box else torch.int32)
        self.ends_by_env = end_states
        self.end_states = stacked([state for ends in end_states for state in ends])
        self.ep_counts = torch.tensor([len(ends) for ends in end_states], dtype=torch.int32)
        self.total_return = np.float32(sum(self.rewards.flatten().double().tolist()))
        self.t_states = stacked(self.now)

    def note(self, i, reward, ended, info):
        score, length = self.running[i]
        score, length = score + float(np.float32(reward)), length + 1
        self.running[i] = score, length
        if ended:
            if "episode" in info:
                score, length = float(info["episode"]["r"][0]), info["episode"]["l"]
            elif "episode_score" in info:
                score, length = info["episode_score"], info["episode_step"]
            self.all_returns[i].append(score)
            self.all_lengths[i].append(length)
            self.running[i] = 0.0, 0

    def advantages(self, gamma, gae_lambda):
        """Compute advantages by definition: a sum over all later steps of the segment."""
        found = torch.zeros_like(self.rewards)
        for i, ends in enumerate(self.ends_by_env):
            ends, first = list(ends), 0
            for t in range(self.steps):
                if not (self.done_flags[t, i] or self.trunc_flags[t, i]):
                    continue
                last_value = self.agent.get_actions_and_values(stacked([ends.pop(0)]))[2][0]
                following = [*self.values[first + 1 : t + 1, i], last_value]
                if self.done_flags[t, i]:
                    following[-1] = torch.tensor(0.0)
                deltas = [
                    self.rewards[s, i] + gamma * following[s - first] - self.values[s, i]
                    for s in range(first, t + 1)
                ]
                for s in range(first, t + 1):
                    found[s, i] = sum(
                        (gamma * gae_lambda) ** k * delta
                        for k, delta in enumerate(deltas[s - first :])
                    )
                first = t + 1
        return found

    @property
    def returns(self):
        return [found[-self.window :] for found in self.all_returns]

    @property
    def lengths(self):
        return [found[-self.window :] for found in self.all_lengths]


def parts_of(states):
    """Return the tensors in a nested state."""
    if isinstance(states, torch.Tensor):
        return [states]
    inner = states.values() if isinstance(states, dict) else states
    return [part for state in inner for part in parts_of(state)]


def stacked(states):
    """Stack states to a batch."""
    if isinstance(states[0], torch.Tensor):
        return torch.stack(list(states))
    if isinstance(states[0], dict):
        return {key: stacked([state[key] for state in states]) for key in states[0]}
    return tuple(stacked(list(parts)) for parts in zip(*states, strict=True))


def converter(dtype=torch.float32, moved=()):
    """Return a function that converts an observation to a state."""

    def convert(observation, key=None):
        if isinstance(observation, dict):
            return {key: convert(value, key) for key, value in observation.items()}
        if isinstance(observation, tuple):
            return tuple(convert(value) for value in observation)
        array = np.asarray(observation)
        if moved is True or (key is not None and key in moved):
            array = array.transpose(2, 0, 1)
        return torch.tensor(array.copy(), dtype=dtype)

    return convert
