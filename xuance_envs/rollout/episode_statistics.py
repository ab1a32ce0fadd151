"""Statistics of recently finished episodes: returns and lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.vector_envs.arguments import checked_count


class EpisodeHistory:
    """The returns and lengths of each environment's last finished episodes.

    An episode's return is ``info["episode"]["r"]``, else ``info["episode_score"]``, else the sum of
    its rewards. A return in the info counts only if it has the shape of a reward. For vector
    rewards, returns and their statistics are arrays ``(k,)``, one entry per component. An episode's
    length is ``info["episode"]["l"]``, else ``info["episode_step"]``, else its number of steps.

    A lost life does not finish an episode. A termination is a lost life if its info has ``lives``,
    no ``episode``, and ``game_over`` False.
    """

    def __init__(self, num_envs: int, window: int, reward_shape: tuple[int, ...] = ()) -> None:
        self.returns: list[list[Any]] = [[] for _ in range(num_envs)]
        self.lengths: list[list[int]] = [[] for _ in range(num_envs)]
        self.ends: list[tuple[int, int, Any]] = []
        self.max_return: Any = _plain(np.full(reward_shape, math.nan))
        self.shape = reward_shape
        self._window = checked_count("window", window)
        self._scores = np.zeros((num_envs, *reward_shape))
        self._steps = 0
        # By environment, the step count at the start of its episode.
        self._episode_began = [0] * num_envs

    def add_step(self, rewards: NDArray[Any], first: int = 0) -> None:
        """Add a step's rewards, from environment ``first`` on; count the step if ``first`` is 0."""
        self._scores[first : first + len(rewards)] += rewards
        self._steps += not first

    def add_end(self, env: int, info: Mapping[Any, Any], truncated: bool) -> bool:
        """Record the end of an episode; return False if only a life was lost."""
        steps = self._steps - self._episode_began[env]
        recorded = info.get("episode")
        if type(recorded) is dict and "r" in recorded:
            score, length = recorded["r"], recorded.get("l", steps)
        elif not truncated and "lives" in info and not info.get("game_over", True):
            return False
        else:
            score = info.get("episode_score", self._scores[env])
            length = info.get("episode_step", steps)
        score = np.asarray(score)
        score = score.reshape(()) if not self.shape and score.size == 1 else score
        if score.shape != self.shape:  # for example, a vector of rewards that were scalarized
            score = self._scores[env]
        length = length.item() if isinstance(length, np.ndarray) else length  # some wrappers' form
        episode_return = _plain(score.astype(np.float64))
        for kept, value in ((self.returns, episode_return), (self.lengths, int(length))):
            kept[env].append(value)
            del kept[env][: -self._window]
        self.ends.append((self._steps, env, episode_return))
        self.max_return = _plain(np.fmax(self.max_return, episode_return))
        self.restart(env)
        return True

    def restart(self, env: int | None = None) -> None:
        """Discard the unfinished episode of one environment, or of all if ``env`` is None."""
        for which in range(len(self._episode_began)) if env is None else (env,):
            self._scores[which] = 0
            self._episode_began[which] = self._steps

    def state(self) -> dict[str, Any]:
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
        """Restore a state; keep only the episodes in this object's window."""
        self.returns = [list(each)[-self._window :] for each in state["returns"]]
        self.lengths = [list(each)[-self._window :] for each in state["lengths"]]
        self.ends, self.max_return = list(state["ends"]), state["max_return"]
        self._scores, self._steps = state["scores"].copy(), state["steps"]
        self._episode_began = list(state["begun"])


