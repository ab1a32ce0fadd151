"""Latest results of a vectorized environment: its ``buf_obs``, and results saved with states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.space_layout import map_batch
from xuance_envs.engine.data.space_rows import with_rows
from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.serialization import copy_of
from xuance_envs.errors import StateError, StateMismatchError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_states, is_int
from xuance_envs.vector_envs.vector_env import VecEnv

RESULTS_KEY = "seen"  # in EnvStates

_T = TypeVar("_T")


class LastResult(NamedTuple):
    observation: list[Any]
    exact_reward: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[Any, Any]


class LastResults:
    """Latest results, with a writable batch of observations; a large batch is copied on access."""

    def __init__(self, arrays: StepArrays, copies_lazily: bool) -> None:
        self.arrays_are_current = False
        self._arrays = arrays
        self._rows = rows = arrays.observations
        self._copy = rows.copy_flat or rows.copy_writable
        self._batch: Any = self._copy()
        self._copies_lazily = copies_lazily
        self._returned: Any = None

    def mark_all_new(self, returned: Any) -> None:
        """Set the batch to the results of a step or reset of all environments."""
        if self._copies_lazily:
            self._batch, self._returned, self.arrays_are_current = None, returned, True
        else:
            self._batch = self._copy()

    def get(self) -> Any:
        """Return the batch; copy it first if the copy was deferred."""
        if self._batch is None:
            if self.arrays_are_current:
                self._batch = self._rows.copy_writable()
            else:  # a step is in progress
                self._batch = map_batch(np.ndarray.copy, self._returned)
            self._copies_lazily = False  # later accesses are likely
            self._returned = None
        return self._batch

    def set(self, batch: Any) -> None:
        self._batch = batch

    def update(self, before: Any, envs: NDArray[np.intp]) -> None:
        """Set the batch to a copy of ``before`` with the new observations of ``envs``."""
        rows, ids = self._rows, envs.tolist()
        leaves = ([part[env] for part in rows.parts] for env in ids)
        self._batch = with_rows(rows.layout, before, ids, leaves)

    def of(self, vec_env: VecEnv, ids: Sequence[int]) -> list[LastResult]:
        """Return copies of the latest results of some environments."""
        in_arrays = self._batch is None and self.arrays_are_current
        batch = self._returned if self._batch is None else self._batch
        parts = self._rows.parts if in_arrays else self._rows.layout.flatten(batch)
        return [
            LastResult(
                [copy_of(part[i]) for part in parts],
                self._arrays.rewards[i].tolist(),
                vec_env.buf_rews[i],
                bool(vec_env.buf_dones[i]),
                bool(vec_env.buf_truncations[i]),
                dict(vec_env.buf_infos[i]),
            )
            for i in ids
        ]

    def restore(
        self, vec_env: VecEnv, before: Any, ids: Sequence[int], results: Sequence[LastResult]
    ) -> None:
        """Replace the results of the loaded environments, in copies of the ``buf_*`` arrays."""
        rewards, dones = vec_env.buf_rews.copy(), vec_env.buf_dones.copy()
        truncations, infos = vec_env.buf_truncations.copy(), list(vec_env.buf_infos)
        for i, (_, exact_reward, *flags, info) in zip(ids, results, strict=True):
            self._arrays.rewards[i] = exact_reward
            (rewards[i], dones[i], truncations[i]), infos[i] = flags, info.copy()
        observations = (result.observation for result in results)
        self._batch = with_rows(self._rows.layout, before, ids, observations)
        vec_env.buf_rews, vec_env.buf_dones = rewards, dones
        vec_env.buf_truncations, vec_env.buf_infos = truncations, infos


def checked_last_results(
    state: EnvStates, count: int, arrays: StepArrays
) -> list[LastResult] | None:
    """Validate and return the results saved with a state; None if an adapter saved none."""
    results = saved_values(checked_states(state, count), RESULTS_KEY, LastResult)
    for result in results or ():
        check_saved_observation(result.observation, arrays.observations.parts)
        check_saved_shape("reward", result.exact_reward, arrays.rewards)
    return results


def saved_values(state: EnvStates, key: str, kind: Callable[..., _T]) -> list[_T] | None:
    """Return the values saved under a key, each as a ``kind``; None if some state has none."""
    try:
        given = state.extra(key)
        return None if given is None else [kind(*one) for one in given]
    except TypeError as error:
        raise StateError(-1, "load_state", str(error)) from None


def check_saved_observation(leaves: Sequence[Any], parts: Sequence[Any]) -> None:
    """Raise unless a saved observation has the leaves of ``parts``, with the shapes of rows."""
    if len(leaves) != len(parts):
        message = f"expected saved observations with {len(parts)} parts, got {len(leaves)}"
        details = "", "observation space", len(leaves), len(parts)
        raise StateMismatchError(-1, "load_state", message, *details)
    for leaf, part in zip(leaves, parts, strict=True):
        if isinstance(part, np.ndarray):
            check_saved_shape("observation", leaf, part)


def check_saved_shape(what: str, saved: Any, rows: NDArray[Any]) -> None:
    """Raise if a saved value does not have the shape of the array's rows."""
    saved_shape, shape = np.shape(saved), rows.shape[1:]
    if saved_shape != shape:
        message = f"expected saved {what}s of shape {shape}, got {saved_shape}"
        details = "", f"{what} space", saved_shape, shape
        raise StateMismatchError(-1, "load_state", message, *details)


def checked_clones(
    src_ids: int | Sequence[int], dst_ids: int | Sequence[int], num_envs: int
) -> tuple[list[int], list[int]]:
    """Validate the arguments of ``clone_state``; return one source per target."""
    target_ids: Any = [dst_ids] if is_int(dst_ids) else dst_ids
    targets = checked_env_ids(target_ids, num_envs, "dst_ids")
    source_ids: Any = src_ids if np.iterable(src_ids) else [src_ids]
    sources = checked_env_ids(source_ids, num_envs, "src_ids", distinct=False)
    if len(sources) == 1:
        sources *= len(targets)
    if len(sources) != len(targets):
        raise ValueError(
            f"src_ids: expected one environment, or one per target ({len(targets)}), "
            f"got {len(sources)}"
        )
    return sources, targets
