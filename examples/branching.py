"""Exploring a sparse game by branching: environments become clones of those that got further.

    python examples/branching.py
    python examples/branching.py --num-envs 64 --seconds 30 --out branching.png

A car in a valley is too weak to drive up its hill, and is told nothing before it is at the flag:
random actions never get it there. Here many cars try random actions at the same time, and every few
steps those that are where many have been before become clones of those that are where few have
been: `clone_state` moves them there in the middle of an episode, and `fork_rng` lets them go on
otherwise. That is the idea of Go-Explore (Ecoffet et al. 2021,
https://doi.org/10.1038/s41586-020-03157-9) without a policy. The recipe is the function `explore`;
the picture needs the extra `plot`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium
import numpy as np
from numpy.typing import NDArray

from xuance_envs import SubprocVecEnv, VecEnv

CELLS = 40
"""A place is one of so many times so many."""

REPEAT = 3
"""An action is kept for so many steps."""


EVERY = 2.0
"""Seconds between two lines about how far it is."""


@dataclass
class Found:
    """What has been seen.

    Attributes:
        visits: how often each place.
        steps: of all environments together.
        goals: how often an episode ended at its goal.
        first_goal: the steps until then.
    """

    visits: Counter[tuple[int, ...]] = field(default_factory=Counter)
    steps: int = 0
    goals: int = 0
    first_goal: int | None = None


# --- the recipe ---------------------------------------------------------------------------------


def explore(envs: VecEnv, branches: bool, seed: int) -> Iterator[Found]:
    """Explores for ever: a few steps, and then some clones, whenever the next item is asked for."""
    rng = np.random.default_rng(seed)
    found = Found()
    obs, _ = envs.reset(seed=seed)
    while True:
        actions = rng.integers(envs.action_space.n, size=envs.num_envs)
        for _ in range(REPEAT):
            obs, _, terminated, truncated, infos = envs.step(actions)
            found.steps += envs.num_envs
            found.visits.update(places(envs, obs))
            found.goals += int(terminated.sum())
            if terminated.any() and found.first_goal is None:
                found.first_goal = found.steps
            for i in np.flatnonzero(terminated | truncated):
                obs[i] = infos[i]["reset_obs"]
        if branches:
            known = np.array([found.visits[place] for place in places(envs, obs)])
            order = np.argsort(known + rng.random(len(known)))
            few, many = np.array_split(order, 2)
            envs.clone_state(few[: len(many)], many[: len(few)], fork_rng=True)
        yield found


def places(envs: VecEnv, obs: NDArray[np.floating]) -> list[tuple[int, ...]]:
    """In which cell each environment is."""
    low, high = envs.observation_space.low, envs.observation_space.high
    cells = ((obs - low) / (high - low) * CELLS).astype(int).clip(0, CELLS - 1)
    return list(map(tuple, cells.tolist()))


# --- the comparison -----------------------------------------------------------------------------


def make_env() -> gymnasium.Env:
    """The car, with 200 steps an episode."""
    return gymnasium.make("MountainCar-v0")


def run(num_envs: int, branches: bool, seconds: float, seed: int) -> Found:
    """Explores for some seconds, or until the goal has been reached ten times."""
    with SubprocVecEnv([make_env] * num_envs) as envs:
        said = start = time.perf_counter()
        for found in explore(envs, branches, seed):
            now = time.perf_counter()
            if now > start + seconds or found.goals >= 10:
                break
            if now > said + EVERY:
                said = now
                print(f"  {found.steps:,} steps, {len(found.visits)} places", flush=True)
    return found


def draw(by_name: dict[str, Found], out: Path) -> None:
    """Shows where each has been."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(by_name), figsize=(10, 4.5), sharey=True)
    for axis, (name, found) in zip(axes, by_name.items(), strict=True):
        seen = np.zeros((CELLS, CELLS))
        for (position, speed), count in found.visits.items():
            seen[speed, position] = np.log10(1 + count)
        axis.imshow(seen, origin="lower", extent=(-1.2, 0.6, -0.07, 0.07), aspect="auto")
        axis.axvline(0.5, color="red")
        axis.set_title(f"{name}: {len(found.visits)} places, {found.goals} times at the flag")
        axis.set_xlabel("position")
    axes[0].set_ylabel("speed")
    figure.tight_layout()
    figure.savefig(out)


def main() -> None:
    """Explores with and without branching, and says what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each of the two")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to draw what was found")
    args = parser.parse_args()
    found = {
        name: run(args.num_envs, branches, args.seconds, args.seed)
        for name, branches in (("branching", True), ("random", False))
    }
    for name, one in found.items():
        first = "never" if one.first_goal is None else f"after {one.first_goal:,} steps"
        print(
            f"{name:>9}: {one.steps:>9,} steps, {len(one.visits):>4} places, "
            f"at the flag {one.goals} times, first {first}",
            flush=True,
        )
    if args.out is not None:
        draw(found, args.out)


if __name__ == "__main__":
    main()
