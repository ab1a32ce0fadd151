"""The commands ``demo`` and ``bench``, which measure backends."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

from xuance_envs import tuning
from xuance_envs.errors import EnvError, counted
from xuance_envs.extras import how_to_install
from xuance_envs.gym.atari_games import UnknownGameError, full_id
from xuance_envs.gym.gym_env import Atari_Env, Gym_Env
from xuance_envs.gym.gym_vec_env import (
    DummyVecEnv_Atari,
    DummyVecEnv_Gym,
    SubprocVecEnv_Atari,
    SubprocVecEnv_Gym,
)
from xuance_envs.measure import StepLoop, Throughput, measure, progress_ticks, sample_actions
from xuance_envs.remote.cli import CommandError
from xuance_envs.report import markdown_table, plot_throughput
from xuance_envs.tuning import autotune

if TYPE_CHECKING:
    from tqdm import tqdm

    from xuance_envs.vector_envs.vector_env import VecEnv

Backends = Mapping[str, Callable[[list[Callable[[], Any]]], Any]]
"""Vectorized environment classes by their name in the demo, the serial one first."""

GYM_BACKENDS: Backends = {
    "DummyVecEnv_Gym": DummyVecEnv_Gym,
    "SubprocVecEnv_Gym": SubprocVecEnv_Gym,
    "SubprocVecEnv_Gym, caller_steps": partial(SubprocVecEnv_Gym, caller_steps=True),
}
ATARI_BACKENDS: Backends = {
    "DummyVecEnv_Atari": DummyVecEnv_Atari,
    "SubprocVecEnv_Atari": SubprocVecEnv_Atari,
    "SubprocVecEnv_Atari, caller_steps": partial(SubprocVecEnv_Atari, caller_steps=True),
}
DEMO_ROUNDS = 5
DEMO_PHASES = 1 + progress_ticks(1, DEMO_ROUNDS)
"""Progress ticks per backend: one for collecting episodes, then those of the measurement."""


class Case(NamedTuple):
    """Environments that the demo measures in each of its backends."""

    title: str
    env_fn: Callable[[], Any]
    num_envs: int


class CostlyEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that adds a millisecond of CPU time to each step."""

    def __init__(self, env_fn: Callable[[], Any]) -> None:
        super().__init__(env_fn())

    def step(self, action: Any) -> Any:
        end = time.thread_time() + 1e-3
        while time.thread_time() < end:
            pass
        return self.env.step(action)


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_demo)
    parser.add_argument(
        "id",
        nargs="?",
        metavar="ID",
        help="Gymnasium id or Atari game such as Breakout (default: CartPole-v1, the only id for "
        "which the demo also trains an agent)",
    )
    parser.add_argument("--env", metavar="ID", help="same as the positional ID")
    parser.add_argument(
        "--num-envs",
        type=_positive(int),
        nargs="+",
        metavar="N",
        help="numbers of environments to measure, one after another (default: 8 and 64, then 8 "
        "whose steps take a millisecond longer; for Atari games only 8)",
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        default=2.0,
        metavar="S",
        help="seconds for each backend with each number of environments (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo_output"),
        metavar="DIR",
        help="output directory for plots and the GIF (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the training run (default: %(default)s)"
    )
    parser.add_argument(
        "--goal",
        type=_positive(float),
        default=475.0,
        metavar="RETURN",
        help="train until the mean return of the last 100 episodes reaches this value (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--no-training", action="store_true", help="skip the training run; only measure throughput"
    )


