"""PPO in one file with RolloutCollector: Discrete and Box actions, vectors and Atari images.

    python examples/train_ppo.py --env CartPole-v1
    python examples/train_ppo.py --env Taxi-v4 --steps 300000
    python examples/train_ppo.py --env ALE/Breakout-v5 --num-envs 16 --steps 10000000
    python examples/train_ppo.py --env Pendulum-v1 --steps 300000 --save pendulum.pt
    python examples/train_ppo.py --env Pendulum-v1 --steps 50000 --play pendulum.pt
    python examples/train_ppo.py --collectors 2

With `--checkpoint DIR`, the training run can be killed at any time. `--resume DIR` continues it. On
a CPU, the final weights are bitwise identical to those of an uninterrupted run.

The algorithm is proximal policy optimization, Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
The script needs the extras `torch`, `atari` (for Atari games) and `ray` (for `--collectors`).
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium import wrappers
from torch import nn

import xuance_envs
from xuance_envs import Gym_Env, RayRolloutCollector, RolloutCollector, VecEnv, transforms

ATARI_IDS = "ALE/"
Collector = RolloutCollector | RayRolloutCollector


@dataclass(frozen=True)
class Settings:
    """PPO hyperparameters. The defaults suit CartPole and similar environments."""

    steps_per_env: int = 64
    learning_rate: float = 5e-3
    annealed_over: int = 300_000  # environment steps until the rate is a tenth of the initial one
    epochs: int = 4
    batch_size: int = 512
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.0
    max_gradient: float = 0.5


DISCRETE_STATES = Settings(annealed_over=500_000, entropy_weight=0.02)
CONTINUOUS = Settings(128, 1e-3, 1_000_000, epochs=10, batch_size=256, gamma=0.98)
ATARI = Settings(128, 2.5e-4, 10_000_000, epochs=4, clip=0.1, entropy_weight=0.01)


# --- the agent ----------------------------------------------------------------------------------


def layer(module: Any, gain: float = 2**0.5) -> Any:
    """Initialize a layer with orthogonal weights and zero bias."""
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


def vector_body(size: int) -> nn.Module:
    """Create two layers of 64 units."""
    return nn.Sequential(layer(nn.Linear(size, 64)), nn.ReLU(), layer(nn.Linear(64, 64)), nn.ReLU())


def image_body(channels: int) -> nn.Module:
    """Create the network of Mnih et al. 2015 for 84×84 images: doi.org/10.1038/nature14236."""
    return nn.Sequential(
        *(layer(nn.Conv2d(channels, 32, 8, stride=4)), nn.ReLU()),
        *(layer(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU()),
        *(layer(nn.Conv2d(64, 64, 3)), nn.ReLU(), nn.Flatten()),
        *(layer(nn.Linear(64 * 7 * 7, 512)), nn.ReLU()),
    )


class Agent(nn.Module):
    """A policy and a value function; for images, they share all layers but the last."""

    def __init__(
        self, state_shape: tuple[int, ...], action_space: gymnasium.Space[Any], scales: bool = False
    ) -> None:
        super().__init__()
        # Normalizes vectors if the environments do not. Its buffers are saved with the weights.
        scale = partial(nn.BatchNorm1d, eps=1e-8, affine=False, momentum=None)
        self.scale = scale(*state_shape).eval() if scales else None
        self.is_discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        self.first = int(action_space.start) if self.is_discrete else 0
        actions = int(action_space.n) if self.is_discrete else action_space.shape[0]
        self.sees_images = len(state_shape) == 3
        if self.sees_images:
            self.policy_body = self.value_body = image_body(state_shape[0])
        else:
            self.policy_body, self.value_body = (vector_body(state_shape[0]) for _ in range(2))
        features = 512 if self.sees_images else 64
        self.policy_head = layer(nn.Linear(features, actions), 0.01)
        self.value_head = layer(nn.Linear(features, 1), 1.0)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(0.5)))  # for actions in ±1

    def get_actions_and_values(
        self, states: torch.Tensor, actions: Any = None, masks: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return actions (sampled unless given), log-probabilities, values and entropy."""
        if self.sees_images:
            states = states / 255
        elif self.scale is not None:
            states = self.scale(states).clamp(-10, 10)
        features = self.policy_body(states)
        policy = self.policy_head(features)
        if masks is not None:
            policy = policy.masked_fill(~masks, -1e8)
        values = self.value_head(features if self.sees_images else self.value_body(states))
        act = self.choose if self.is_discrete else self.move
        actions, log_probs, entropy = act(policy, actions)
        return actions, log_probs, values.squeeze(-1), entropy

    def choose(self, logits: torch.Tensor, actions: torch.Tensor | None) -> Any:
        """Sample or evaluate discrete actions."""
        logs = logits.log_softmax(-1)
        if actions is None:  # much cheaper than torch.multinomial
            actions = (logs.exp() / torch.empty_like(logs).exponential_()).argmax(-1) + self.first
        chosen = logs.gather(-1, (actions.long() - self.first).unsqueeze(-1)).squeeze(-1)
        return actions, chosen, -(logs.exp() * logs).sum(-1)

    def move(self, means: torch.Tensor, actions: torch.Tensor | None) -> Any:
        """Sample or evaluate continuous actions with a normal distribution."""
        normal = torch.distributions.Normal(means, self.log_std.exp(), validate_args=False)
        if actions is None:
            actions = normal.sample()
        return actions, normal.log_prob(actions).sum(-1), normal.entropy().sum(-1)


