"""Measure rollouts with an agent: throughput, and the time of agent, environments and collector."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from benchmarks.shared.contest import race
from benchmarks.shared.ours import BACKENDS, make_ours
from benchmarks.shared.question import (
    add_outputs,
    add_rounds,
    begin,
    finish,
    make_parser,
    with_notes,
)
from benchmarks.shared.rollouts import Rollouts
from xuance_envs.measure import Throughput
from xuance_envs.report import markdown_table
from xuance_envs.rollout.collector import RolloutCollector

SIMPLE = "simple, per environment"
ENV_ID = "CartPole-v1"


class Agent(nn.Module):
    """A policy and value network with two layers of 64 units; counts its own seconds."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
        )
        self.device = torch.device(device)
        self.to(device)
        self.seconds = 0.0

    def get_actions_and_values(self, states: torch.Tensor, actions: None = None) -> Any:
        start = time.perf_counter()
        logits, values = self.layers(states).split((2, 1), dim=-1)
        choice = torch.distributions.Categorical(logits=logits, validate_args=False)
        actions = choice.sample()
        answer = actions, choice.log_prob(actions), values.squeeze(-1), None
        self.seconds += time.perf_counter() - start
        return answer


class Simple:
    """Rollouts as programs often implement them, with one tensor per value."""

    def __init__(self, num_envs: int, steps: int, agent: Agent) -> None:
        self.num_envs = num_envs
        self.agent = agent
        self._length = steps
        self._envs = SyncVectorEnv(
            [partial(gymnasium.make, ENV_ID)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        )
        self._observations = self._envs.reset(seed=0)[0]
        self.close = self._envs.close

    def rollout(self) -> None:
        shape = self._length, self.num_envs
        device = self.agent.device
        states = torch.zeros((*shape, 4), device=device)
        rewards, values, log_probs = (torch.zeros(shape, device=device) for _ in range(3))
        actions, done, truncated = (
            torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(3)
        )
        end_states: list[list[torch.Tensor]] = [[] for _ in range(self.num_envs)]
        for t in range(self._length):
            for i, observation in enumerate(self._observations):
                states[t, i] = torch.tensor(observation, dtype=torch.float32, device=device)
            with torch.no_grad():
                answer = self.agent.get_actions_and_values(states[t])
            actions[t], log_probs[t], values[t], _ = answer
            step = self._envs.step(answer[0].cpu().numpy())
            self._observations, infos = step[0], step[4]
            for i in range(self.num_envs):
                rewards[t, i] = torch.tensor(step[1][i], dtype=torch.float32, device=device)
                done[t, i] = torch.tensor(bool(step[2][i]), dtype=torch.int32, device=device)
                truncated[t, i] = torch.tensor(bool(step[3][i]), dtype=torch.int32, device=device)
                if step[2][i] or step[3][i]:
                    last = torch.tensor(infos["final_obs"][i], dtype=torch.float32, device=device)
                    end_states[i].append(last)


class Watched:
    """A collector that counts the seconds of the agent and the environments."""

    def __init__(self, collector: RolloutCollector, agent: Agent) -> None:
        self._collector = collector
        self._agent = agent
        self._envs_seconds = 0.0
        for name in ("step_async", "step_wait"):
            setattr(collector.vec_env, name, self._timed(getattr(collector.vec_env, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            self._envs_seconds += time.perf_counter() - start
            return result

        return timed

    def shares(self, seconds: float) -> dict[str, float]:
        """Collect for some seconds; return the time shares of agent, environments and collector."""
        self._collector.rollout()
        self._agent.seconds = self._envs_seconds = 0.0
        start = time.perf_counter()
        while (total := time.perf_counter() - start) < seconds or not self._agent.seconds:
            self._collector.rollout()
        agent, envs = self._agent.seconds / total, self._envs_seconds / total
        return {"agent": agent, "environments": envs, "collector": 1 - agent - envs}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("rollout", __doc__)
    add = parser.add_argument
    add("--num-envs", type=int, nargs="+", default=[8, 64], metavar="N")
    add("--backends", nargs="+", choices=BACKENDS, default=["dummy", "subproc", "caller"])
    add("--steps-per-env", type=int, default=128, metavar="T", help="default: %(default)s")
    add("--device", default="cpu", help="device of agent and tensors (default: %(default)s)")
    add("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    add_rounds(parser)
    add_outputs(parser, "rollout table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    torch.set_num_threads(args.threads)
    run = begin()
    notes: list[str] = []
    sizes = dict.fromkeys(args.num_envs)
    results = [result for n in sizes for result in measure_size(args, n, notes)]
    print(f"\n{ENV_ID}, an agent of two layers of 64 units on {args.device}\n")
    text = with_notes(table(results), notes)
    print(text)
    print("\nagent, environments, collector: share of a rollout's time, median round")
    finish(args, __doc__, run, text, notes=notes, results=results)


def measure_size(args: argparse.Namespace, num_envs: int, notes: list[str]) -> list[dict[str, Any]]:
    """Time all implementations over one number of environments, then the shares."""
    length = args.steps_per_env
    with ExitStack() as stack:
        simple = Simple(num_envs, length, Agent(args.device))
        stack.callback(simple.close)
        rollouts = {SIMPLE: simple.rollout}
        watched = {}
        for name in args.backends:
            backend, agent = BACKENDS[name], Agent(args.device)
            vec_env = make_ours(backend, "gym_env", ENV_ID, num_envs)
            collector = stack.enter_context(RolloutCollector(vec_env, agent, length, seed=0))
            rollouts[backend.title] = collector.rollout
            watched[backend.title] = collector, agent
        runners = {name: Rollouts(call, num_envs, length) for name, call in rollouts.items()}
        timed = race(args, f"{num_envs} environments", lambda _: runners, notes.append)
        watchers = {name: Watched(*pair) for name, pair in watched.items()}
        rounds = [
            {name: watcher.shares(args.seconds) for name, watcher in watchers.items()}
            for _ in range(args.rounds)
        ]
    shares = {
        name: {part: float(np.median([each[name][part] for each in rounds])) for part in found}
        for name, found in rounds[0].items()
    }
    return [record(result, timed[SIMPLE], shares.get(name)) for name, result in timed.items()]


def record(
    result: Throughput, simple: Throughput, shares: dict[str, float] | None
) -> dict[str, Any]:
    return {
        "environments": result.num_envs,
        "contender": result.name,
        "steps_per_second": result.median,
        "spread": result.spread,
        "rounds": result.rates,
        "relative_to_simple": result.relative_to(simple),
        "shares": shares,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    parts = ("agent", "environments", "collector")
    rows = [
        [
            str(result["environments"]),
            result["contender"],
            f"{result['steps_per_second']:,.0f}",
            f"{result['spread']:.0%}",
            f"{result['relative_to_simple']:.2f}",
            *(f"{result['shares'][part]:.1%}" if result["shares"] else "-" for part in parts),
        ]
        for result in results
    ]
    header = ["envs", "implementation", "steps/s", "spread", "× simple", *parts]
    return markdown_table(header, rows, words=2)


if __name__ == "__main__":
    main()
