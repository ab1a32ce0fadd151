"""Measure Ray actors and collectors, and predict a cluster's throughput from a model."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any
from unittest import mock

import gymnasium
import numpy as np

from benchmarks.shared.contest import race
from benchmarks.shared.on_ray import WAITS, WORKS, BusyEnv, SyncActors, local_cluster, local_ray
from benchmarks.shared.question import (
    add_outputs,
    add_rounds,
    begin,
    finish,
    make_parser,
    with_notes,
)
from benchmarks.shared.rllib import Sampling, why_without
from benchmarks.shared.rollouts import Rollouts
from xuance_envs.engine.ray import actor_client, connection
from xuance_envs.gym.gym_env import Gym_Env
from xuance_envs.gym.gym_vec_env import SubprocVecEnv_Gym
from xuance_envs.measure import Runner, StepLoop, sample_actions
from xuance_envs.report import markdown_table
from xuance_envs.vector_envs.ray_vec_env import RayVecEnv_Gym

HEADER = ("work", "implementation", "steps/s", "× next row")
OURS = "RayVecEnv_Gym, 2 actors"
MACHINE = "RayVecEnv_Gym, one actor with 2 workers"
NODES = "RayVecEnv_Gym, one actor on each of 2 single-core nodes"
NODES_APART = f"{NODES}, each with a worker process"
PROCESSES = "SubprocVecEnv_Gym, 2 workers"
COLLECTORS = "RayRolloutCollector, 2 collectors"
IMAGE = 84 * 84 * 4
NETWORK = 1.25e9
"""Bytes per second of a 10 Gbit/s network."""

CORES, MACHINES = 1024, 32

SMALL = 49.0
"""Bytes of a reply per environment with small observations, such as CartPole's."""

SMALL_ROW = 44.0
"""Bytes of a rollout per step of such an environment."""

MANY_WORKERS = 16
"""Workers of one actor, for measuring the cost per worker."""

MANY, LARGE = 64, 1 << 22
"""Environments per group, and bytes per reply, to measure the cost per environment and byte."""

THERE = 0.005
"""Seconds after which environments that do nothing have replied."""

WAIT = 4e-3
"""Seconds per environment step when checking the model."""