class EpisodeMetrics:
    """Metrics of recently finished episodes.

    For vector rewards, returns and their metrics are arrays ``(k,)``, computed for each component.

    Attributes:
        statistics (EpisodeHistory): the underlying statistics.
    """

    statistics: EpisodeHistory

    @property
    def finished_ep_returns(self) -> list[Any]:
        """Returns of the episodes finished since the last rollout began, in order."""
        return [score for *_, score in self.statistics.ends]

    @property
    def rolling_ep_returns(self) -> list[list[Any]]:
        """Returns of the last ``window`` finished episodes, by environment."""
        return self.statistics.returns

    @property
    def rolling_ep_lengths(self) -> list[list[int]]:
        """Lengths of the last ``window`` finished episodes, by environment."""
        return self.statistics.lengths

    @property
    def mean_ep_return(self) -> Any:
        """Mean of ``rolling_ep_returns`` over all environments; NaN before the first episode."""
        return self._reduced_returns(np.mean)

    @property
    def lower_ep_return(self) -> Any:
        """5th percentile of ``rolling_ep_returns``; NaN before the first episode."""
        return self._reduced_returns(np.percentile, 5)

    @property
    def median_ep_return(self) -> Any:
        """Median of ``rolling_ep_returns``; NaN before the first episode."""
        return self._reduced_returns(np.percentile, 50)

    @property
    def upper_ep_return(self) -> Any:
        """95th percentile of ``rolling_ep_returns``; NaN before the first episode."""
        return self._reduced_returns(np.percentile, 95)

    @property
    def max_ep_return(self) -> Any:
        """Highest return of any episode so far; NaN before the first episode."""
        return self.statistics.max_return

    @property
    def mean_ep_length(self) -> float:
        """Mean of ``rolling_ep_lengths``; NaN before the first episode."""
        return float(_reduced(self.rolling_ep_lengths, (), np.mean))

    @property
    def median_ep_length(self) -> float:
        """Median of ``rolling_ep_lengths``; NaN before the first episode."""
        return float(_reduced(self.rolling_ep_lengths, (), np.percentile, 50))

    def _reduced_returns(self, reduce: Callable[..., Any], *arguments: float) -> Any:
        return _reduced(self.rolling_ep_returns, self.statistics.shape, reduce, *arguments)


def merge_statistics(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the statistics of consecutive groups of environments."""
    steps = max(state["steps"] for state in states)
    first = 0
    ends: list[tuple[int, int, Any]] = []
    begun: list[int] = []
    for state in states:
        later = steps - state["steps"]
        ends += [(step + later, first + env, score) for step, env, score in state["ends"]]
        begun += [step + later for step in state["begun"]]
        first += len(state["begun"])
    return {
        "returns": [each for state in states for each in state["returns"]],
        "lengths": [each for state in states for each in state["lengths"]],
        "ends": sorted(ends, key=lambda end: end[:2]),
        "max_return": max_of([state["max_return"] for state in states]),
        "scores": np.concatenate([state["scores"] for state in states]),
        "steps": steps,
        "begun": begun,
    }


def slice_statistics(state: Mapping[str, Any], lo: int, hi: int) -> dict[str, Any]:
    """Extract the statistics of environments ``lo`` to ``hi - 1``; copy ``max_return``."""
    parts = {name: state[name][lo:hi] for name in ("returns", "lengths", "scores", "begun")}
    ends = [(step, env - lo, score) for step, env, score in state["ends"] if lo <= env < hi]
    return {**state, **parts, "ends": ends}


def max_of(returns: Sequence[Any]) -> Any:
    """Return the largest return, or the largest value per component of vectors; ignore NaN."""
    return _plain(np.fmax.reduce(np.array(returns)))


def _plain(value: NDArray[Any]) -> Any:
    """Return a number as a float, and a vector as an array of its own."""
    return np.array(value) if np.ndim(value) else float(value)


def _reduced(
    kept: list[list[Any]], shape: tuple[int, ...], reduce: Callable[..., Any], *arguments: float
) -> Any:
    """Reduce all values to one of this shape; NaN if there are none."""
    values = [value for each in kept for value in each] or [np.full(shape, math.nan)]
    return _plain(reduce(np.array(values, np.float64), *arguments, axis=0))
