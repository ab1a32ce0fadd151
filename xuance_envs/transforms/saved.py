"""What transforms remember of environments, kept with these environments' states."""

from __future__ import annotations

from typing import Any, NamedTuple

from xuance_envs.errors import StateError, StateMismatchError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.faults import FaultError
from xuance_envs.vector_envs.arguments import checked_states

__all__ = ["Saved", "saved_with"]


class Saved(NamedTuple):
    """What one transform remembers of one environment.

    Attributes:
        reward: the last one, as it was returned.
        exact_reward: the same before it was rounded; None where rewards are not changed.
        info: what ``buf_infos`` has of it.
        share: what else there is.
    """

    reward: float
    exact_reward: float | None
    info: dict[Any, Any]
    share: Any


def saved_with(state: EnvStates, key: str) -> tuple[list[Saved], Any]:
    """What a transform kept with states: of each environment, and what it had learned.

    Args:
        state: the states.
        key: under which it is kept.

    Raises:
        TypeError: they are no states.
        StateMismatchError: there is nothing of such a transform.
        StateError: what is kept cannot be read.
    """
    checked_states(state)
    try:
        kept = state.extra(key)
        learned = state.shared_extra(key)
        if kept is not None:
            return [Saved(*one) for one in kept], learned
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
