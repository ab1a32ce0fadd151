"""Halves of the environments: one steps while the agent thinks about the other."""

from __future__ import annotations

import logging
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.rollout.environments import EnvsStep, EpisodeEnd
from xuance_envs.rollout.states import StateLayout
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = ["Half", "HalvesTrial", "checked_halves", "halves_of"]

logger = logging.getLogger("xuance_envs")

TURN = 16
"""Steps that are timed together, with halves or without."""

TURNS = 4
"""So many times of each kind; the first is not counted."""

GAIN = 1.05
"""From so much on, halves are taken: below, the difference may be chance."""


def halves_of(vec_env: VecEnv | MultiAgentVecEnv) -> list[tuple[int, int]]:
    """Index of the first environment and after the last, of each half of the workers.

    Where all environments step together, there are none.
    """
    try:
        firsts = [worker.env_ids.start for worker in vec_env.statistics()][1:]
    except NotImplementedError:  # a VecEnv of somebody's own, which steps as a whole
        firsts = []
    if not firsts:
        return []
    middle = min(firsts, key=lambda first: abs(2 * first - vec_env.num_envs))
    return [(0, middle), (middle, vec_env.num_envs)]


def checked_halves(
    halves: int | str, vec_env: VecEnv | MultiAgentVecEnv, records: bool
) -> int | str:
    """How many halves there are to be: 1 or 2, or ``"auto"`` where both are possible.

    Args:
        halves: as given.
        vec_env: the environments.
        records: whether pictures of an environment are wanted between any two steps.

    Raises:
        ValueError: it is something else, or 2 where there is only 1.
    """
    if halves not in (1, 2, "auto"):
        raise ValueError(f"halves: expected 1, 2 or 'auto', got {halves!r}")
    if halves == 1:
        return 1
    why = ""
    if not halves_of(vec_env):
        why = f"environments in two workers or more, got {vec_env!r}, which steps as a whole"
    elif records:
        why = "no recorder, for pictures are taken while nothing steps"
    if halves == 2 and why:
        raise ValueError(f"halves=2: expected {why}")
    return 1 if why else halves


class Half:
    """Some environments in a row, whose results come in whatever batches are ready first.

    Args:
        lo: index of the first.
        hi: index after the last.
        layout: of the states.

    Attributes:
        lo (int): as given.
        hi (int): as given.
        env_ids (numpy.ndarray): their indices.
        missing (int): how many of them have not answered.
    """

    def __init__(self, lo: int, hi: int, layout: StateLayout) -> None:
        self.lo = lo
        self.hi = hi
        self.env_ids = np.arange(lo, hi)
        self.missing = hi - lo
        self._layout = layout
        self._came: list[tuple[NDArray[np.intp], EnvsStep, slice]] = []

    def take(self, env_ids: NDArray[np.intp], step: EnvsStep) -> None:
        """Keeps what is theirs of a step of some environments."""
        begin, end = np.searchsorted(env_ids, (self.lo, self.hi)).tolist()
        if begin < end:
            self._came.append((env_ids - self.lo, step, slice(begin, end)))
            self.missing -= end - begin

    def step(self) -> EnvsStep:
        """The step of all of them, once nobody is missing; then another one begins."""
        came, self._came, self.missing = self._came, [], self.hi - self.lo
        columns = [
            [each[at] for each in (step.over, *step.results, *self._layout.parts(step.obs))]
            for _, step, at in came
        ]
        if len(came) > 1:
            order = np.argsort(np.concatenate([places[at] for places, _, at in came]))
            columns = [[np.concatenate(pieces)[order] for pieces in zip(*columns, strict=True)]]
        (over, *others), count = columns[0], len(came[0][1].results)
        cut: list[int] = []
        ends: list[EpisodeEnd] = []
        for places, step, at in came:
            here = range(at.start, at.stop)
            cut += [int(places[k]) for k in step.cut.tolist() if k in here]
            ends += [
                end._replace(place=int(places[end.place])) for end in step.ends if end.place in here
            ]
        ends.sort(key=attrgetter("place"))
        obs = self._layout.whole(others[count:])
        return EnvsStep(obs, tuple(others[:count]), over, np.array(sorted(cut), np.intp), ends)


class HalvesTrial:
    """Finds out whether halves pay: some steps are made with them, some without, in turn."""

    def __init__(self) -> None:
        self._seconds: dict[int, list[float]] = {1: [], 2: []}

    @property
    def halves(self) -> int:
        """With how many the next steps are made."""
        return 1 if len(self._seconds[1]) <= len(self._seconds[2]) else 2

    def note(self, seconds: float, steps: int) -> int | str:
        """Takes note of how long so many steps took.

        Returns:
            What is quicker, 1 or 2; ``"auto"`` as long as that is not known.
        """
        self._seconds[self.halves].append(seconds / steps)
        if len(self._seconds[2]) < TURNS:
            return "auto"
        whole, halved = (float(np.median(self._seconds[kind][1:])) for kind in (1, 2))
        found = 2 if whole > GAIN * halved else 1
        logger.info(
            "halves=%d: a step takes %.0f µs with all environments at once, %.0f µs with halves",
            *(found, whole * 1e6, halved * 1e6),
        )
        return found
