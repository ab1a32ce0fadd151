"""Returns and lengths of the last finished episodes of each environment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpisodeMetrics", "EpisodeStatistics", "merge_statistics", "slice_statistics"]


class EpisodeStatistics:
    """Watches steps, and keeps the returns and lengths of the last episodes that finished.

    The return of an episode is ``info["episode"]["r"]`` where the environment records one, else
    ``info["episode_score"]``, else the sum of its rewards; its length likewise ``info["episode"]
    ["l"]``, ``info["episode_step"]``, or its number of steps. Where the info counts ``lives`` and
    says that the game is not over (``game_over``), a terminated step has cost a life only, and the
    episode goes on.
    """

    def __init__(self, num_envs: int, window: int) -> None:
        if window < 1:
            raise ValueError(f"window: expected at least 1 episode, got {window}")
        self.returns: list[list[float]] = [[] for _ in range(num_envs)]
        self.lengths: list[list[int]] = [[] for _ in range(num_envs)]
        self.ends: list[tuple[int, int, float]] = []
        self.max_return = math.nan
        self._window = window
        self._scores = np.zeros(num_envs)
        self._steps = 0
        self._episode_began = [
            0
        ] * num_envs  # which of the steps each environment's episode began after

    def add_step(self, rewards: NDArray[Any], first: int = 0) -> None:
        """Counts one step of every environment, or of some in a row."""
        self._scores[first : first + len(rewards)] += rewards
        self._steps += not first

    def add_end(self, env: int, info: Mapping[Any, Any], truncated: bool) -> bool:
        """Notes that an environment's episode ended with the step counted last."""
        steps = self._steps - self._episode_began[env]
        recorded = info.get("episode")
        if type(recorded) is dict and "r" in recorded:
            score, length = recorded["r"], recorded.get("l", steps)
        elif not truncated and "lives" in info and not info.get("game_over", True):
            return False
        else:
            score = info.get("episode_score", self._scores[env])
            length = info.get("episode_step", steps)
        self._append_episode(env, float(_number(score)), int(_number(length)))
        self.restart(env)
        return True

    def restart(self, env: int | None = None) -> None:
        """Forgets the steps of an episode that was not played to its end; None is for all."""
        for which in range(len(self._episode_began)) if env is None else (env,):
            self._scores[which] = 0
            self._episode_began[which] = self._steps

    def state(self) -> dict[str, Any]:
        """All of it."""
        return {
            "returns": [list(each) for each in self.returns],
            "lengths": [list(each) for each in self.lengths],
            "ends": list(self.ends),
            "max_return": self.max_return,
            "scores": self._scores.copy(),
            "steps": self._steps,
            "begun": list(self._episode_began),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from there; as many of the last episodes are kept as it keeps."""
        self.returns = [list(each)[-self._window :] for each in state["returns"]]
        self.lengths = [list(each)[-self._window :] for each in state["lengths"]]
        self.ends, self.max_return = list(state["ends"]), state["max_return"]
        self._scores, self._steps = state["scores"].copy(), state["steps"]
        self._episode_began = list(state["begun"])

    def clear_finished(self) -> None:
        """Begins a new list of what has finished."""
        self.ends = []

    def _append_episode(self, env: int, score: float, length: int) -> None:
        returns, lengths = self.returns[env], self.lengths[env]
        returns.append(score)
        lengths.append(length)
        self.ends.append((self._steps, env, score))
        if len(returns) > self._window:
            del returns[0], lengths[0]
        if not score <= self.max_return:  # which is NaN at first
            self.max_return = score

    @property
    def finished(self) -> list[float]:
        """Returns of the episodes that finished since :meth:`forget`, in that order."""
        return [score for *_, score in self.ends]

    @property
    def mean_return(self) -> float:
        """Mean return of the episodes kept; NaN before the first."""
        return _mean(self.returns)

    @property
    def mean_length(self) -> float:
        """Mean length of the episodes kept; NaN before the first."""
        return _mean(self.lengths)

    @property
    def median_length(self) -> float:
        """Median length of the episodes kept; NaN before the first."""
        return _percentile(self.lengths, 50)

    def return_percentile(self, percent: float) -> float:
        """The return that so many percent of the episodes kept stay below; NaN before the first."""
        return _percentile(self.returns, percent)


class EpisodeMetrics:
    """How good an agent is, by its episodes.

    Attributes:
        statistics (EpisodeStatistics): of the episodes.
    """

    statistics: EpisodeStatistics

    @property
    def finished_ep_returns(self) -> list[float]:
        """Returns of the episodes that finished since the last rollout began, in that order."""
        return self.statistics.finished

    @property
    def rolling_ep_returns(self) -> list[list[float]]:
        """By environment, the returns of its last ``window`` finished episodes."""
        return self.statistics.returns

    @property
    def rolling_ep_lengths(self) -> list[list[int]]:
        """By environment, the lengths of its last ``window`` finished episodes."""
        return self.statistics.lengths

    @property
    def mean_ep_return(self) -> float:
        """Mean return of those episodes, of all environments; NaN before the first."""
        return self.statistics.mean_return

    @property
    def lower_ep_return(self) -> float:
        """5th percentile of their returns."""
        return self.statistics.return_percentile(5)

    @property
    def median_ep_return(self) -> float:
        """Median of their returns."""
        return self.statistics.return_percentile(50)

    @property
    def upper_ep_return(self) -> float:
        """95th percentile of their returns."""
        return self.statistics.return_percentile(95)

    @property
    def max_ep_return(self) -> float:
        """The best return of an episode ever; NaN before the first."""
        return self.statistics.max_return

    @property
    def mean_ep_length(self) -> float:
        """Mean of their lengths."""
        return self.statistics.mean_length

    @property
    def median_ep_length(self) -> float:
        """Median of their lengths."""
        return self.statistics.median_length


def merge_statistics(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of statistics of all environments, of those of some each."""
    steps = max(state["steps"] for state in states)
    first = 0
    ends: list[tuple[int, int, float]] = []
    begun: list[int] = []
    for state in states:
        later = steps - state["steps"]
        ends += [(step + later, first + env, score) for step, env, score in state["ends"]]
        begun += [step + later for step in state["begun"]]
        first += len(state["begun"])
    return {
        "returns": [each for state in states for each in state["returns"]],
        "lengths": [each for state in states for each in state["lengths"]],
        "ends": sorted(ends, key=_end_order),
        "max_return": float(np.fmax.reduce([state["max_return"] for state in states])),
        "scores": np.concatenate([state["scores"] for state in states]),
        "steps": steps,
        "begun": begun,
    }


def slice_statistics(state: Mapping[str, Any], lo: int, hi: int) -> dict[str, Any]:
    """The state of statistics of the environments from one index up to another; all have the best."""
    parts = {name: state[name][lo:hi] for name in ("returns", "lengths", "scores", "begun")}
    ends = [(step, env - lo, score) for step, env, score in state["ends"] if lo <= env < hi]
    return {**state, **parts, "ends": ends}


def _end_order(end: tuple[int, int, float]) -> tuple[int, int]:
    return end[:2]


def _number(value: Any) -> Any:
    """A number that may come as an array of one element, as some wrappers record it."""
    return value.item() if isinstance(value, np.ndarray) else value


def _mean(kept: list[list[float]] | list[list[int]]) -> float:
    values = _flatten(kept)
    return float(values.mean()) if len(values) else math.nan


def _percentile(kept: list[list[float]] | list[list[int]], percent: float) -> float:
    values = _flatten(kept)
    return float(np.percentile(values, percent)) if len(values) else math.nan


def _flatten(kept: list[list[float]] | list[list[int]]) -> NDArray[np.float64]:
    return np.array([value for values in kept for value in values], np.float64)
