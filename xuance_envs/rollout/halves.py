"""Double buffering: one half of the environments steps while the agent acts for the other."""

from __future__ import annotations

import logging
from operator import itemgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xuance_envs.multi_agent.multi_agent_vec_env import MultiAgentVecEnv
from xuance_envs.rollout.env_adapters import EpisodeEnd, LoopStep
from xuance_envs.rollout.state_layout import StateLayout
from xuance_envs.vector_envs.vector_env import VecEnv

Halves = Literal[1, 2, "auto"]

logger = logging.getLogger("xuance_envs")

STEPS_PER_TURN = 16
"""Number of steps that are timed together in one mode."""

TURNS_PER_MODE = 4
"""Timed turns per mode; the first turn is discarded."""

MIN_SPEEDUP = 1.05
"""Minimum speedup to choose two halves; smaller differences may be noise."""


def half_bounds(vec_env: VecEnv | MultiAgentVecEnv) -> list[tuple[int, int]]:
    """Return the environment range of each half of the workers; empty with one worker."""
    try:
        firsts = [worker.env_ids.start for worker in vec_env.statistics()][1:]
    except NotImplementedError:  # a custom VecEnv without workers
        firsts = []
    if not firsts:
        return []
    middle = min(firsts, key=lambda first: abs(2 * first - vec_env.num_envs))
    return [(0, middle), (middle, vec_env.num_envs)]


def validate_halves(
    halves: Halves, vec_env: VecEnv | MultiAgentVecEnv, records: bool
) -> tuple[Halves, list[tuple[int, int]]]:
    """Return ``halves``, with 1 for ``"auto"`` if two are not possible, and the halves' bounds."""
    if halves not in (1, 2, "auto"):
        raise ValueError(f"halves: expected 1, 2 or 'auto', got {halves!r}")
    bounds = [] if halves == 1 else half_bounds(vec_env)
    mismatch = ""
    if not bounds:
        mismatch = f"a vec env with two or more workers, got {vec_env!r}"
    elif records:
        mismatch = "recorder=None, got a recorder, which renders only while no environment steps"
    if halves == 2 and mismatch:
        raise ValueError(f"halves=2: expected {mismatch}")
    return 1 if mismatch else halves, bounds


class Half:
    """One half of the environments, whose results arrive in batches."""

    def __init__(self, lo: int, hi: int, layout: StateLayout) -> None:
        self.lo = lo
        self.hi = hi
        self.env_ids = np.arange(lo, hi)
        self.outstanding = hi - lo
        self._layout = layout
        self._batches: list[tuple[NDArray[np.intp], LoopStep, slice]] = []

    def add(self, env_ids: NDArray[np.intp], step: LoopStep) -> None:
        """Store the part of a step that belongs to this half."""
        begin, end = np.searchsorted(env_ids, (self.lo, self.hi)).tolist()
        if begin < end:
            self._batches.append((env_ids - self.lo, step, slice(begin, end)))
            self.outstanding -= end - begin

    def step(self) -> LoopStep:
        """Return the half's complete step, and start collecting its next step."""
        batches, self._batches, self.outstanding = self._batches, [], self.hi - self.lo
        columns = [
            [each[at] for each in (step.ended, *step.results, *self._layout.parts(step.obs))]
            for _, step, at in batches
        ]
        if len(batches) > 1:
            order = np.argsort(np.concatenate([places[at] for places, _, at in batches]))
            columns = [[np.concatenate(pieces)[order] for pieces in zip(*columns, strict=True)]]
        (ended, *others), count = columns[0], len(batches[0][1].results)
        segment_ends: list[int] = []
        ends: list[EpisodeEnd] = []
        for places, step, at in batches:
            here = range(at.start, at.stop)
            segment_ends += [int(places[k]) for k in step.segment_ends.tolist() if k in here]
            ends += [(int(places[k]), *end) for k, *end in step.ends if k in here]
        ends.sort(key=itemgetter(0))
        obs, results = self._layout.whole(others[count:]), tuple(others[:count])
        return LoopStep(obs, results, ended, np.array(sorted(segment_ends), np.intp), ends)


class HalvesTrial:
    """A measurement in turns of several steps, alternately with and without halves."""

    def __init__(self) -> None:
        self._seconds: dict[int, list[float]] = {1: [], 2: []}

    @property
    def halves(self) -> int:
        """Number of halves in the next turn."""
        return 1 if len(self._seconds[1]) <= len(self._seconds[2]) else 2

    def record(self, seconds: float, steps: int) -> Halves:
        """Record a turn's duration; return the faster mode after the last turn, else ``"auto"``."""
        self._seconds[self.halves].append(seconds / steps)
        if len(self._seconds[2]) < TURNS_PER_MODE:
            return "auto"
        whole, halved = (float(np.median(self._seconds[kind][1:])) for kind in (1, 2))
        found: Halves = 2 if whole > MIN_SPEEDUP * halved else 1
        message = "chose halves=%d: a step takes %.0f µs with halves=1, %.0f µs with halves=2"
        logger.info(message, found, whole * 1e6, halved * 1e6)
        return found
