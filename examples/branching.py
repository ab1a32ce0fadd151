"""Exploration of a sparse-reward environment by branching: copy environments with rare states.

    python examples/branching.py
    python examples/branching.py --num-envs 64 --seconds 30 --out branching.png

In MountainCar, a weak car gets no useful reward before it reaches the flag. Random actions hardly
ever reach it. This script lets many cars take random actions in parallel. Every few steps,
environments in frequently visited cells of the state space become clones of environments in rarely
visited cells. `clone_state` copies environments in the middle of an episode, and `fork_rng` gives
each clone its own random stream. This is the idea of Go-Explore (Ecoffet et al. 2021,
https://doi.org/10.1038/s41586-020-03157-9) without a policy. The function `explore` contains the
algorithm. The plot needs the extra `plot`.
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
"""Cells per dimension of the state space."""

REPEAT = 3
"""Steps per action."""


EVERY = 2.0
"""Seconds between progress lines."""


@dataclass
class Found:
    """Exploration results.

    Attributes:
        visits: visits per cell.
        steps: environment steps, summed over all environments.
        goals: episodes that ended at the goal.
        first_goal: environment steps until the goal was first reached.
    """

    visits: Counter[tuple[int, ...]] = field(default_factory=Counter)
    steps: int = 0
    goals: int = 0
    first_goal: int | None = None


# --- the algorithm ------------------------------------------------------------------------------


def explore(envs: VecEnv, branches: bool, seed: int) -> Iterator[Found]:
    """Explore endlessly; each iteration takes steps and, with ``branches``, clones environments."""
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
    """Return the cell of each environment."""
    low, high = envs.observation_space.low, envs.observation_space.high
    cells = ((obs - low) / (high - low) * CELLS).astype(int).clip(0, CELLS - 1)
    return list(map(tuple, cells.tolist()))


# --- the comparison -----------------------------------------------------------------------------


def make_env() -> gymnasium.Env:
    """Create the environment, with at most 200 steps per episode."""
    return gymnasium.make("MountainCar-v0")


def run(num_envs: int, branches: bool, seconds: float, seed: int) -> Found:
    """Explore for some seconds, or until the goal has been reached ten times."""
    with SubprocVecEnv([make_env] * num_envs) as envs:
        said = start = time.perf_counter()
        for found in explore(envs, branches, seed):
            now = time.perf_counter()
            if now > start + seconds or found.goals >= 10:
                break
            if now > said + EVERY:
                said = now
                print(f"  {found.steps:,} steps, {len(found.visits)} cells", flush=True)
    return found


def draw(by_name: dict[str, Found], out: Path) -> None:
    """Plot the visited cells of each run."""
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
        axis.set_title(f"{name}: {len(found.visits)} cells, goal reached {found.goals} times")
        axis.set_xlabel("position")
    axes[0].set_ylabel("speed")
    figure.tight_layout()
    figure.savefig(out)


def main() -> None:
    """Explore with and without branching, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="maximum duration of each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE", help="file for the plot")
    args = parser.parse_args()
    found = {
        name: run(args.num_envs, branches, args.seconds, args.seed)
        for name, branches in (("branching", True), ("random", False))
    }
    for name, one in found.items():
        first = "never" if one.first_goal is None else f"after {one.first_goal:,} steps"
        print(
            f"{name:>9}: {one.steps:>9,} steps, {len(one.visits):>4} cells, "
            f"goal reached {one.goals} times, first {first}",
            flush=True,
        )
    if args.out is not None:
        draw(found, args.out)


if __name__ == "__main__":
    main()
