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
    "DONE",
    "ENDED",
    "OF_STATES",
    "Autoreset",
    "Outcome",
    "OutcomeMaker",
    "Reset",
    "Rest",
    "Showing",
    "WithStates",
]

OF_STATES = frozenset(
    {
        "save_states",
        "hand_over",
        "prepare_states",
        "load_states",
        "forget_states",
        "with_states",
        "resume",
    }
)
"""The commands about the states of environments."""

Reset = tuple[int, Any, Any]
"""One environment to reset: its place in the group, the seed and the options, or None."""


class Showing(NamedTuple):
    """What an environment's next action is chosen from.

    Attributes:
        leaves: its observation's, flattened.
        info: its last info, which belongs to that observation.
        pending: whether its episode has ended and it has not been reset.
        arguments: what its pending reset is to be given.
    """

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
class Rest:
    """What one command left besides the group's arrays; everything in it is frozen.

    Attributes:
        layout: the columns of infos, if they have changed.
        reset_layout: the same for the infos of the resets.
        masks: where there are layouts, whether environments are asked for masks of actions.
        infos: by place in the group, what does not fit the columns of an info.
        reset_infos: the same for the infos of the resets.
        observations: the lists of observations' leaves that are held as objects.
        reset_observations: the same for the first observations of the next episodes.
    """

    layout: ColumnLayout | None = None
    reset_layout: ColumnLayout | None = None
    masks: bool = False
    infos: dict[int, Any] = field(default_factory=dict)
    reset_infos: dict[int, Any] = field(default_factory=dict)
    observations: list[list[Any]] = field(default_factory=list)
    reset_observations: list[list[Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What came of a command besides what is in the arrays.

    Attributes:
        ended: whether an episode ended, and the next one began in the same step.
        rest: what does not fit the arrays, None if everything does.
    """

    ended: bool = False
    rest: Rest | None = None


@dataclass(frozen=True)
class WithStates:
    """What came of a command, and the states that it left.

    Attributes:
        result: what came of it.
        states: of all environments of the group, as they are saved.
        cost: seconds that saving took.
    """

    result: Any
    states: Any
    cost: float


DONE = Outcome()
ENDED = Outcome(ended=True)


class _Writer(Protocol):
    """What an outcome is to tell of a writer of infos."""

    table: ColumnTable
    rest: dict[int, Any]


class OutcomeMaker:
    """Makes outcomes of what writers of infos have left, and tells of new columns once.

    Args:
        infos: writes the infos.
        reset_infos: writes those of the resets.
        watched: the environments that are asked for masks of actions.
        observations: the lists of observations' leaves that are held as objects.
        reset_observations: the same for the first observations of the next episodes.
    """

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
        self._known = self._told = 0

    def begin(self) -> None:
        """Begins a command: what the last one left has been told."""
        self._infos.rest, self._reset_infos.rest, self._known = {}, {}, self._told

    def forget(self) -> None:
        """Tells of all columns again with the next command, to whom did not hear of them."""
        self._told = -1

    def outcome(self, ended: bool) -> Outcome:
        """What came of the command; the same again, until the next one begins.

        Args:
            ended: whether an episode ended, and the next one began in the same step.
        """
        infos, resets = self._infos, self._reset_infos
        changes = infos.table.changes + resets.table.changes
        if changes == self._known and not (infos.rest or resets.rest or self._observations):
            return ENDED if ended else DONE
        rest = Rest(infos=infos.rest, reset_infos=resets.rest)
        rest.observations = [list(values) for values in self._observations]
        if ended:
            rest.reset_observations = [list(values) for values in self._reset_observations]
        if changes != self._known:
            rest.layout, rest.reset_layout = infos.table.layout, resets.table.layout
            rest.masks = bool(self._watched)
        outcome = Outcome(ended, rest)
        self._told = changes  # no call comes after, so no interrupt before it has been told
        return outcome