@dataclass(frozen=True)
class Costs:
    """Parameters of the model, in seconds; ``per_byte`` in seconds per byte of a reply.

    ``send``, ``receive`` and ``per_worker`` are costs of the main process.
    """

    send: float
    receive: float
    latency: float
    per_byte: float
    per_env: float
    per_worker: float
    machine_latency: float

    def machine_step(
        self, machines: int, workers: int, envs: int, work: float, bytes_per_env: float = 0.0
    ) -> float:
        """Return the seconds of a step with one actor per machine, which has several workers.

        A reply costs the main process ``receive``, plus ``per_worker`` for each worker.
        """
        in_all = machines * workers
        own = machines * (self.send + self.receive) + in_all * self.per_worker
        last = machines * self.send + in_all * self.per_worker + self.machine_latency
        whole = max(last + envs * (work + self.per_env) + self.receive, own)
        return whole + in_all * envs * bytes_per_env * self.per_byte

    def collected_step(self, workers: int, envs: int, work: float, bytes_per_env: float) -> float:
        """Return the seconds of a collector's step, while the main process receives rollouts."""
        return max(envs * (work + self.per_env), workers * envs * bytes_per_env * self.per_byte)

    def step(self, actors: int, envs: int, work: float, bytes_per_env: float = 0.0) -> float:
        """Return the seconds of a vector step.

        The last actor starts after all requests are sent, and replies after a latency and its
        environments' work. If the main process takes longer to send all requests and receive all
        replies, its time determines the duration.
        """
        reply = envs * bytes_per_env * self.per_byte
        last = actors * self.send + self.latency + envs * (work + self.per_env) + self.receive
        return max(last, actors * (self.send + self.receive)) + actors * reply


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("ray_scaling", __doc__)
    add = parser.add_argument
    add("--num-envs", type=int, default=32, help="environments that compute (default: %(default)s)")
    add(
        "--work",
        type=float,
        nargs="+",
        default=[1.0, 4.0],
        metavar="MS",
        help="milliseconds of a step",
    )
    add("--cartpoles", type=int, default=256, metavar="N", help="default: %(default)s")
    add(
        "--collected",
        type=int,
        default=32,
        metavar="N",
        help="environments per collector (default: %(default)s)",
    )
    add("--rollout-steps", type=int, default=64, metavar="N", help="default: %(default)s")
    add(
        "--model-envs",
        type=int,
        default=8,
        metavar="N",
        help="environments per actor in the model check (default: %(default)s)",
    )
    add(
        "--actors",
        type=int,
        nargs="+",
        default=[1, 2, 4],
        metavar="N",
        help="numbers of actors in the model check",
    )
    add_rounds(parser, seconds=1.0)
    add_outputs(parser, "ray scaling tables")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    run = begin()
    notes: list[str] = []
    with local_ray() as ray:
        comparisons = [compare_work(args, work, notes.append) for work in args.work]
        comparisons.append(compare_cartpoles(args, ray, notes.append))
        comparisons.append(compare_machines(args, MACHINE, "machine", notes.append))
        rollouts = compare_rollouts(args, notes.append)
        traffic = measure_traffic(args)
        costs = measure_costs(args)
        checks = check_model(args, costs)
    with local_cluster(1, 1):
        comparisons.append(compare_machines(args, NODES, "auto", notes.append))
        comparisons.append(compare_machines(args, NODES_APART, "machine", notes.append))
    check_header = ("actors", "model, ms", "measured, ms", "measured / model")
    tables = {
        "Environment steps per second": markdown_table(HEADER, rows_of(comparisons), words=2),
        "Rollout steps per second": markdown_table(HEADER, rows_of(rollouts), words=2),
        "Requests per vector step, and bytes per environment step": markdown_table(
            ("environments", "requests", "bytes sent", "bytes received"), traffic
        ),
        "Costs of a step": markdown_table(("cost", "value"), cost_rows(costs)),
        f"Model check for environments that sleep 4 ms per step, {args.model_envs} per actor": (
            markdown_table(check_header, checks)
        ),
        f"Predictions for {CORES:,} cores on {MACHINES} machines": markdown_table(
            *read_out(costs), words=2
        ),
    }
    text = "\n\n".join(f"{title}:\n\n{table}" for title, table in tables.items())
    text = with_notes(text, notes)
    print(f"\n{args.rounds} rounds of {args.seconds:g} s\n\n{text}")
    found = {
        **{"comparisons": comparisons, "rollouts": rollouts},
        **{"traffic": traffic, "checks": checks},
    }
    finish(args, __doc__, run, text, notes=notes, results={**found, "costs": asdict(costs)})


# --- comparisons ------------------------------------------------------------------------------


Note = Callable[[str], None]


def compare(
    args: argparse.Namespace, what: str, runners: dict[str, Runner], note: Note
) -> dict[str, Any]:
    """Time two implementations; compare the first with the second."""
    measured = race(args, what, lambda _: runners, note)
    first, second = measured.values()
    return {
        "what": what,
        "rates": {result.name: result.median for result in (first, second)},
        "ratio": first.relative_to(second),
        "spread": max(first.spread, second.spread),
    }


def compare_with_processes(
    args: argparse.Namespace, what: str, functions: list[Any], name: str, actors: str, note: Note
) -> dict[str, Any]:
    """Compare two workers in actors with two worker processes."""
    half = math.ceil(len(functions) / 2)
    with (
        RayVecEnv_Gym(functions, half, actors=actors) as ours,
        SubprocVecEnv_Gym(functions, in_series=half) as theirs,
    ):
        actions = sample_actions(ours.action_space, len(functions))
        runners: dict[str, Runner] = {}
        for called, envs in ((name, ours), (PROCESSES, theirs)):
            envs.reset(seed=0)
            runners[called] = StepLoop(envs, len(functions), actions)
        return compare(args, what, runners, note)


def compare_work(args: argparse.Namespace, milliseconds: float, note: Note) -> dict[str, Any]:
    functions = [partial(BusyEnv, milliseconds / 1e3)] * args.num_envs
    return compare_with_processes(
        args, f"{args.num_envs} × {milliseconds:g} ms", functions, OURS, "core", note
    )


