"""What transforms remember of environments, kept with these environments' states."""

from __future__ import annotations

from typing import Any, NamedTuple

from xuance_envs.errors import StateError, StateMismatchError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.vector_envs.arguments import checked_states

__all__ = ["TransformSnapshot", "saved_by_transform"]


class TransformSnapshot(NamedTuple):
    """What one transform remembers of one environment."""

    reward: float
    exact_reward: float | None
    info: dict[Any, Any]
    env_state: Any


def saved_by_transform(state: EnvStates, key: str) -> tuple[list[TransformSnapshot], Any]:
    """What a transform kept with states: of each environment, and what it had learned."""
    checked_states(state)
    try:
        kept = state.extra(key)
        learned = state.shared_extra(key)
        if kept is not None:
            return [TransformSnapshot(*one) for one in kept], learned
    except (FaultError, TypeError) as fault:
        raise StateError(-1, "load_state", str(fault)) from None
    place, _, name = key.partition(" ")
    raise StateMismatchError(
        -1,
        "load_state",
        f"expected states that were saved through {name}, around {place} other transforms, got "
        "states that were not: wrap in the same transforms, in the same order",
        what="transforms",
        here=name,
    )