# --- learning -----------------------------------------------------------------------------------


def optimizer_for(agent: Agent, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.Adam(agent.parameters(), settings.learning_rate, eps=1e-5, fused=True)


def train(
    collector: Collector,
    agent: Agent,
    settings: Settings,
    optimizer: torch.optim.Optimizer | None = None,
    pauses: Callable[[int], bool] = lambda number: False,
) -> Iterator[None]:
    """Train endlessly; each iteration collects one rollout and makes one update.

    Collectors on a cluster collect the next rollout during update ``number``, unless
    ``pauses(number)`` is True.
    """
    optimizer = optimizer or optimizer_for(agent, settings)
    for number in count(1):
        done = min(collector.global_steps / settings.annealed_over, 1.0)
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - 0.9 * done)
        collector.rollout()
        if isinstance(collector, RayRolloutCollector) and not pauses(number):
            collector.collect_async()  # collect the next rollout during the update
        update(collector, agent, optimizer, settings)
        if agent.scale is not None:
            agent.scale.train()(collector.states.detach().flatten(0, 1))
            agent.scale.eval()
        if isinstance(collector, RayRolloutCollector):
            collector.update_agent()
        yield


def update(
    collector: Collector, agent: Agent, optimizer: torch.optim.Optimizer, settings: Settings
) -> None:
    """Update the agent from the last rollout."""
    advantages = collector.advantages(settings.gamma, settings.gae_lambda).flatten()
    returns = advantages + collector.values.flatten()
    states = collector.states.detach().flatten(0, 1)
    actions = collector.actions.flatten(0, 1)
    old_log_probs = collector.log_probs.flatten()
    masks = None if collector.action_masks is None else collector.action_masks.flatten(0, 1)
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(states), device=states.device).split(settings.batch_size):
            allowed = None if masks is None else masks[rows]
            answer = agent.get_actions_and_values(states[rows], actions[rows], allowed)
            _, log_probs, values, entropy = answer
            advantage = advantages[rows]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (log_probs - old_log_probs[rows]).exp()
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            loss = (
                -torch.min(ratio * advantage, clipped * advantage).mean()
                + settings.value_weight * (values - returns[rows]).square().mean()
                - settings.entropy_weight * entropy.mean()
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), settings.max_gradient)
            optimizer.step()


