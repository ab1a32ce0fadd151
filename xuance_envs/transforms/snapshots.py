"""State of transforms, saved together with the environments' states."""

from __future__ import annotations

from typing import Any, NamedTuple

from xuance_envs.errors import StateError, StateMismatchError, counted
from xuance_envs.state.env_states import EnvStates
from xuance_envs.vector_envs.arguments import checked_states


class TransformSnapshot(NamedTuple):
    """State of one transform for one environment."""

    reward: float | list[float]
    exact_reward: float | list[float] | None
    info: dict[Any, Any]
    env_state: Any


def saved_by_transform(state: EnvStates, key: str) -> tuple[list[TransformSnapshot], Any]:
    """Return a transform's snapshots and learned data from saved states."""
    checked_states(state)
    try:
        kept = state.extra(key)
        learned = state.shared_extra(key)
        if kept is not None:
            return [TransformSnapshot(*one) for one in kept], learned
    except TypeError as fault:
        raise StateError(-1, "load_state", str(fault)) from None
    position, _, name = key.partition(" ")
    inner = counted(int(position), "transform")
    raise StateMismatchError(
        -1,
        "load_state",
        f"expected states with data of {name} around {inner}, got none: use the same transforms in "
        "the same order as when saving",
        what="transforms",
        here=name,
    )
