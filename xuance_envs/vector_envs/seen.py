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

__all__ = ["SEEN", "Seen", "checked_clones", "checked_seen", "put_in"]

_INTEGERS = int, np.integer

SEEN = "seen"
"""The name under which it is kept."""


class Seen(NamedTuple):
    """What was last seen of one environment.

    Attributes:
        observation: its last observation's leaves.
        exact_reward: the last reward, as the environment gave it.
        reward: the same, as it was returned.
        terminated: whether its episode ended so.
        truncated: whether its episode ended so.
        info: what ``buf_infos`` has of it.
    """

    observation: list[Any]
    exact_reward: float
    reward: Any
    terminated: bool
    truncated: bool
    info: dict[Any, Any]


def checked_seen(state: EnvStates, count: int, rows: SpaceRows) -> list[Seen] | None:
    """What is kept with states; None where they are another interface's.

    Args:
        state: the states.
        count: how many environments they are for.
        rows: of observations.

    Raises:
        TypeError: they are no states.
        ValueError: there is another number of them.
        StateError: what is kept with them cannot be read.
        StateMismatchError: they are of environments with other observations.
    """
    checked_states(state, count)
    try:
        given = state.extra(SEEN)
        if given is None:
            return None
        seen = [Seen(*one) for one in given]
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
    """The source and the target of each clone.

    Raises:
        ValueError: an environment does not exist, a target is there twice, or there are neither
            one source nor as many as targets.
    """
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


def put_in(vec_env: VecEnv, ids: Sequence[int], seen: Sequence[Seen]) -> None:
    """Makes a vector environment's ``buf_*`` what they were, in arrays of their own."""
    rewards, dones = vec_env.buf_rews.copy(), vec_env.buf_dones.copy()
    truncations, infos = vec_env.buf_truncations.copy(), list(vec_env.buf_infos)
    for i, one in zip(ids, seen, strict=True):
        rewards[i], dones[i], truncations[i] = one.reward, one.terminated, one.truncated
        infos[i] = one.info.copy()
    vec_env.buf_rews, vec_env.buf_dones = rewards, dones
    vec_env.buf_truncations, vec_env.buf_infos = truncations, infos
