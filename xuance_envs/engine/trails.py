"""The way to where a group of environments is: states that were saved, and the actions since."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.errors import name_envs

__all__ = ["CHANGING", "Trail"]

SHARE = 0.01
"""What saving may cost, as a share of stepping."""

MOST_STEPS = 2000
MOST_BYTES = 1 << 26
"""So many steps, and about so many bytes of actions, are kept at most."""

CHANGING = ("reset", "call", "set_attr", "apply", "load_states")
"""The commands after which a trail begins anew."""


class Trail:
    """States of a group's environments, and the actions of each step since.

    Actions without a fixed shape are not kept.

    Args:
        arrays: the group's slice of the step's arrays.

    Attributes:
        states: those that were saved last; None where there are none.
        steps (dict): by the number of its request, the actions of each step since.
        is_kept (bool): whether the environments can be saved, as far as is known.
    """

    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        self.is_kept = not arrays.actions.objects
        self.states: Any = None
        self.steps: dict[int, list[Any]] = {}
        self._period = 1
        self._cost, self._duration = 0.0, 0.0
        self._has_nan = False

    @property
    def is_due(self) -> bool:
        """Whether states are to be saved with the next step."""
        return self.is_kept and (self.states is None or len(self.steps) + 1 >= self._period)

    def begin(self, states: Any) -> None:
        """Begins anew with states; None for later."""
        self.states, self.steps = states, {}

    def before(self, tag: int) -> list[list[Any]]:
        """The actions of all steps but the one of this number."""
        return [actions for number, actions in self.steps.items() if number != tag]

    def actions(self) -> list[Any]:
        """A copy of those of the step that is asked for."""
        return [part.copy() for part in self._arrays.actions.parts]

    def plan(self, cost: float, duration: float) -> None:
        """Chooses after how many steps states are saved again.

        Args:
            cost: seconds it took to save them.
            duration: seconds a step takes.
        """
        weight = 0.5 if self._duration else 1.0
        self._cost += weight * (cost - self._cost)
        self._duration += weight * (duration - self._duration)
        wanted = math.ceil(self._cost / (SHARE * max(self._duration, 1e-9)))
        size = sum(part.nbytes for part in self._arrays.actions.parts)
        self._period = max(1, min(wanted, MOST_STEPS, MOST_BYTES // max(size, 1)))

    def new_nan(self, first: int) -> str | None:
        """Says which environments have a NaN in what they gave, the first time there is one.

        Args:
            first: index of the group's first environment.
        """
        if self._has_nan:
            return None
        numbers = [self._arrays.rewards, *self._arrays.observations.parts]
        numbers = [p for p in numbers if isinstance(p, np.ndarray) and p.dtype.kind == "f"]
        if not any([np.isnan(part.max(initial=0)) for part in numbers]):
            return None
        self._has_nan = True
        places = range(len(self._arrays.rewards))
        found = [first + i for i in places if any(np.isnan(part[i]).any() for part in numbers)]
        return f"a NaN in the observation or the reward of {name_envs(found)}"
