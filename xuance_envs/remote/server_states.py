"""States that a server keeps for its client, who has handles on them.

A state never leaves the server, and none is taken from a client: what an environment was, and what
is read into one, stays with whoever runs them. What the client's side keeps with a state, such as
what it last saw of the environment, is kept with the handle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from xuance_envs.engine import saving
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.groups import Groups
from xuance_envs.errors import StateError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.saved_env import SavedEnv

__all__ = ["RemoteSavedEnv", "RemoteStates", "clone", "load", "save"]

MAX_DROPPED = 10_000
"""States that one request lets go of."""


class _StateHandle:
    """One state at the server, which lets go of it once nobody holds this any more."""

    __slots__ = ("number", "released", "size")

    def __init__(self, number: int, size: int, released: deque[int]) -> None:
        self.number = number
        self.size = size
        self.released = released

    def __del__(self) -> None:
        self.released.append(self.number)


@dataclass(frozen=True)
class RemoteSavedEnv(SavedEnv):
    """One environment's state, which a server keeps."""

    handle: _StateHandle | None = None

    elsewhere: ClassVar[str] = (
        "states of environments on a server do not leave it: they can be loaded into environments "
        "of the session that saved them, as long as it is open"
    )

    @property
    def nbytes(self) -> int:
        """Bytes it takes, at the server and here."""
        return super().nbytes + (0 if self.handle is None else self.handle.size)


class RemoteStates:
    """The states that a server keeps for one session."""

    def __init__(self) -> None:
        # Added to by whatever lets go of a handle, the garbage collector at any moment included.
        self._released: deque[int] = deque()

    @property
    def released(self) -> list[int]:
        """Some of those that nobody holds any more, and that the server has not been told of."""
        return list(islice(self._released, MAX_DROPPED)) if self._released else []

    def dropped(self, numbers: Sequence[int]) -> None:
        """Takes note of what the server has been told of."""
        for number in numbers:
            with suppress(ValueError):  # by another thread before
                self._released.remove(number)

    def parse_handles(self, answer: Any) -> list[RemoteSavedEnv]:
        """Handles on the states that an answer tells of."""
        return [
            RemoteSavedEnv(b"", b"", handle=_StateHandle(int(number), int(size), self._released))
            for number, size in zip(answer["states"], answer["bytes"], strict=True)
        ]

    def numbers(self, state: EnvStates) -> list[int]:
        """What the server calls some states."""
        found = []
        for one in state.envs:
            handle = one.handle if isinstance(one, RemoteSavedEnv) else None
            if handle is None or handle.released is not self._released:
                raise StateError(
                    -1,
                    "load_state",
                    "environments on a server are put into states only that the server keeps for "
                    "their own session: it takes none from a client, and no other session's",
                )
            found.append(handle.number)
        return found


def save(groups: Groups, ids: Sequence[int]) -> EnvStates:
    """As :func:`xuance_envs.engine.saving.save`; what it returns are handles."""
    return EnvStates(groups.run_command("save_states", ids, lambda _: ()), {})


def load(groups: Groups, state: EnvStates, ids: Sequence[int]) -> StepInfos:
    """As :func:`xuance_envs.engine.saving.load`."""
    (driver,) = groups.drivers
    return saving.load_packed(groups, {0: driver.pack("load_states", ids, state)}, ids)


def clone(
    groups: Groups, sources: Sequence[int], targets: Sequence[int], fork_rng: bool
) -> StepInfos:
    """As :func:`xuance_envs.engine.saving.clone`."""
    (driver,) = groups.drivers
    packed = driver.pack("clone_states", targets, sources, fork_rng)
    return saving.load_packed(groups, {0: packed}, targets)