def save(path: str, agent: Agent, envs: VecEnv) -> None:
    """Save an agent with its normalization statistics: it cannot act well without them."""
    scale = envs.state_dict() if isinstance(envs, transforms.Transform) else {}
    torch.save({"agent": agent.state_dict(), "scale": scale}, path)


def load(path: str, agent: Agent, envs: VecEnv) -> None:
    """Load a saved agent and its normalization statistics, and freeze the statistics."""
    saved = torch.load(path, weights_only=True)
    agent.load_state_dict(saved["agent"])
    if isinstance(envs, transforms.Transform):
        envs.load_state_dict(saved["scale"])
        envs.freeze()


# --- checkpoints --------------------------------------------------------------------------------

CHECKPOINT = "checkpoint.pt"


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    """Add the checkpoint options to a command line."""
    add = partial(parser.add_argument, metavar="DIR", type=Path)
    add("--checkpoint", help="folder for checkpoints")
    add("--every", type=int, default=10, metavar="N", help="updates between checkpoints")
    add("--resume", help="resume from the checkpoint in this folder, if there is one")


def save_checkpoint(
    folder: Path, collector: Collector, agent: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write a checkpoint atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{CHECKPOINT}.{os.getpid()}"
    parts = {"collector": collector, "agent": agent, "optimizer": optimizer}
    state = {name: part.state_dict() for name, part in parts.items()}
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / CHECKPOINT)


def resume(
    folder: Path, collector: Collector, agent: nn.Module, optimizer: Any, trusted: bool = False
) -> None:
    """Load a checkpoint. The collector is loaded last: it restores the random generators."""
    if not (folder / CHECKPOINT).exists():
        print(f"starting from scratch: no checkpoint in {folder}", flush=True)
        return
    state = torch.load(folder / CHECKPOINT, weights_only=True, map_location=collector.device)
    agent.load_state_dict(state["agent"])
    optimizer.load_state_dict(state["optimizer"])
    collector.load_state_dict(state["collector"], trusted=trusted)
    if isinstance(collector, RayRolloutCollector):
        collector.update_agent()
    print(f"{collector.global_steps:>10,} steps  resumed from {folder}", flush=True)


# --- environments and the command line ----------------------------------------------------------


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    """Create one environment; Discrete observations become one-hot vectors."""
    if env_id.startswith(ATARI_IDS):
        return xuance_envs.Atari_Env(env_id, image_size=84)
    env = Gym_Env(env_id)
    has_discrete_states = isinstance(env.observation_space, gymnasium.spaces.Discrete)
    return wrappers.FlattenObservation(env) if has_discrete_states else env


def make_envs(env_id: str, num_envs: int, backend: str, gamma: float) -> VecEnv:
    """Create environments in the main process (``dummy``) or in workers (``subproc``)."""
    family = "Atari" if env_id.startswith(ATARI_IDS) else "Gym"
    name = {"dummy": "DummyVecEnv_", "subproc": "SubprocVecEnv_"}[backend] + family
    kind = getattr(xuance_envs, name)
    return prepared(kind([partial(make_env, env_id)] * num_envs, copy=False), gamma)


def prepared(envs: VecEnv, gamma: float) -> VecEnv:
    """Add transforms for PPO. `episode_score` in infos remains the sum of the original rewards."""
    if not has_scale(envs.observation_space):
        return envs
    if isinstance(envs.action_space, gymnasium.spaces.Box):
        envs = transforms.ClipActions(transforms.RescaleActions(envs))
        envs = transforms.NormalizeRewards(envs, gamma)
    return transforms.NormalizeObservations(envs)


