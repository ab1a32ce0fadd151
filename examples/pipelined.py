"""One half of the environments steps while a torch policy thinks about the other half.

    python examples/pipelined.py
    python examples/pipelined.py --env Pendulum-v1 --num-envs 256
    python examples/pipelined.py --device cuda

In a synchronous loop the policy waits for the environments, then the environments wait for the
policy. Here the halves take turns, so that a turn takes as long as the longer of the two, where
there are cores for both. The recipe is the function `pipelined`; the rest measures it.

It gains most where the policy leaves the cores alone, as one on an accelerator does. A policy on
the CPU takes a core from the environments, and thinking twice about halves costs more than once
about all: compare with what `step` makes of it. It needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from tqdm import tqdm

from xuance_envs import Gym_Env, SubprocVecEnv, VecEnv

WIDTHS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


# --- the recipe ---------------------------------------------------------------------------------


def pipelined(envs: VecEnv, policy: Policy, steps: int) -> None:
    """Steps so many times as many as there are, each half while the policy is at the other."""
    obs, _ = envs.reset(seed=0)
    for ids in np.split(np.arange(envs.num_envs), 2):
        envs.send(policy(obs[ids]), ids)
    sent = envs.num_envs
    while sent < steps * envs.num_envs:
        batch = envs.recv(min_envs=envs.num_envs // 2)
        # Until the send, the other half is stepping.
        envs.send(policy(next_states(*batch[:5])), batch.env_ids)
        sent += len(batch.env_ids)
    envs.recv(min_envs=envs.num_envs)


def next_states(obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> Any:
    """What the next actions are for: where an episode ended, the first state of the next one."""
    for i in np.flatnonzero(terminated | truncated):
        obs[i] = infos[i]["reset_obs"]
    return obs


# --- what to compare it with --------------------------------------------------------------------


def one_after_the_other(envs: VecEnv, policy: Policy, steps: int) -> None:
    """The same halves, but nothing steps while the policy thinks."""
    half = envs.num_envs // 2
    obs, _ = envs.reset(seed=0)
    for _ in range(steps):
        for ids in np.split(np.arange(envs.num_envs), 2):
            envs.send(policy(obs[ids]), ids)
            obs[ids] = next_states(*envs.recv(min_envs=half)[:5])


def synchronous(envs: VecEnv, policy: Policy, steps: int) -> None:
    """The policy thinks about all environments at once, and all of them step at once."""
    obs, _ = envs.reset(seed=0)
    for _ in range(steps):
        obs = next_states(*envs.step(policy(obs)))


def thinking_alone(envs: VecEnv, policy: Policy, steps: int) -> None:
    """The policy, about one half and then about the other."""
    obs, _ = envs.reset(seed=0)
    halves = np.split(obs, 2)
    for _ in range(steps):
        for half in halves:
            policy(half)


def stepping_alone(envs: VecEnv, policy: Policy, steps: int) -> None:
    """One half, then the other, without thinking."""
    half = envs.num_envs // 2
    actions = policy(envs.reset(seed=0)[0])
    for _ in range(steps):
        for ids in np.split(np.arange(envs.num_envs), 2):
            envs.send(actions[ids], ids)
            envs.recv(min_envs=half)


LOOPS: dict[str, Callable[[VecEnv, Policy, int], None]] = {
    "the policy thinks about a half": thinking_alone,
    "a half steps": stepping_alone,
    "one after the other": one_after_the_other,
    "pipelined": pipelined,
    "all at once, with step": synchronous,
}


# --- the policy ---------------------------------------------------------------------------------


class Policy:
    """A network that takes about so long over some observations, and draws actions.

    Args:
        env: for its spaces; the actions' is a Discrete or a Box.
        batch: how many observations.
        seconds: how long.
        device: where the network is.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], batch: int, seconds: float, device: str
    ) -> None:
        self._space = env.action_space
        self._device = device
        inputs = int(np.prod(env.observation_space.shape or ()))
        discrete = isinstance(self._space, spaces.Discrete)
        outputs = int(self._space.n) if discrete else int(np.prod(self._space.shape or ()))
        obs = np.zeros((batch, inputs), np.float32)
        for width in WIDTHS:
            layers = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
            self._network = nn.Sequential(*layers, nn.Linear(width, outputs)).to(device)
            if statistics.median(seconds_of(partial(self, obs)) for _ in range(50)) >= seconds:
                break

    @torch.inference_mode()
    def __call__(self, obs: Any) -> Any:
        """An action for each observation."""
        inputs = torch.from_numpy(obs).to(self._device, torch.float32).flatten(1)
        outputs = self._network(inputs)
        if isinstance(self._space, spaces.Discrete):
            noise = -torch.log(torch.empty_like(outputs).exponential_())
            return (outputs + noise).argmax(1).cpu().numpy() + self._space.start
        actions = torch.tanh(outputs).cpu().numpy()
        return actions.reshape(-1, *self._space.shape).astype(self._space.dtype)


# --- the measurement ----------------------------------------------------------------------------


def seconds_of(call: Callable[[], Any]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cpus() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def even(text: str) -> int:
    """An even number of environments."""
    number = int(text)
    if number < 2 or number % 2:
        raise argparse.ArgumentTypeError(f"expected an even number, got {text}")
    return number


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=even, default=128, metavar="N", help="default: %(default)s")
    add("--think", type=float, default=200.0, metavar="MICROSECONDS", help="default: %(default)s")
    add("--device", default="cpu", help="where the policy is (default: %(default)s)")
    add("--workers", type=int, default=max(1, cpus() - 1), help="processes for each half")
    add("--rounds", type=int, default=7, help="timed runs of each loop, interleaved")
    add("--steps", type=int, default=300, help="steps of every environment in each of them")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the loops in turns, and prints how long each takes for half of the environments."""
    args = parse(argv)
    torch.set_num_threads(1)  # the other cores are for the environments
    half = args.num_envs // 2
    workers = max(count for count in range(1, args.workers + 1) if half % count == 0)
    env_fn = partial(Gym_Env, args.env)
    with SubprocVecEnv([env_fn] * args.num_envs, in_series=half // workers) as envs:
        policy = Policy(env_fn(), half, args.think * 1e-6, args.device)
        rounds: dict[str, list[float]] = {name: [] for name in LOOPS}
        with tqdm(total=args.rounds * len(LOOPS), unit="run", dynamic_ncols=True) as bar:
            for _ in range(args.rounds):
                for name, loop in LOOPS.items():
                    bar.set_description(name, refresh=False)
                    seconds = seconds_of(partial(loop, envs, policy, args.steps))
                    rounds[name].append(seconds / (2 * args.steps) * 1e6)
                    bar.update()
    print(f"\n{args.num_envs} × {args.env}, {workers} workers for each half, {cpus()} CPUs\n")
    for name, microseconds in rounds.items():
        print(f"{name:<30} {statistics.median(microseconds):>8.0f} µs a half")
    thinking, stepping, _, both, _ = rounds.values()
    turns = zip(both, thinking, stepping, strict=True)
    ratio = statistics.median(total / max(parts) for total, *parts in turns)
    print(f"\npipelined: {ratio:.2f} of the larger of the first two")


if __name__ == "__main__":
    main()
