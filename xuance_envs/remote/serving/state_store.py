from __future__ import annotations

from collections.abc import Iterable, Sequence

from xuance_envs.remote.failures import RefusedError
from xuance_envs.remote.settings import Limits
from xuance_envs.state.env_states import EnvStates


class StateStore:
    """States of single environments by number, within the session's limits."""

    def __init__(self, limits: Limits) -> None:
        self._max_states = limits.states_per_session
        self._max_bytes = limits.state_bytes_per_session
        self._states: dict[int, EnvStates] = {}
        self._last_number = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._states)

    def check(self, more: int, nbytes: int = 0) -> None:
        have, most = len(self), self._max_states
        if have + more > most:
            raise RefusedError(
                429,
                "states",
                f"this server allows {most} environment states per session: {have} exist and "
                f"{more} more were requested",
            )
        if self.nbytes + nbytes > self._max_bytes:
            raise RefusedError(
                429,
                "states",
                f"this server allows {self._max_bytes} bytes of states per session: {self.nbytes} "
                f"are used and at least {nbytes} more were requested",
            )

    def keep(self, states: EnvStates) -> list[int]:
        """Store states and return their numbers."""
        first = self._last_number + 1
        self._last_number += len(states)
        for number, state in enumerate(states, first):
            self._states[number] = state
        self.nbytes += states.nbytes
        return list(range(first, self._last_number + 1))

    def find(self, numbers: Sequence[int]) -> EnvStates:
        if absent := [number for number in numbers if number not in self._states]:
            raise RefusedError(
                404, "states", f"this session has no state {absent[0]}: it may have been dropped"
            )
        return EnvStates.joined([self._states[number] for number in numbers])

    def drop(self, numbers: Iterable[int]) -> int:
        """Drop states and return their number; missing ones are ignored."""
        dropped = [self._states.pop(number) for number in set(numbers) & self._states.keys()]
        self.nbytes -= sum(state.nbytes for state in dropped)
        return len(dropped)

    def clear(self) -> None:
        self.drop(list(self._states))
