"""What groups of environments are asked, and what comes of it besides what lies in the arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from xuance_envs.engine.data.column_table import ColumnTable
from xuance_envs.engine.data.info_columns import ColumnLayout

__all__ = [
    "EPISODE_ENDED",
    "OK",
    "STATE_COMMANDS",
    "ActingState",
    "Autoreset",
    "Outcome",
    "OutcomeBuilder",
    "Reset",
    "ResultWithStates",
    "StepExtras",
]

STATE_COMMANDS = frozenset(
    {
        "save_states",
        "copy_saved_states",
        "prepare_states",
        "load_states",
        "discard_states",
        "run_and_save",
        "resume",
    }
)
"""The commands about the states of environments."""

Reset = tuple[int, Any, Any]
"""One environment to reset: its place in the group, the seed and the options, or None."""


class ActingState(NamedTuple):
    """What an environment's next action is chosen from."""

    leaves: Sequence[Any]
    info: dict[Any, Any]
    pending: bool = False
    arguments: Mapping[str, Any] = MappingProxyType({})


class Autoreset(Enum):
    """When an environment whose episode ended is reset.

    ``SAME_STEP``: inside the step that ended the episode; what ``VecEnv`` promises.
    ``NEXT_STEP``: the next step resets it instead of stepping it, and ignores its action.
    ``DISABLED``: only when the caller does it.
    """

    SAME_STEP = "same step"
    NEXT_STEP = "next step"
    DISABLED = "disabled"


@dataclass
class StepExtras:
    """What one command left besides the group's arrays; everything in it is frozen."""

    layout: ColumnLayout | None = None
    reset_layout: ColumnLayout | None = None
    masks: bool = False
    infos: dict[int, Any] = field(default_factory=dict)
    reset_infos: dict[int, Any] = field(default_factory=dict)
    observations: list[list[Any]] = field(default_factory=list)
    reset_observations: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What came of a command besides what is in the arrays."""

    ended: bool = False
    rest: StepExtras | None = None


@dataclass(frozen=True)
class ResultWithStates:
    """What came of a command, and the states that it left."""

    result: Any
    states: Any
    cost: float


OK = Outcome()
EPISODE_ENDED = Outcome(ended=True)


class _Writer(Protocol):
    """What an outcome is to tell of a writer of infos."""

    table: ColumnTable
    rest: dict[int, Any]


class OutcomeBuilder:
    """Makes outcomes of what writers of infos have left, and tells of new columns once."""

    def __init__(
        self,
        infos: _Writer,
        reset_infos: _Writer,
        watched: Collection[int] = (),
        observations: Sequence[Sequence[Any]] = (),
        reset_observations: Sequence[Sequence[Any]] = (),
    ) -> None:
        self._infos = infos
        self._reset_infos = reset_infos
        self._watched = watched
        self._observations = observations
        self._reset_observations = reset_observations
        self._version_at_begin = self._reported_version = 0

    def begin(self) -> None:
        """Begins a command: what the last one left has been told."""
        self._infos.rest, self._reset_infos.rest, self._version_at_begin = (
            {},
            {},
            self._reported_version,
        )

    def resend_columns(self) -> None:
        """Tells of all columns again with the next command, to whom did not hear of them."""
        self._reported_version = -1

    def outcome(self, ended: bool) -> Outcome:
        """What came of the command; the same again, until the next one begins."""
        infos, resets = self._infos, self._reset_infos
        version = infos.table.version + resets.table.version
        if version == self._version_at_begin and not (
            infos.rest or resets.rest or self._observations
        ):
            return EPISODE_ENDED if ended else OK
        rest = StepExtras(infos=infos.rest, reset_infos=resets.rest)
        rest.observations = [list(values) for values in self._observations]
        if ended:
            rest.reset_observations = [list(values) for values in self._reset_observations]
        if version != self._version_at_begin:
            rest.layout, rest.reset_layout = infos.table.layout, resets.table.layout
            rest.masks = bool(self._watched)
        outcome = Outcome(ended, rest)
        self._reported_version = (
            version  # no call comes after, so no interrupt before it has been told
        )
        return outcome
