"""Double buffering: half of the environments step while a torch policy acts for the other half.

    python examples/pipelined.py
    python examples/pipelined.py --env Pendulum-v1 --num-envs 256
    python examples/pipelined.py --num-envs 16 --work 500 --think 250 --sleep
    python examples/pipelined.py --device cuda

With `RolloutCollector(..., halves=2)` the halves alternate. With enough cores, a step of all
environments then takes at most twice the larger of two times: the time of the policy for one half,
and the time in which one half steps alone. `halves="auto"` measures steps with and without
halves during the first 128 steps or fewer.

The speedup is largest if the policy does not use the CPU, like a policy on a GPU or one that sleeps
(`--sleep`). A policy on the CPU takes a core from the environments, and two half batches cost more
than one full batch. The script needs the extra `torch`.
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

from xuance_envs import Gym_Env, RolloutCollector, SubprocVecEnv, VecEnv

WIDTHS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
HALVES: tuple[int | str, ...] = (1, 2, "auto")


# --- the recipe ---------------------------------------------------------------------------------


def make_envs(env_fn: Callable[[], Any], num_envs: int, workers: int) -> VecEnv:
    """Create environments; with as many workers per half as cores, each half uses all cores."""
    return SubprocVecEnv([env_fn] * num_envs, in_series=num_envs // (2 * workers), copy=False)


def make_collector(envs: VecEnv, policy: Policy, steps: int, halves: int | str) -> RolloutCollector:
    """Create a collector; with `halves=2`, one half steps while the policy acts for the other."""
    return RolloutCollector(envs, policy, steps, device=policy.device, seed=0, halves=halves)


# --- the policy and the environments ------------------------------------------------------------


class Policy:
    """A policy that samples actions and takes a given time per batch.

    Args:
        env: provides the spaces; the action space must be a Discrete or a Box.
        batch: the number of states in a batch.
        seconds: the time for a batch of this size.
        device: the device of the network.
        sleeps: True to use a small network and sleep for the rest of the time, like a policy on a
            different machine; False to use a network that is large enough to take this time.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        batch: int,
        seconds: float,
        device: str,
        sleeps: bool = False,
    ) -> None:
        self.device = device
        self._space = env.action_space
        self._nap = seconds / batch if sleeps else 0.0
        shape = env.observation_space.shape or ()
        discrete = isinstance(self._space, spaces.Discrete)
        inputs = int(np.prod(shape))
        outputs = int(self._space.n) if discrete else int(np.prod(self._space.shape or ()))
        states = torch.zeros(batch, *shape, device=device)
        for width in WIDTHS[:1] if sleeps else WIDTHS:
            layers = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
            self._network = nn.Sequential(*layers, nn.Linear(width, outputs + 1)).to(device)
            think = partial(self.get_actions_and_values, states)
            if statistics.median(seconds_of(think) for _ in range(50)) >= seconds:
                break

    @torch.inference_mode()
    def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
        """Return actions, zeros as log-probabilities, values, and None as entropy."""
        end = time.perf_counter() + self._nap * len(states)
        *logits, values = self._network(states.flatten(1)).unbind(1)
        outputs = torch.stack(logits, 1)
        if isinstance(self._space, spaces.Discrete):
            noise = -torch.log(torch.empty_like(outputs).exponential_())
            actions = (outputs + noise).argmax(1) + self._space.start
        else:
            actions = torch.tanh(outputs).reshape(-1, *self._space.shape)
        if (left := end - time.perf_counter()) > 0 and self._nap:
            time.sleep(left)
        return actions, torch.zeros_like(values), values, None


class Working(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that adds CPU time to each step.

    Args:
        env: the environment to wrap.
        seconds: CPU time per step.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """Use CPU time, then step the environment."""
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass
        return self.env.step(action)


# --- the measurement ----------------------------------------------------------------------------


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def even(text: str) -> int:
    """Parse an even number of environments."""
    number = int(text)
    if number < 2 or number % 2:
        raise argparse.ArgumentTypeError(f"expected an even number, got {text}")
    return number


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--env", default="CartPole-v1", metavar="ID", help="default: %(default)s")
    add("--num-envs", type=even, default=128, metavar="N", help="default: %(default)s")
    add("--work", type=float, default=0.0, metavar="MICROSECONDS", help="added CPU time per step")
    add("--think", type=float, default=2.0, metavar="MICROSECONDS", help="policy time per state")
    add("--sleep", action="store_true", help="let the policy sleep instead of compute")
    add("--device", default="cpu", help="device of the policy (default: %(default)s)")
    add("--workers", type=int, default=cpus(), help="maximum worker processes per half")
    add("--rounds", type=int, default=7, help="timed rollouts per variant, interleaved")
    add("--steps", type=int, default=128, help="steps per environment and rollout")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure interleaved rollouts, and print the time per vector step."""
    args = parse(argv)
    torch.set_num_threads(1)  # the other cores step environments
    half = args.num_envs // 2
    workers = max(count for count in range(1, args.workers + 1) if half % count == 0)
    env_fn = partial(Working, Gym_Env(args.env), args.work * 1e-6)
    with make_envs(env_fn, args.num_envs, workers) as envs:
        policy = Policy(env_fn(), half, args.think * half * 1e-6, args.device, args.sleep)
        collectors = {kind: make_collector(envs, policy, args.steps, kind) for kind in HALVES}
        rounds: dict[int | str, list[float]] = {kind: [] for kind in HALVES}
        for _ in tqdm(range(args.rounds), unit="round", dynamic_ncols=True, disable=None):
            for kind, collector in collectors.items():
                collector.vec_reset()  # the collectors share the environments
                seconds = seconds_of(collector.rollout)
                rounds[kind].append(seconds / args.steps * 1e6)
    print(f"\n{args.num_envs} × {args.env}, {workers} workers per half, {cpus()} CPUs\n")
    for kind, microseconds in rounds.items():
        print(f"halves={kind!s:<6} {statistics.median(microseconds):>8.0f} µs per step")
    ratios = [one / two for one, two in zip(rounds[1], rounds[2], strict=True)]
    print(f"\nhalves=2: {statistics.median(ratios):.2f} times as fast as halves=1")
    print(f"halves='auto' chose {collectors['auto'].halves}")


if __name__ == "__main__":
    main()