def run_demo(args: argparse.Namespace) -> None:
    """Train an agent in CartPole, then time ``DummyVecEnv`` and ``SubprocVecEnv``."""
    _require("demo", "plot", "tqdm", "matplotlib")
    from tqdm import tqdm

    if args.seed < 0:
        raise CommandError(f"--seed: expected a non-negative int, got {args.seed}")
    env_id = args.id or args.env or "CartPole-v1"
    env_fn, backends = _demo_of(env_id)
    try:
        probe = env_fn()
    except (gymnasium.error.Error, ImportError) as error:
        raise CommandError(f"cannot make {env_id!r}: {error}") from error
    probe.close()
    print(f"{env_id}: observations {probe.observation_space}, actions {probe.action_space}")
    if env_id == "CartPole-v1" and not args.no_training:
        _require("demo", "demo", "torch", "PIL", "pygame")
        from xuance_envs.demo import show_learning

        show_learning(args.seed, args.goal, args.out)
        print()
    print("Stepping with random actions; environments reset automatically.", flush=True)

    panels: dict[str, list[Throughput]] = {}
    rows: list[list[str]] = []
    cases = _cases(env_id, env_fn, backends is ATARI_BACKENDS, args.num_envs)
    total = len(cases) * len(backends) * DEMO_PHASES
    with tqdm(total=total, unit="run", disable=None) as bar:
        for case in cases:
            actions = sample_actions(probe.action_space, case.num_envs)
            panels[case.title], new_rows = _demo_case(backends, case, actions, args.seconds, bar)
            rows += new_rows

    header = ("backend", "environments", "steps/s", "spread", "× Dummy", "score", "length")
    print(f"\n{markdown_table(header, rows)}\n")
    print(f"steps/s: environment steps per second (median of {DEMO_ROUNDS} interleaved rounds)")
    print("spread: interquartile range / median; above 10%, the machine was busy: repeat the demo")
    print("score, length: means over the episodes that finished before the timing\n")
    for title, results in panels.items():
        best = max(results, key=lambda each: each.relative_to(results[0]))
        ratio = "" if best is results[0] else f", {best.relative_to(results[0]):.2f} × Dummy"
        print(f"{title}: {best.name} is fastest{ratio}")
    print(
        "Use DummyVecEnv_Gym if a step of all environments takes less than about 0.1 ms, and\n"
        "SubprocVecEnv_Gym otherwise, with caller_steps=True unless your program needs the CPU\n"
        "while the environments step. make_vec(id, n) measures which is faster and uses it.\n"
    )
    plot = args.out / f"{env_id.replace('/', '-')}.png"
    plot_throughput(panels, plot, title="Random actions")
    print("Plot:")
    print(plot)
    print(f"\nNext, with your environment's id: {_python()} -m xuance_envs bench {env_id}")


def _python() -> str:
    """Return the command that runs this interpreter, such as .venv/bin/python in a clone."""
    found = shutil.which("python")
    if found is not None and Path(found).absolute() == Path(sys.executable):
        return "python"
    with suppress(ValueError):
        return str(Path(sys.executable).relative_to(Path.cwd()))
    return sys.executable


def _demo_of(env_id: str) -> tuple[Callable[[], Any], Backends]:
    """Return the factory and the backends for the id of an environment or an Atari game."""
    env_fn = partial(Gym_Env, env_id)
    if (env_id in gymnasium.registry and not env_id.startswith("ALE/")) or ":" in env_id:
        return env_fn, GYM_BACKENDS
    try:
        full_id(env_id)
    except (UnknownGameError, ImportError) as no_game:
        try:
            env_fn().close()
        except (gymnasium.error.Error, ImportError) as error:
            raise CommandError(
                f"cannot make {env_id!r}. As a Gymnasium environment: {error} "
                f"As an Atari game: {no_game}"
            ) from None
        return env_fn, GYM_BACKENDS
    return partial(Atari_Env, env_id, image_size=84, terminal_on_life_loss=False), ATARI_BACKENDS


def _cases(
    env_id: str, env_fn: Callable[[], Any], is_atari: bool, sizes: Sequence[int] | None
) -> list[Case]:
    """Return the cases to measure; the default cases include one with slow steps."""
    counts = dict.fromkeys(sizes or ([8] if is_atari else [8, 64]))
    cases = [Case(f"{count} × {env_id}", env_fn, count) for count in counts]
    if not (sizes or is_atari):
        cases.append(Case(f"8 × {env_id} + 1 ms", partial(CostlyEnv, env_fn), 8))
    return cases