def compare_machines(
    args: argparse.Namespace, name: str, actors: str, note: Note
) -> dict[str, Any]:
    functions = [partial(Gym_Env, "CartPole-v1")] * args.cartpoles
    what = f"{args.cartpoles} × CartPole-v1"
    return compare_with_processes(args, what, functions, name, actors, note)


def compare_cartpoles(args: argparse.Namespace, ray: Any, note: Note) -> dict[str, Any]:
    functions = [lambda: gymnasium.make("CartPole-v1")] * args.cartpoles
    with ExitStack() as stack:
        half = math.ceil(args.cartpoles / 2)
        ours = stack.enter_context(RayVecEnv_Gym(functions, half, actors="core"))
        theirs = SyncActors(ray, "CartPole-v1", args.cartpoles, 2)
        stack.callback(theirs.close)
        ours.reset(seed=0)
        actions = sample_actions(ours.action_space, args.cartpoles)
        theirs.step(actions[0])
        runners: dict[str, Runner] = {
            OURS: StepLoop(ours, args.cartpoles, actions),
            "2 actors with a Gymnasium SyncVectorEnv each": StepLoop(
                theirs, args.cartpoles, actions
            ),
        }
        return compare(args, f"{args.cartpoles} × CartPole-v1", runners, note)


def small_network() -> Any:
    """Make a network for CartPole."""
    from torch import nn

    return nn.Sequential(*(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()), logits(64))