def make_prepared_env(env_id: str, gamma: float) -> gymnasium.Env[Any, Any]:
    """Create an environment for a Ray collector. The agent normalizes the observations."""
    env = make_env(env_id)
    if has_scale(env.observation_space) and isinstance(env.action_space, gymnasium.spaces.Box):
        env = wrappers.ClipAction(wrappers.RescaleAction(env, -1.0, 1.0))
        env = wrappers.NormalizeReward(env, gamma)
    return env


def has_scale(space: gymnasium.Space[Any]) -> bool:
    """Return whether observations are continuous vectors."""
    return len(space.shape or ()) == 1 and space.dtype.kind != "i"


def settings_for(env_id: str) -> Settings:
    """Return the hyperparameters for an environment."""
    if env_id.startswith(ATARI_IDS):
        return ATARI
    with gymnasium.make(env_id) as env:
        if isinstance(env.observation_space, gymnasium.spaces.Discrete):
            return DISCRETE_STATES
        return CONTINUOUS if isinstance(env.action_space, gymnasium.spaces.Box) else Settings()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = partial(parser.add_argument, help="default: %(default)s")
    add("--env", default="CartPole-v1")
    add("--backend", choices=("dummy", "subproc"), default="subproc")
    add("--collectors", type=int, default=0, help="collectors on a Ray cluster; 0 for none")
    add("--num-envs", type=int, default=32)
    add("--seed", type=int, default=1)
    add("--steps", type=int, default=200_000)
    parser.add_argument("--save", metavar="FILE", help="file for the trained agent")
    parser.add_argument("--play", metavar="FILE", help="saved agent to run without training")
    add_checkpoints(parser)
    args = parser.parse_args()
    if args.collectors and (args.save is not None or args.play is not None):
        parser.error("--collectors cannot be combined with --save or --play")
    torch.manual_seed(args.seed)
    settings = settings_for(args.env)
    make = partial(make_prepared_env, args.env, settings.gamma)
    envs = None
    if args.collectors:
        first = make()
        first.close()
    else:
        envs = first = make_envs(args.env, args.num_envs, args.backend, settings.gamma)
    *height_and_width, last = first.observation_space.shape
    scales = bool(args.collectors) and has_scale(first.observation_space)
    agent = Agent((last, *height_and_width), first.action_space, scales)
    if agent.sees_images and torch.cuda.is_available():
        agent.cuda()
    if not agent.sees_images:
        torch.set_num_threads(1)  # small layers; workers need the other cores
    if args.play:
        load(args.play, agent, envs)
    dtype = torch.uint8 if agent.sees_images else torch.float32
    options = {"state_dtype": dtype, "seed": args.seed}
    collector: Collector
    if envs is None:
        collector = RayRolloutCollector(
            make, agent, args.collectors, settings.steps_per_env, num_envs=args.num_envs, **options
        )
    else:
        collector = RolloutCollector(envs, agent, settings.steps_per_env, **options)
    with collector:
        optimizer = optimizer_for(agent, settings)
        if args.resume is not None:
            resume(args.resume, collector, agent, optimizer)
        start, begun = time.perf_counter(), collector.global_steps
        shown = start
        playing = iter(collector.rollout, "learned")  # collect endlessly, without training

        def is_kept(number: int) -> bool:
            is_due = number % args.every == 0 or collector.global_steps >= args.steps
            return args.checkpoint is not None and is_due

        updates = playing if args.play else train(collector, agent, settings, optimizer, is_kept)
        for update_number, _ in enumerate(updates, 1):
            now, steps = time.perf_counter(), collector.global_steps
            is_last = steps >= args.steps
            if is_kept(update_number):
                save_checkpoint(args.checkpoint, collector, agent, optimizer)
            if is_last or now - shown > 1:
                print(
                    f"{steps:>10,} steps  {(steps - begun) / (now - start):>7,.0f} steps/s  "
                    f"mean return {collector.mean_ep_return:8.1f}",
                    flush=True,
                )
                shown = now
            if is_last:
                break
        if args.save:
            save(args.save, agent, envs)


if __name__ == "__main__":
    main()
