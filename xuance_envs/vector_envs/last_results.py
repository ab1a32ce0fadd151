"""What the caller of a vector environment last saw of each environment, kept with its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.errors import StateError, StateMismatchError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.vector_envs.arguments import checked_env_ids, checked_states
from xuance_envs.vector_envs.vector_env import VecEnv

__all__ = [
    "LAST_RESULT_KEY",
    "LastResult",
    "checked_clones",
    "checked_last_results",
    "restore_buffers",
]

_INTEGERS = int, np.integer

LAST_RESULT_KEY = "seen"
"""The name under which it is kept."""


class LastResult(NamedTuple):
    """What was last seen of one environment."""

    observation: list[Any]
    exact_reward: float
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[Any, Any]


def checked_last_results(state: EnvStates, count: int, rows: SpaceRows) -> list[LastResult] | None:
    """What is kept with states; None where they are another interface's."""
    checked_states(state, count)
    try:
        given = state.extra(LAST_RESULT_KEY)
        if given is None:
            return None
        seen = [LastResult(*one) for one in given]
    except (FaultError, TypeError) as fault:
        raise StateError(-1, "load_state", str(fault)) from None
    for one in seen:
        for part, leaf in zip(rows.parts, one.observation, strict=False):
            if isinstance(part, np.ndarray) and np.shape(leaf) != part.shape[1:]:
                shapes = np.shape(leaf), part.shape[1:]
                raise StateMismatchError(
                    -1,
                    "load_state",
                    f"expected observations of shape {shapes[1]}, got {shapes[0]}",
                    "",
                    "observation space",
                    *shapes,
                )
    return seen


def checked_clones(
    src_ids: int | Sequence[int], dst_ids: int | Sequence[int], num_envs: int
) -> tuple[list[int], list[int]]:
    """The source and the target of each clone."""
    targets = checked_env_ids([dst_ids] if _is_index(dst_ids) else dst_ids, num_envs)  # type: ignore[arg-type,list-item]
    try:
        given = [src_ids] if _is_index(src_ids) else list(src_ids)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(
            f"src_ids: expected an int or a sequence of ints, got {src_ids!r}"
        ) from None
    sources = [checked_env_ids([one], num_envs)[0] for one in given]  # type: ignore[list-item]
    if len(sources) == 1:
        sources *= len(targets)
    if len(sources) != len(targets):
        raise ValueError(
            f"src_ids: expected one environment, or {len(targets)}, one per target, "
            f"got {len(sources)}"
        )
    return sources, targets


def _is_index(value: Any) -> bool:
    return isinstance(value, _INTEGERS) and not isinstance(value, bool)


def restore_buffers(vec_env: VecEnv, ids: Sequence[int], seen: Sequence[LastResult]) -> None:
    """Makes a vector environment's ``buf_*`` what they were, in arrays of their own."""
    rewards, dones = vec_env.buf_rews.copy(), vec_env.buf_dones.copy()
    truncations, infos = vec_env.buf_truncations.copy(), list(vec_env.buf_infos)
    for i, one in zip(ids, seen, strict=True):
        rewards[i], dones[i], truncations[i] = one.reward, one.terminated, one.truncated
        infos[i] = one.info.copy()
    vec_env.buf_rews, vec_env.buf_dones = rewards, dones
    vec_env.buf_truncations, vec_env.buf_infos = truncations, infos