def image_network() -> Any:
    """Create a cheap network for images, which reads every hundredth value."""
    from torch import nn

    class Glance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = logits(IMAGE // 100 + 1)

        def forward(self, states: Any) -> Any:
            return self.logits(states.flatten(1)[:, ::100].float())

    return Glance()


def logits(features: int) -> Any:
    from torch import nn

    return nn.Linear(features, 2)


def make_agent(network: Callable[[], Any]) -> Any:
    """Make an agent that samples actions from logits, as RLlib's policies do; values are zero."""
    import torch

    class Agent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def get_actions_and_values(self, states: Any, actions: Any = None) -> Any:
            logs = self.network(states).log_softmax(-1)
            if actions is None:
                actions = (logs.exp() / torch.empty_like(logs).exponential_()).argmax(-1)
            log_probs = logs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
            return actions, log_probs, torch.zeros(len(logs)), None

    return Agent()


def compare_rollouts(args: argparse.Namespace, note: Note) -> list[dict[str, Any]]:
    """Compare two collectors with one RolloutCollector over an actor, and with RLlib."""
    import torch

    from xuance_envs.rollout import RayRolloutCollector, RolloutCollector

    without = why_without()
    if without is not None:
        note(without)
    torch.set_num_threads(1)  # as in Ray's actors
    n, steps = 2 * args.collected, args.rollout_steps
    comparisons = []
    for what, make_env, network, dtype in (
        ("CartPole-v1", partial(Gym_Env, "CartPole-v1"), small_network, torch.float32),
        ("84 × 84 × 4 bytes", partial(BusyEnv, 0.0, WORKS, IMAGE), image_network, torch.uint8),
    ):
        with ExitStack() as stack:
            options: dict[str, Any] = {"state_dtype": dtype, "device": "cpu"}
            agent = make_agent(network)
            ours = stack.enter_context(
                RayRolloutCollector(make_env, agent, 2, steps, num_envs=n, processes=1, **options)
            )
            envs = RayVecEnv_Gym([make_env] * n, n // 2, actors="machine", copy=False)
            caller = stack.enter_context(RolloutCollector(envs, agent, steps, **options))
            runners: dict[str, Runner] = {
                COLLECTORS: Rollouts(ours.rollout, n, steps),
                f"RolloutCollector with {MACHINE}": Rollouts(caller.rollout, n, steps),
            }
            if without is None:
                theirs = Sampling(make_env, network, 2, n, steps)
                stack.callback(theirs.close)
                runners["RLlib, 2 EnvRunners"] = theirs
            label = f"{n} × {what}, rollouts of {steps} steps"
            measured = race(args, label, lambda _, runners=runners: runners, note)
        first, *others = measured.values()
        comparisons += [
            {
                "what": label,
                "rates": {result.name: result.median for result in (first, other)},
                "ratio": first.relative_to(other),
                "spread": max(first.spread, other.spread),
            }
            for other in others
        ]
    return comparisons


def rows_of(comparisons: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for comparison in comparisons:
        (first, rate), (second, other) = comparison["rates"].items()
        rows.append([comparison["what"], first, f"{rate:,.0f}", f"{comparison['ratio']:.2f}"])
        rows.append(["", second, f"{other:,.0f}", ""])
    return rows


# --- network traffic -------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """Requests per vector step, and bytes per environment step in both directions."""

    requests: float
    sent: float
    received: float


def count_traffic(
    functions: Sequence[Callable[[], Any]], in_series: int, steps: int, actors: str
) -> Traffic:
    """Count requests and replies of the main process."""
    asked: list[int] = []
    got: list[int] = []
    pack, unpack = actor_client.pack_requests, actor_client.unpack_replies

    def counted_pack(*given: Any) -> bytes:
        request = pack(*given)
        asked.append(connection.HEADER.size + len(request))
        return request

    def counted_unpack(reply: Any, count: int) -> Any:
        got.append(connection.HEADER.size + len(reply))
        return unpack(reply, count)

    with RayVecEnv_Gym(functions, in_series, actors=actors) as envs:
        envs.reset(seed=0)
        actions = sample_actions(envs.action_space, envs.num_envs)
        envs.step(actions[0])  # the first step also sends the info keys
        with (
            mock.patch.object(actor_client, "pack_requests", counted_pack),
            mock.patch.object(actor_client, "unpack_replies", counted_unpack),
        ):
            for batch in islice(cycle(actions), steps):
                envs.step(batch)
            env_steps = steps * envs.num_envs
            return Traffic(len(asked) / steps, sum(asked) / env_steps, sum(got) / env_steps)


def measure_traffic(args: argparse.Namespace) -> list[list[str]]:
    image = partial(BusyEnv, 0.0, WORKS, IMAGE)
    rows = []
    for name, function in (
        ("CartPole-v1", partial(Gym_Env, "CartPole-v1")),
        ("84 × 84 × 4 bytes", image),
    ):
        for kind, label in (("core", "2 actors"), ("machine", "one actor with 2 workers")):
            half = math.ceil(args.num_envs / 2)
            traffic = count_traffic([function] * args.num_envs, half, 50, kind)
            figures = (f"{traffic.requests:g}", f"{traffic.sent:.1f}", f"{traffic.received:.1f}")
            rows.append([f"{args.num_envs} × {name}, {label}", *figures])
    return rows


# --- the model ----------------------------------------------------------------------------------


def measure_costs(args: argparse.Namespace) -> Costs:
    """Measure the model's parameters with environments that do nothing."""
    steps = max(10, int(300 * args.seconds))
    nothing = partial(BusyEnv, 0.0)
    send, receive, _ = medians([nothing] * 2, 1, steps)
    _, _, of_one = medians([nothing], 1, steps)
    _, _, of_many = medians([nothing] * MANY, MANY, steps)
    per_env = max(0.0, (of_many - of_one) / (MANY - 1))
    _, _, of_large = medians([partial(BusyEnv, 0.0, WORKS, LARGE)], 1, steps // 4)
    latency = max(0.0, of_one - (send + receive) / 2 - per_env)
    *own_one, machine_one = medians([nothing], 1, steps, "machine")
    of_each = caller_seconds(nothing, MANY_WORKERS, steps) - caller_seconds(nothing, 1, steps)
    return Costs(
        send / 2,
        receive / 2,
        latency,
        max(0.0, of_large - of_one) / LARGE,
        per_env,
        max(0.0, of_each) / (MANY_WORKERS - 1),
        max(0.0, machine_one - sum(own_one) - per_env),
    )


def medians(
    functions: Sequence[Callable[[], Any]], in_series: int, steps: int, actors: str = "core"
) -> tuple[float, float, float]:
    """Return median seconds of sending a step, of receiving it, and of a whole step."""
    times: list[tuple[float, float, float]] = []
    with RayVecEnv_Gym(functions, in_series, actors=actors) as envs:
        envs.reset(seed=0)
        actions = np.zeros(envs.num_envs, np.int64)
        for _ in range(steps):
            start = perf_counter()
            envs.step_async(actions)
            sent = perf_counter()
            time.sleep(THERE)
            there = perf_counter()
            envs.step_wait()
            received = perf_counter()
            envs.step(actions)
            times.append((sent - start, received - there, perf_counter() - received))
    send, receive, whole = map(statistics.median, zip(*times, strict=True))
    return send, receive, whole


def caller_seconds(function: Callable[[], Any], workers: int, steps: int) -> float:
    """Return the main process's median CPU seconds per step, with one multi-worker actor."""
    times = []
    with RayVecEnv_Gym([function] * workers, 1, actors="machine") as envs:
        envs.reset(seed=0)
        actions = np.zeros(workers, np.int64)
        for _ in range(steps):
            start = time.thread_time()
            envs.step(actions)
            times.append(time.thread_time() - start)
    return statistics.median(times)


def check_model(args: argparse.Namespace, costs: Costs) -> list[list[str]]:
    """Compare the model with measurements, for environments that sleep."""
    rows = []
    work = own_time()
    for actors in args.actors:
        functions = [partial(BusyEnv, WAIT, WAITS)] * (actors * args.model_envs)
        steps = max(5, int(args.seconds * args.rounds / (work * args.model_envs)))
        _, _, measured = medians(functions, args.model_envs, min(steps, 60))
        said = costs.step(actors, args.model_envs, work)
        rows.append(
            [f"{actors}", f"{said * 1e3:.1f}", f"{measured * 1e3:.1f}", f"{measured / said:.2f}"]
        )
    return rows


def own_time() -> float:
    """Return the median seconds of a sleeping environment's step in this process."""
    env = BusyEnv(WAIT, WAITS)
    times = []
    for _ in range(50):
        start = perf_counter()
        env.step(0)
        times.append(perf_counter() - start)
    return statistics.median(times)


def cost_rows(costs: Costs) -> list[list[str]]:
    return [
        ["main process, per request", f"{costs.send * 1e6:.0f} µs"],
        ["main process, per reply", f"{costs.receive * 1e6:.0f} µs"],
        ["latency of a reply", f"{costs.latency * 1e6:.0f} µs"],
        ["latency of a reply (one actor per machine)", f"{costs.machine_latency * 1e6:.0f} µs"],
        ["main process, per worker (one actor per machine)", f"{costs.per_worker * 1e6:.1f} µs"],
        ["overhead per environment step", f"{costs.per_env * 1e6:.1f} µs"],
        ["per MB of a reply, on this machine", f"{costs.per_byte * 1e12:.0f} µs"],
    ]


def read_out(costs: Costs) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the model's predictions for a cluster."""
    header = ("work per core", "setup", "step, ms", "env steps/s", "× cores", "main process, MB/s")
    there = replace(costs, per_byte=max(costs.per_byte, 1 / NETWORK))
    rows = []
    for envs, work, bytes_per_env in (
        (8, 1e-3, 0),
        (64, 1e-3, 0),
        (8, 4e-3, 0),
        (64, 4e-3, 0),
        (64, 4e-3, IMAGE),
        (64, 20e-3, 0),
    ):
        each = f"{envs} × {work * 1e3:g} ms, {'images' if bytes_per_env else 'small'}"
        reply, row = bytes_per_env or SMALL, bytes_per_env or SMALL_ROW
        for form, size, seconds in (
            ("one actor per core", reply, there.step(CORES, envs, work, reply)),
            (
                "one actor per machine",
                reply,
                there.machine_step(MACHINES, CORES // MACHINES, envs, work, reply),
            ),
            ("collectors", row, there.collected_step(CORES, envs, work, row)),
        ):
            rate = CORES * envs / seconds
            used, taken = envs * work / seconds, rate * size / 1e6
            figures = (f"{seconds * 1e3:.0f}", f"{rate:,.0f}", f"{used:.2f}", f"{taken:,.0f}")
            rows.append([each, form, *figures])
            each = ""
    return header, rows


if __name__ == "__main__":
    main()
