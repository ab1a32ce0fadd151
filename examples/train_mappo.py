"""MAPPO in one file: a shared policy, and a critic that sees the observations of all agents.

    python examples/train_mappo.py
    python examples/train_mappo.py --env mpe2:simple_reference_v3 --plot reference.png

With `--checkpoint DIR`, the training run can be killed at any time. `--resume DIR` continues from
the last checkpoint. The final weights are identical to those of an uninterrupted run.

The algorithm is the basic form of MAPPO in Yu et al. 2021, https://arxiv.org/abs/2103.01955. The
script needs the extras `torch`, `multi-agent` (for mpe2's environments) and `plot` (for `--plot`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from train_ppo import add_checkpoints, resume, save_checkpoint

from xuance_envs import MultiAgentRolloutCollector, RolloutCollector, make_multi_agent_vec

STEPS_PER_ENV, BATCH, EPOCHS, LEARNING_RATE = 50, 800, 10, 7e-4  # BATCH counts environment steps
GAMMA, GAE_LAMBDA, CLIP = 0.99, 0.95, 0.2
ENTROPY_WEIGHT, MAX_GRADIENT = 0.01, 10.0


def network(size: int, outputs: int, gain: float) -> nn.Sequential:
    """Create a network of two hidden layers of 64 units, with orthogonal weights."""
    layers = [nn.Linear(size, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


class Agent(nn.Module):
    """A shared policy with one-hot agent ids, and a critic that sees all observations."""

    def __init__(self, obs_size: int, num_agents: int, num_actions: int) -> None:
        super().__init__()
        self.policy = network(obs_size + num_agents, num_actions, 0.01)
        self.critic = network(obs_size * num_agents, num_agents, 1.0)
        self.register_buffer("who", torch.eye(num_agents))
        # Running mean and scale of the returns. The critic predicts normalized values.
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def get_actions_and_values(self, obs, states, masks, actions=None):
        """Return actions, log-probabilities, values and entropies."""
        who = self.who.expand(len(obs), -1, -1)
        logits = self.policy(torch.cat([obs, who], dim=-1))
        if masks is not None:
            logits = logits.masked_fill(~masks, -1e9)
        chances = torch.distributions.Categorical(logits=logits, validate_args=False)
        if actions is None:
            actions = chances.sample()
        values = self.critic(obs.flatten(1)) * self.scale + self.mean
        return actions, chances.log_prob(actions), values, chances.entropy()


def improve(
    agent: Agent, optimizer: torch.optim.Optimizer, play: MultiAgentRolloutCollector
) -> None:
    """Update the agent from a rollout, without the rows of inactive agents."""
    advantages = play.advantages(GAMMA, GAE_LAMBDA)
    returns = advantages + play.values
    agent.mean += 0.1 * (returns[play.acted].mean() - agent.mean)
    agent.scale += 0.1 * (returns[play.acted].std() - agent.scale)
    counts = advantages[play.acted]
    advantages = (advantages - counts.mean()) / (counts.std() + 1e-8)
    flat = [
        None if tensor is None else tensor.flatten(0, 1)
        for tensor in (
            *(play.obs, play.action_masks, play.actions),
            *(play.log_probs, advantages, returns, play.acted),
        )
    ]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(flat[0])).split(BATCH):
            obs, masks, actions, old, gained, wanted, acted = (
                None if tensor is None else tensor[rows] for tensor in flat
            )
            _, log_probs, values, entropy = agent.get_actions_and_values(obs, None, masks, actions)
            ratio = (log_probs - old).exp()
            gain = torch.minimum(ratio * gained, ratio.clamp(1 - CLIP, 1 + CLIP) * gained)
            missed = nn.functional.huber_loss(
                (values - agent.mean) / agent.scale,
                (wanted - agent.mean) / agent.scale,
                reduction="none",
            )
            loss = (missed - gain - ENTROPY_WEIGHT * entropy)[acted].mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT)
            optimizer.step()


def plot(path: str, curve: Sequence[tuple[int, float]], title: str) -> None:
    """Plot the learning curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*curve, strict=True))
    axes.set(xlabel="environment steps", ylabel="mean return of an agent", title=title)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def train(
    env_id: str,
    num_envs: int,
    steps: int,
    backend: str = "subproc",
    seed: int = 1,
    checkpoint: Path | None = None,
    every: int = 10,
    resumed: Path | None = None,
) -> tuple[float, list[tuple[int, float]]]:
    """Train the agent; return the duration in seconds and the learning curve."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    envs = make_multi_agent_vec(env_id, num_envs, backend=backend, state=False)
    first = envs.agents[0]
    agent = Agent(
        envs.observation_space[first].shape[0],
        envs.num_agents,
        int(envs.action_space[first].n),
    )
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
    began, curve = time.perf_counter(), []
    with RolloutCollector(envs, agent, STEPS_PER_ENV, seed=seed) as play:
        if resumed is not None:
            # trusted=True allows objects of any class in the states, such as mpe2's. Loading them
            # can run arbitrary code, so use it only for checkpoints that you wrote.
            resume(resumed, play, agent, optimizer, trusted=True)
        updates = 0
        while play.global_steps < steps:
            play.rollout()
            improve(agent, optimizer, play)
            updates += 1
            if checkpoint is not None and (updates % every == 0 or play.global_steps >= steps):
                save_checkpoint(checkpoint, play, agent, optimizer)
            if play.mean_ep_return == play.mean_ep_return:  # not NaN: an episode has finished
                curve.append((play.global_steps, play.mean_ep_return))
            if len(curve) % 25 == 1:
                print(
                    f"{play.global_steps:>8,} steps: mean return {play.mean_ep_return:.1f}",
                    flush=True,
                )
        seconds, last = time.perf_counter() - began, play.mean_ep_return
        print(f"{play.global_steps:,} steps in {seconds:.0f} s: mean return {last:.1f}")
    return seconds, curve


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="mpe2:simple_spread_v3")
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--steps", type=int, default=120_000, help="environment steps")
    parser.add_argument("--backend", default="subproc", choices=["auto", "dummy", "subproc"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", metavar="FILE")
    add_checkpoints(parser)
    args = parser.parse_args(argv)
    kept = args.checkpoint, args.every, args.resume
    seconds, curve = train(args.env, args.num_envs, args.steps, args.backend, args.seed, *kept)
    if args.plot:
        plot(args.plot, curve, f"{args.env}, {args.num_envs} environments, {seconds:.0f} s")


if __name__ == "__main__":
    main()
