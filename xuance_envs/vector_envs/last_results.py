"""Latest result of each environment, saved with its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.errors import StateError, StateMismatchError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_states
from xuance_envs.vector_envs.last_observations import LastObservationBuffer
from xuance_envs.vector_envs.vector_env import VecEnv

_KEY = "seen"  # of the results in EnvStates


class LastResult(NamedTuple):
    observation: list[Any]
    exact_reward: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[Any, Any]


def last_results(
    vec_env: VecEnv, observations: LastObservationBuffer, ids: Sequence[int]
) -> list[LastResult]:
    rewards = vec_env.exact_rewards
    return [
        LastResult(
            observation,
            rewards[i].tolist(),
            vec_env.buf_rews[i],
            bool(vec_env.buf_dones[i]),
            bool(vec_env.buf_truncations[i]),
            dict(vec_env.buf_infos[i]),
        )
        for i, observation in zip(ids, observations.rows(ids), strict=True)
    ]


def adding_last_results(state: EnvStates, results: Sequence[LastResult]) -> EnvStates:
    return state.adding(_KEY, [tuple(result) for result in results])


def checked_last_results(
    state: EnvStates, count: int, arrays: StepArrays
) -> list[LastResult] | None:
    """Validate and return a state's results; None if another interface saved it."""
    checked_states(state, count)
    try:
        given = state.extra(_KEY)
        if given is None:
            return None
        results = [LastResult(*one) for one in given]
    except (FaultError, TypeError) as error:
        raise StateError(-1, "load_state", str(error)) from None
    for result in results:
        for part, leaf in zip(arrays.observations.parts, result.observation, strict=False):
            if isinstance(part, np.ndarray):
                _check_shape("observation", leaf, part)
        _check_shape("reward", result.exact_reward, arrays.rewards)
    return results


def _check_shape(what: str, saved: Any, rows: NDArray[Any]) -> None:
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
    target_ids: Any = [dst_ids] if _is_index(dst_ids) else dst_ids
    targets = checked_env_ids(target_ids, num_envs, "dst_ids")
    try:
        given: list[Any] = [src_ids] if _is_index(src_ids) else list(src_ids)  # type: ignore[arg-type]
    except TypeError:
        reason = f"src_ids: expected an int or a sequence of ints, got {src_ids!r}"
        raise ValueError(reason) from None
    sources = [checked_env_ids([one], num_envs, "src_ids")[0] for one in given]
    if len(sources) == 1:
        sources *= len(targets)
    if len(sources) != len(targets):
        raise ValueError(
            f"src_ids: expected one environment, or {len(targets)}, one per target, "
            f"got {len(sources)}"
        )
    return sources, targets


def _is_index(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def restore_buffers(vec_env: VecEnv, ids: Sequence[int], results: Sequence[LastResult]) -> None:
    """Replace the ``buf_*`` arrays by copies with the results of the loaded environments."""
    rewards, dones = vec_env.buf_rews.copy(), vec_env.buf_dones.copy()
    truncations, infos = vec_env.buf_truncations.copy(), list(vec_env.buf_infos)
    for i, result in zip(ids, results, strict=True):
        rewards[i], dones[i], truncations[i] = result.reward, result.terminated, result.truncated
        infos[i] = result.info.copy()
    vec_env.buf_rews, vec_env.buf_dones = rewards, dones
    vec_env.buf_truncations, vec_env.buf_infos = truncations, infos
