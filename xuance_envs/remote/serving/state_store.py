"""The states of environments that a session keeps at the server, within its limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xuance_envs.remote.failures import RefusedError
from xuance_envs.remote.settings import Limits
from xuance_envs.state.env_states import EnvStates

__all__ = ["StateStore"]


class StateStore:
    """States by number, each of one environment."""

    def __init__(self, limits: Limits) -> None:
        self._max_states = limits.states_per_session
        self._max_bytes = limits.state_bytes_per_session
        self._states: dict[int, EnvStates] = {}
        self._last = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._states)

    def check(self, more: int, nbytes: int = 0) -> None:
        """Raises where there would be too many."""
        have, most = len(self), self._max_states
        if have + more > most:
            raise RefusedError(
                429,
                "states",
                f"this server keeps {most} states of environments in a session: there are {have}, "
                f"and {more} more were asked for",
            )
        if self.nbytes + nbytes > self._max_bytes:
            raise RefusedError(
                429,
                "states",
                f"this server keeps {self._max_bytes} bytes of states in a session: there are "
                f"{self.nbytes}, and at least {nbytes} more were asked for",
            )

    def keep(self, states: EnvStates) -> list[int]:
        """Keeps states; their numbers."""
        first = self._last + 1
        self._last += len(states)
        for number, state in enumerate(states, first):
            self._states[number] = state
        self.nbytes += states.nbytes
        return list(range(first, self._last + 1))

    def find(self, numbers: Sequence[int]) -> EnvStates:
        """The states of some numbers, in their order."""
        if absent := [number for number in numbers if number not in self._states]:
            raise RefusedError(
                404, "states", f"this session has no state {absent[0]}: it may have been dropped"
            )
        return EnvStates.joined([self._states[number] for number in numbers])

    def drop(self, numbers: Iterable[int]) -> int:
        """Lets go of some, as far as they are there; how many there were."""
        dropped = [self._states.pop(number) for number in set(numbers) & self._states.keys()]
        self.nbytes -= sum(state.nbytes for state in dropped)
        return len(dropped)

    def clear(self) -> None:
        """Lets go of all."""
        self.drop(list(self._states))