def _demo_case(
    backends: Backends, case: Case, actions: Sequence[Any], seconds: float, bar: tqdm[Any]
) -> tuple[list[Throughput], list[list[str]]]:
    """Collect episodes in each backend, then time the backends; return times and table rows."""
    show = _progress(bar, f"{case.title}: ")
    with ExitStack() as stack:
        runners: dict[str, StepLoop] = {}
        means: dict[str, list[str]] = {}
        for name, backend in backends.items():
            bar.set_description(f"{case.title}: {name}: starting")
            vec_env = stack.enter_context(backend([case.env_fn] * case.num_envs))
            vec_env.reset(seed=0)
            bar.set_description(f"{case.title}: {name}: collecting episodes")
            means[name], rate = _collect_episodes(vec_env, actions, seconds / DEMO_PHASES)
            show(name, rate)
            runners[name] = StepLoop(vec_env, case.num_envs, actions)
        throughput = measure(
            runners, rounds=DEMO_ROUNDS, seconds=seconds / DEMO_PHASES, progress=show
        )
    results = list(throughput.values())
    rows = []
    for each in results:
        speed = f"{each.median:,.0f}", f"{each.spread:.0%}", f"{each.relative_to(results[0]):.2f}"
        rows.append([each.name, case.title, *speed, *means[each.name]])
    return results, rows


def _progress(bar: tqdm[Any], prefix: str) -> Callable[[str, float], None]:
    def show(name: str, rate: float) -> None:
        bar.set_description(f"{prefix}{name}", refresh=False)
        bar.set_postfix_str(f"{rate:,.0f} steps/s", refresh=False)
        bar.update()

    return show


def _collect_episodes(
    vec_env: VecEnv, actions: Sequence[Any], seconds: float
) -> tuple[list[str], float]:
    """Step for some seconds; return episodes' mean score and length, and the steps per second."""
    episodes = []
    start = time.perf_counter()
    steps = 0
    while (elapsed := time.perf_counter() - start) < seconds or steps == 0:
        _, _, terminated, truncated, infos = vec_env.step(actions[steps % len(actions)])
        steps += 1
        for index in np.flatnonzero(terminated | truncated).tolist():
            episodes.append((infos[index]["episode_score"], infos[index]["episode_step"]))
    means = [f"{mean:.1f}" for mean in np.mean(episodes, axis=0)] if episodes else ["-", "-"]
    return means, steps * vec_env.num_envs / elapsed


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_bench)
    parser.add_argument("id", metavar="ID", help="Gymnasium id or Atari game")
    parser.add_argument(
        "--num-envs",
        type=_positive(int),
        nargs="+",
        default=[8, 64],
        metavar="N",
        help="numbers of environments to measure, one after another (default: 8 64)",
    )


def run_bench(args: argparse.Namespace) -> None:
    """Measure or estimate the candidate backends for an environment, and recommend one."""
    _require("bench", "plot", "tqdm")
    from tqdm import tqdm

    make_env, _ = _demo_of(args.id)
    sizes = list(dict.fromkeys(args.num_envs))
    results = []
    total = len(sizes) * (1 + progress_ticks(3, tuning.ROUNDS))
    with tqdm(total=total, unit="run", disable=None) as bar:
        for num_envs in sizes:
            bar.set_description(f"{counted(num_envs, 'environment')}: starting")
            try:
                show = _progress(bar, f"{num_envs} × ")
                results.append(autotune(make_env, num_envs, progress=show))
            except EnvError as error:
                raise CommandError(f"cannot measure {args.id!r}: {error}") from error
        bar.total = bar.n  # autotune skips candidates that cannot be the fastest
    header = ("backend", "envs", "steps/s", "source", "choice")
    rows = [
        [
            each.name,
            str(result.num_envs),
            f"{each.steps_per_second:,.0f}",
            "measured" if each.measured else "estimated",
            "recommended" if each == result.choice else "",
        ]
        for result in results
        for each in result.candidates
    ]
    print(f"\n{markdown_table(header, rows)}\n")
    for result in results:
        print(f"{result.num_envs}: {result.reason}")
    print(f"\nA step of one environment takes {results[-1].step_time * 1e6:,.1f} µs, ", end="")
    print(f"{results[-1].cpu_fraction:.0%} of it CPU time.")


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            number = "an int" if kind is int else "a finite number"
            raise argparse.ArgumentTypeError(f"expected {number} above 0, got {text}")
        return value

    parse.__name__ = kind.__name__
    return parse


def _require(command: str, extra: str, *modules: str) -> None:
    """If an optional module is missing, raise an error that names its extra."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"{command} requires {' and '.join(missing)}: {how_to_install(extra)}")
