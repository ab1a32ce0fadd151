"""Results of Gymnasium's vector environments, built from a stepper's arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from xuance_envs.compat.stepping import FinishedStep, StatesMixin
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.info_columns import NUMBER_KINDS, ArrayKind, Columns
from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.serialization import copy_of
from xuance_envs.vector_envs.vector_env import VecEnv


class InfoBatching:
    """Mixin that builds Gymnasium's dict of infos from the infos of all environments."""

    num_envs: int
    _add_info: Any

    _every = cached_property(lambda self: np.arange(self.num_envs))

    def _reset_infos(self, infos: InfoBatch, envs: NDArray[np.intp]) -> dict[str, Any]:
        columns = self._plain_columns(infos, self._every)
        if columns is None:
            return self._merged(_built(infos, envs), {})
        reset = np.zeros(self.num_envs, np.bool_)
        reset[envs] = True
        return _with_masks(columns, reset)

    def _step_infos(self, step: FinishedStep, final_obs: list[Any]) -> dict[str, Any]:
        step_infos, ends = step
        columns = self._plain_columns(step_infos, self._every)
        if ends is None:
            if columns is None:
                return self._merged(_built(step_infos, self._every), {})
            return _with_masks(columns, None)
        envs, reset_infos = ends.resets()
        reset_columns = self._plain_columns(reset_infos, envs)
        if columns is None or reset_columns is None or not _same_kinds(columns, reset_columns):
            starts = {
                env: (final_obs[row], reset_infos.build(row, env))
                for row, env in enumerate(envs.tolist())
            }
            return self._merged(_built(step_infos, self._every), starts)
        ended = np.zeros(self.num_envs, np.bool_)
        ended[envs] = True
        infos = _with_masks(columns, ~ended)
        for key, (kind, values, mask) in reset_columns.items():
            if key not in infos:
                infos[key] = np.zeros((self.num_envs, *kind.shape), kind.dtype)
                infos[f"_{key}"] = np.zeros(self.num_envs, np.bool_)
            at = slice(None) if mask is None else mask
            infos[key][envs[at]] = values[at]
            infos[f"_{key}"][envs[at]] = True
        last = np.full(self.num_envs, None, dtype=object)
        for env, observation in zip(envs.tolist(), final_obs, strict=True):
            last[env] = observation
        infos["final_obs"], infos["_final_obs"] = last, ended
        infos["final_info"], infos["_final_info"] = _with_masks(columns, ended), ended.copy()
        return infos

    def _merged(
        self,
        infos: Iterable[tuple[int, dict[Any, Any]]],
        ends: Mapping[int, tuple[Any, dict[Any, Any]]],
    ) -> dict[str, Any]:
        """Merge environments' infos; ``ends`` has ``(final_obs, reset_info)`` by environment."""
        merged: dict[str, Any] = {}
        for env, info in infos:
            if env in ends:
                final_obs, reset_info = ends[env]
                final = {"final_obs": final_obs, "final_info": info}
                merged, info = self._add_info(merged, final, env), reset_info
            merged = self._add_info(merged, info, env)
        return merged

    def _plain_columns(self, batch: InfoBatch, envs: NDArray[np.intp]) -> Columns | None:
        """Return the columns if Gymnasium would turn each into an array and a mask, else None."""
        # Gymnasium documents this method for overriding, despite its private name.
        overrides = type(self)._add_info is not VectorEnv._add_info
        columns = None if overrides else batch.columns(envs)
        for key, (kind, _, _) in (columns or {}).items():
            reserved = key.startswith("_") or key in ("final_obs", "final_info")
            if reserved or kind is NUMBER_KINDS[np.bool_]:
                return None
        return columns


def _built(batch: InfoBatch, envs: NDArray[np.intp]) -> Iterator[tuple[int, dict[Any, Any]]]:
    ids = envs.tolist()
    return zip(ids, map(batch.build, ids, ids), strict=True)


def _same_kinds(some: Columns, others: Columns) -> bool:
    return all([some[key][0] == others[key][0] for key in some.keys() & others.keys()])


def _with_masks(columns: Columns, wanted: NDArray[np.bool_] | None) -> dict[str, Any]:
    """Return arrays and masks for the wanted environments; ``wanted`` is None for all."""
    infos: dict[str, Any] = {}
    for key, (kind, values, present) in columns.items():
        mask = np.ones(len(values), np.bool_) if present is None else present
        if wanted is not None:
            mask = mask & wanted
            if not mask.any():
                continue
        if isinstance(kind, ArrayKind):
            infos[key] = np.zeros_like(values)
            infos[key][mask] = values[mask]
        else:
            infos[key] = values if wanted is None else np.where(mask, values, values.dtype.type(0))
        infos[f"_{key}"] = mask
    return infos


StepResult = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class GymnasiumResults(InfoBatching, StatesMixin):
    """Mixin that builds the results of Gymnasium's vector environments from a stepper's arrays."""

    copy: bool
    closed: bool

    def _assert_is_running(self) -> None:
        stepper = self._stepper
        if self.closed or (stepper is not None and stepper.groups.closed):
            if stepper is not None:
                stepper.groups.check_process()
            raise ClosedEnvironmentError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )

    def _reset_result(self, infos: InfoBatch, envs: NDArray[np.intp]) -> tuple[Any, dict[str, Any]]:
        return self._observation_batch(), self._reset_infos(infos, envs)

    def _step_result(self, step: FinishedStep) -> StepResult:
        arrays, (_, ends) = self._stepper.arrays, step
        final_obs = [] if ends is None else self._stepper.final_observations()
        return (
            self._observation_batch(),
            arrays.rewards.copy(),
            arrays.terminated.copy(),
            arrays.truncated.copy(),
            self._step_infos(step, final_obs),
        )

    def _observation_batch(self) -> Any:
        observations = self._stepper.arrays.observations
        if not self.copy:
            return observations.as_batch()
        # Objects stay in the arrays, from where a reset of other environments returns them again.
        return copy_of(observations.as_batch()) if observations.objects else observations.copy()


def exchange_ended(
    vec_env: VecEnv, layout: SpaceLayout, obs: Any, envs: Sequence[int], first: Sequence[Any]
) -> list[Any]:
    """Return copies of final observations; write the next episodes' first ones to ``buf_obs``."""
    parts, held = layout.flatten(obs), layout.flatten(vec_env.buf_obs)
    last = [copy_of(layout.unflatten([part[env] for part in parts])) for env in envs]
    for env, observation in zip(envs, first, strict=True):
        for target, part in zip(held, layout.flatten(observation), strict=True):
            target[env] = part
    return last
