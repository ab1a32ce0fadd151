"""Outcomes of a group's commands: all results that are not in the step arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

from xuance_envs.engine.data.info_columns import ColumnLayout
from xuance_envs.engine.data.info_writer import BulkInfoWriter, InfoWriter

STATE_COMMANDS = frozenset(("run_and_save", "resume")).union(
    ("save_states", "copy_saved_states", "verify_saving"),
    ("prepare_states", "load_states", "discard_states"),
    ("store_states", "prepare_stored", "copy_stored", "import_stored", "drop_stored"),
)
# Commands of a group's host, subject to the start timeout instead of the step timeout.
STARTUP_COMMANDS = frozenset({"build", "attach", "rebuild", "ready"})

Reset = tuple[int, Any, Any]  # place in the group, seed or None, and options or None


class ActingState(NamedTuple):
    """State that the agent acts on: observation leaves, info, and the pending reset, if any."""

    leaves: Sequence[Any]
    info: dict[Any, Any]
    pending: bool = False
    arguments: Mapping[str, Any] = MappingProxyType({})


class Autoreset(Enum):
    """Autoreset mode: the time at which an environment is reset after its episode's end."""

    SAME_STEP = "same step"  # within the last step
    NEXT_STEP = "next step"  # in the next step, which ignores its action
    DISABLED = "disabled"  # never; the user resets it


@dataclass
class StepExtras:
    """Copies or pickles of one command's results, as far as the group's arrays cannot hold them."""

    layout: ColumnLayout | None = None
    reset_layout: ColumnLayout | None = None
    masks: bool = False
    infos: dict[int, Any] = field(default_factory=dict)
    reset_infos: dict[int, Any] = field(default_factory=dict)
    observations: list[list[Any]] = field(default_factory=list)
    reset_observations: list[list[Any]] = field(default_factory=list)


NO_EXTRAS = StepExtras()


@dataclass(frozen=True)
class Outcome:
    """Result of a command, apart from the arrays."""

    ended: bool = False
    rest: StepExtras | None = None


@dataclass(frozen=True)
class ResultWithStates:
    result: Any
    states: Any
    refusal: str  # reason if there are no states
    cost: float  # seconds for saving them
    verified: tuple[str, str] = ("", "")  # difference in a replay; obstacle to the replay


OK = Outcome()
EPISODE_ENDED = Outcome(ended=True)


@dataclass(eq=False)
class OutcomeBuilder:
    """Builder of outcomes; it reports each new column layout only once."""

    _infos: InfoWriter | BulkInfoWriter
    _reset_infos: InfoWriter | BulkInfoWriter
    _watched: Collection[int] = ()
    _observations: Sequence[Sequence[Any]] = ()
    _reset_observations: Sequence[Sequence[Any]] = ()
    _version_at_begin: int = 0
    _reported_version: int = 0
    is_ok: bool = False  # False if object observations or new columns must be reported

    def begin(self) -> None:
        self._infos.rest, self._reset_infos.rest = {}, {}
        self._version_at_begin = self._reported_version
        self.is_ok = not self._observations and self._version == self._reported_version

    def resend_columns(self) -> None:
        """Report all columns again with the next command."""
        self._reported_version, self.is_ok = -1, False

    @property
    def _version(self) -> int:
        return self._infos.table.version + self._reset_infos.table.version

    def outcome(self, ended: bool) -> Outcome:
        """Return the command's outcome; repeated calls return the same outcome."""
        infos, resets, version = self._infos, self._reset_infos, self._version
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
        # Set last: after an interrupt, the outcome still reports the columns.
        self._reported_version = version
        return outcome
