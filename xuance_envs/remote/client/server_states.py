"""Client side of environment states that a server keeps: clients hold handles on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from xuance_envs._override import override
from xuance_envs.engine.data.step_infos import StepInfos
from xuance_envs.engine.ledger import values_of
from xuance_envs.engine.saving import Saver
from xuance_envs.errors import StateError
from xuance_envs.state.env_states import EnvStates
from xuance_envs.state.saved_env import SavedEnv

MAX_DROPPED = 10_000  # states per drop request


class _StateHandle:
    """Handle on a state; garbage collection releases the state on the server."""

    __slots__ = ("number", "released", "size")

    def __init__(self, number: int, size: int, released: deque[int]) -> None:
        self.number = number
        self.size = size
        self.released = released

    def __del__(self) -> None:
        self.released.append(self.number)


@dataclass(frozen=True)
class RemoteSavedEnv(SavedEnv):
    handle: _StateHandle | None = None

    elsewhere: ClassVar[str] = (
        "states saved on a server cannot leave the server: load them into environments of the same "
        "session, before it is closed"
    )

    @property
    def nbytes(self) -> int:
        """Bytes on the server and in this process together."""
        return super().nbytes + (0 if self.handle is None else self.handle.size)


class RemoteStates:
    def __init__(self) -> None:
        # Handles append to it when they are garbage-collected, possibly at any moment.
        self._released: deque[int] = deque()

    @property
    def released(self) -> list[int]:
        """Numbers of up to ``MAX_DROPPED`` stored states to which no handle refers."""
        return list(islice(self._released, MAX_DROPPED)) if self._released else []

    def dropped(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with suppress(ValueError):  # removed by another thread
                self._released.remove(number)

    def parse_handles(self, answer: Any) -> list[RemoteSavedEnv]:
        return [
            RemoteSavedEnv(b"", b"", handle=_StateHandle(int(number), int(size), self._released))
            for number, size in zip(answer["states"], answer["bytes"], strict=True)
        ]

    def numbers(self, state: EnvStates) -> list[int]:
        handles = [one.handle if isinstance(one, RemoteSavedEnv) else None for one in state.envs]
        numbers = [each.number for each in handles if each and each.released is self._released]
        if len(numbers) < len(handles):
            reason = (
                "a server loads only states that it keeps for the same session; states from the "
                "client or from another session cannot be loaded"
            )
            raise StateError(-1, "load_state", reason)
        return numbers


class ServerSaver(Saver):
    """Saver whose states stay on the server."""

    def _pack(self, command: str, ids: Sequence[int], *arguments: Any) -> dict[int, Any]:
        (driver,) = self._ledger.drivers
        return {0: driver.pack(command, ids, *arguments)}

    @override
    def verify(self, ids: Sequence[int]) -> None:
        """Raise a StateError, because a server creates no environments for verification."""
        remedy = "call check_saving where the environments can be created"
        reason = f"verify=True is not supported for environments on a server: {remedy}"
        raise StateError(-1, "save_state", reason)

    @override
    def save(self, ids: Sequence[int]) -> EnvStates:
        return EnvStates(self._ledger.command(self._pack("save_states", ids), values_of), {})

    @override
    def load(self, state: EnvStates, ids: Sequence[int], *, of_all: bool = False) -> StepInfos:
        return self.run_load(self._pack("load_states", ids, state), ids, of_all=of_all)

    @override
    def clone(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        fork_rng: bool,
        *,
        of_all: bool = False,
    ) -> StepInfos:
        packed = self._pack("clone_states", targets, sources, fork_rng)
        return self.run_load(packed, targets, of_all=of_all)
