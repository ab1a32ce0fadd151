"""The way to where a group of environments is: states that were saved, and the actions since."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.errors import name_envs

__all__ = ["STATE_CHANGING_COMMANDS", "ReplayLog"]

MAX_OVERHEAD = 0.0025
"""What saving may cost, as a share of stepping: keeping the actions costs about as much."""

MAX_STEPS = 2048
MAX_BYTES = 1 << 26
MAX_SECONDS = 60.0
"""So many steps, about so many bytes of actions, and steps of about so much time are kept at most:
who repeats them has two minutes to start, unless told otherwise."""

_SPARE_STEPS = 16
"""Steps more that there is room for: of those that states are saved after, which a loss leaves to
be repeated."""

STATE_CHANGING_COMMANDS = ("reset", "call", "set_attr", "apply", "load_states")
"""The commands after which a trail begins anew."""


class ReplayLog:
    """States of a group's environments, and the actions of each step since.

    Actions without a fixed shape are not kept.
    """

    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        parts = arrays.actions.parts
        self.enabled = not arrays.actions.objects
        self.states: Any = None
        self.count = 0
        self.last_tag = self.next_save = -1
        self.interval_log2 = 0
        self._first_tag, self._requests_per_step = 0, 1.0
        size = sum(part.nbytes for part in parts) if self.enabled else 0
        self._max_steps = max(1, min(MAX_STEPS, MAX_BYTES // max(size, 1)))
        # Of each leaf: those of the steps, one after the other; that of the next one; its size.
        self._parts = parts if self.enabled else []
        room = self._max_steps + _SPARE_STEPS
        self._action_buffers = [
            (memoryview(np.empty(room * part.nbytes, np.uint8)), _bytes_of(part), part.nbytes)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
            for part in self._parts
        ]
        self._costs: list[float] = []
        self._has_nan = False

    def reset(self, states: Any, tag: int = 0) -> None:
        """Begins anew with states; None for later."""
        self.states, self.count, self.last_tag, self._first_tag = states, 0, -1, tag
        self.next_save = (
            -1 if states is None else ((tag >> self.interval_log2) + 1) << self.interval_log2
        )

    @property
    def has_capacity(self) -> bool:
        """Whether one step more can be kept."""
        return self.count < self._max_steps + _SPARE_STEPS

    def record_step(self, tag: int) -> None:
        """Keeps the actions that a step is asked for with; again, it does so in the same place."""
        at = self.count
        if tag == self.last_tag:  # an interrupt came before it was asked
            at -= 1
        # No call in between, so that an interrupt finds both or none.
        self.last_tag, self.count = tag, at + 1
        for kept, part, size in self._action_buffers:
            kept[at * size : (at + 1) * size] = part
        if at + 1 == self._max_steps:
            self.next_save = -1

    def steps(self, before: int = -1) -> list[list[NDArray[Any]]]:
        """The actions of each step, as leaves."""
        count = self.count - (self.last_tag == before)
        found: list[list[NDArray[Any]]] = []
        for at in range(count):
            found.append([])
            for part, (kept, _, size) in zip(self._parts, self._action_buffers, strict=True):
                leaf = np.ndarray(part.shape, part.dtype, kept, at * size)
                found[at].append(leaf.copy())
        return found

    def current_actions(self) -> list[NDArray[Any]]:
        """The actions that are in the arrays, as leaves."""
        return [part.copy() for part in self._parts]

    def update_interval(self, cost: float, duration: float, tag: int) -> None:
        """Chooses how often states are saved, before it begins anew with those that were just."""
        self._costs = [*self._costs[-1:], cost]
        if not duration > 0:
            return
        most = max(1, min(self._max_steps, MAX_SECONDS / duration))
        wanted = min(max(min(self._costs) / (MAX_OVERHEAD * duration), 1), most)
        if self.states is not None:  # other groups have had some of the requests since
            steps = self.count + (self.last_tag != tag)
            self._requests_per_step = max((tag - self._first_tag) / steps, 1)
        a_step = self._requests_per_step
        self.interval_log2 = min(
            math.ceil(math.log2(wanted * a_step)), int(math.log2(most * a_step))
        )

    def find_new_nan(self, first: int) -> str | None:
        """Says which environments have a NaN in what they gave, the first time there is one."""
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


def _bytes_of(part: NDArray[Any]) -> memoryview:
    """The memory of an array, which is quicker to copy."""
    return memoryview(part.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # as above
