"""The way to where a group of environments is: states that were saved, and the actions since."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.errors import name_envs

__all__ = ["CHANGING", "Trail"]

SHARE = 0.0025
"""What saving may cost, as a share of stepping: keeping the actions costs about as much."""

MOST_STEPS = 2048
MOST_BYTES = 1 << 26
MOST_SECONDS = 60.0
"""So many steps, about so many bytes of actions, and steps of about so much time are kept at most:
who repeats them has two minutes to start, unless told otherwise."""

_SPARE = 16
"""Steps more that there is room for: of those that states are saved after, which a loss leaves to
be repeated."""

CHANGING = ("reset", "call", "set_attr", "apply", "load_states")
"""The commands after which a trail begins anew."""


class Trail:
    """States of a group's environments, and the actions of each step since.

    Actions without a fixed shape are not kept.

    Args:
        arrays: the group's slice of the step's arrays.

    Attributes:
        states: those that were saved last; None where there are none.
        count (int): the steps since, whose actions are kept.
        noted (int): the number of the last of these requests; -1 without any.
        is_kept (bool): whether the environments can be saved, as far as is known.
        shift (int): states are saved by the first step of each ``2**shift`` requests, as the vector
            environment numbers them: so its groups save theirs in the same steps, and what is
            waited for is one of them and not each in turn.
        until (int): the number of the request from which on others are to be saved; -1 for at once.
    """

    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        parts = arrays.actions.parts
        self.is_kept = not arrays.actions.objects
        self.states: Any = None
        self.count = 0
        self.noted = self.until = -1
        self.shift = 0
        self._begun, self._requests = 0, 1.0
        size = sum(part.nbytes for part in parts) if self.is_kept else 0
        self._most = max(1, min(MOST_STEPS, MOST_BYTES // max(size, 1)))
        # Of each leaf: those of the steps, one after the other; that of the next one; its size.
        self._parts = parts if self.is_kept else []
        room = self._most + _SPARE
        self._kept = [
            (memoryview(np.empty(room * part.nbytes, np.uint8)), _bytes_of(part), part.nbytes)  # type: ignore[arg-type]  # NumPy's stubs lack Buffer
            for part in self._parts
        ]
        self._costs: list[float] = []
        self._has_nan = False

    def begin(self, states: Any, tag: int = 0) -> None:
        """Begins anew with states; None for later.

        Args:
            states: those.
            tag: the number of the request that they were saved with.
        """
        self.states, self.count, self.noted, self._begun = states, 0, -1, tag
        self.until = -1 if states is None else ((tag >> self.shift) + 1) << self.shift

    @property
    def has_room(self) -> bool:
        """Whether one step more can be kept."""
        return self.count < self._most + _SPARE

    def note(self, tag: int) -> None:
        """Keeps the actions that a step is asked for with; again, it does so in the same place.

        Args:
            tag: the number of the request.
        """
        at = self.count
        if tag == self.noted:  # an interrupt came before it was asked
            at -= 1
        # No call in between, so that an interrupt finds both or none.
        self.noted, self.count = tag, at + 1
        for kept, part, size in self._kept:
            kept[at * size : (at + 1) * size] = part
        if at + 1 == self._most:
            self.until = -1

    def steps(self, before: int = -1) -> list[list[NDArray[Any]]]:
        """The actions of each step, as leaves.

        Args:
            before: the number of the request that is left out, if it is the last one.
        """
        count = self.count - (self.noted == before)
        found: list[list[NDArray[Any]]] = []
        for at in range(count):
            found.append([])
            for part, (kept, _, size) in zip(self._parts, self._kept, strict=True):
                leaf = np.ndarray(part.shape, part.dtype, kept, at * size)
                found[at].append(leaf.copy())
        return found

    def next_step(self) -> list[NDArray[Any]]:
        """The actions that are in the arrays, as leaves."""
        return [part.copy() for part in self._parts]

    def plan(self, cost: float, duration: float, tag: int) -> None:
        """Chooses how often states are saved, before it begins anew with those that were just.

        Args:
            cost: seconds it took to save them; the less of the last two counts, because others
                may have had the CPU meanwhile.
            duration: seconds a step takes, usually; NaN where there was none.
            tag: the number of the request that they were saved with.
        """
        self._costs = [*self._costs[-1:], cost]
        if not duration > 0:
            return
        most = max(1, min(self._most, MOST_SECONDS / duration))
        wanted = min(max(min(self._costs) / (SHARE * duration), 1), most)
        if self.states is not None:  # other groups have had some of the requests since
            steps = self.count + (self.noted != tag)
            self._requests = max((tag - self._begun) / steps, 1)
        a_step = self._requests
        self.shift = min(math.ceil(math.log2(wanted * a_step)), int(math.log2(most * a_step)))

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


def _bytes_of(part: NDArray[Any]) -> memoryview:
    """The memory of an array, which is quicker to copy."""
    return memoryview(part.reshape(-1).view(np.uint8))  # type: ignore[arg-type]  # as above
