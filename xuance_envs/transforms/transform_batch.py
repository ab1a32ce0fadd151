"""Results of one call, in the form that transforms pass to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.serialization import copy_of
from xuance_envs.vector_envs.vector_env import StepBatch, VecEnv

NO_ENVS = np.arange(0)


class Batch:
    """Observations, rewards, flags and infos of k environments, modified in place by transforms."""

    __slots__ = (
        *("obs", "rewards", "terminated", "truncated", "infos"),
        *("source", "envs", "began", "exact_rewards", "ended"),
    )

    def __init__(
        self,
        obs: Any,
        rewards: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        infos: Any,
        source: VecEnv | None = None,
        envs: NDArray[np.intp] | None = None,
        began: NDArray[np.bool_] | None = None,
    ) -> None:
        self.obs = obs
        self.rewards = rewards
        self.terminated = terminated
        self.truncated = truncated
        self.infos: Any = infos
        self.source = source
        self.envs = envs
        self.began = began
        self.exact_rewards: NDArray[np.float64] | None = None
        if type(infos) is StepInfos and infos.ends is None:
            self.ended = NO_ENVS
        else:
            self.ended = (terminated | truncated).nonzero()[0]

    @classmethod
    def of_last_step(cls, source: VecEnv) -> Batch:
        """Rebuild the results of a step that finished before an interrupt."""
        flags = source.buf_dones, source.buf_truncations
        return cls(copy_of(source.buf_obs), source.buf_rews, *flags, source.buf_infos, source)

    @classmethod
    def of_received(cls, received: StepBatch, awaiting: NDArray[np.bool_] | None) -> Batch:
        """Return the results of ``recv``; those of environments in ``awaiting`` are resets."""
        envs = received.env_ids
        began = None if awaiting is None or not awaiting[envs].any() else awaiting[envs]
        return cls(*received[:5], envs=envs, began=began)

    @property
    def given_rewards(self) -> NDArray[np.float64]:
        """Rewards before this transform, in a new array; unrounded if all environments stepped."""
        source = self.source
        return self.rewards.astype(np.float64) if source is None else source.exact_rewards

    @property
    def at(self) -> Any:
        """Index of the batch's environments in arrays of all environments."""
        return slice(None) if self.envs is None else self.envs

    def envs_of_rows(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        return rows if self.envs is None else self.envs[rows]

    @property
    def env_ids(self) -> list[int]:
        """Index of each row's environment."""
        return list(range(len(self.rewards))) if self.envs is None else self.envs.tolist()

    def call_number_after(self, number: int) -> int:
        """Return this call's number since the last full reset, given the previous call's."""
        is_full_reset = self.envs is None and self.began is not None
        return 0 if is_full_reset else number + 1

    @property
    def lost_rows(self) -> NDArray[np.intp]:
        """Rows without a real step, because their worker failed."""
        ended = self.ended
        if not len(ended) or self.terminated[ended].all():
            return NO_ENVS
        infos = self.infos
        if isinstance(infos, StepInfos):
            return infos.column("worker_restarted")[1].nonzero()[0]
        return np.array([r for r in ended.tolist() if "worker_restarted" in infos[r]], np.intp)

    @property
    def boundaries(self) -> tuple[Any, NDArray[np.intp]]:
        """Value of :attr:`at`, and indices of the environments that ended or began episodes."""
        rows = self.ended if self.began is None else np.union1d(self.ended, self.began.nonzero()[0])
        return self.at, self.envs_of_rows(rows)

    def first_observations(self, layout: SpaceLayout) -> list[Any]:
        """Return the first observations after ended episodes, one batch per leaf."""
        infos = self.infos
        if isinstance(infos, StepInfos):
            assert infos.ends is not None
            values = infos.ends.observations(infos.ends.envs)
        else:
            values = [infos[row]["reset_obs"] for row in self.ended.tolist()]
        parts = zip(*map(layout.flatten, values), strict=True)
        pairs = zip(parts, layout.leaves, strict=True)
        return [part if leaf.dtype is None else np.stack(part) for part, leaf in pairs]

    def set_first_observations(self, observations: Sequence[Any]) -> None:
        """Replace the first observations in the infos: one per row in :attr:`ended`."""
        if isinstance(self.infos, StepInfos):
            self.infos = self.infos.with_reset_observations(observations)
        else:
            self._add(zip(self.ended.tolist(), observations, strict=True), "reset_obs")

    def add_to_infos(self, key: str, values: Mapping[int, Callable[[], Any]]) -> None:
        """Add a key to the infos of some rows, lazily if the infos support it."""
        if isinstance(self.infos, StepInfos):
            envs = self.env_ids
            self.infos = self.infos.with_values(key, {envs[row]: values[row] for row in values})
        else:
            self._add(((row, value()) for row, value in values.items()), key)

    def _add(self, values: Iterable[tuple[int, Any]], key: str) -> None:
        self.infos = list(self.infos)
        for row, value in values:
            self.infos[row] = {**self.infos[row], key: value}


class RawResults:
    """Latest results before any transform."""

    def __init__(self, vec_env: VecEnv) -> None:
        self.rewards = np.zeros_like(vec_env.buf_rews)
        self.observations: Any = None
        self.keep = False
        self.lost: tuple[Any, NDArray[np.intp]] | None = None  # see `Batch.boundaries`
        self._source: VecEnv | None = None

    def record_step(self, batch: Batch) -> None:
        self.rewards, self._source, self.lost = batch.rewards.copy(), batch.source, None
        if self.keep:
            self.observations = copy_of(batch.obs)

    def record_observations(self, obs: Any) -> None:
        if self.keep:
            self.observations = copy_of(obs)

    @property
    def exact_rewards(self) -> NDArray[Any]:
        """Rewards of the last call: float64 after a step of all environments, float32 otherwise."""
        return self.rewards if self._source is None else self._source.exact_rewards
