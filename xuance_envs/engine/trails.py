"""The way to where a group of environments is: states that were saved, and the actions since."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.errors import name_envs

__all__ = ["CHANGING", "Trail"]

SHARE = 0.005
"""What saving may cost, as a share of stepping: keeping the actions costs about as much."""

MOST_STEPS = 2048
MOST_BYTES = 1 << 26
"""So many steps, and about so many bytes of actions, are kept at most."""

_BYTES = operator.methodcaller("tobytes")

CHANGING = ("reset", "call", "set_attr", "apply", "load_states")
"""The commands after which a trail begins anew."""


class Trail:
    """States of a group's environments, and the actions of each step since.

    Actions without a fixed shape are not kept.

    Args:
        arrays: the group's slice of the step's arrays.

    Attributes:
        states: those that were saved last; None where there are none.
        steps (list): for each step since, the bytes of its actions.
        is_kept (bool): whether the environments can be saved, as far as is known.
        shift (int): states are saved by the first step of each ``2**shift`` requests, as the vector
            environment numbers them: so its groups save theirs in the same steps, and what is
            waited for is one of them and not each in turn.
        epoch (int): which of these stretches states are there of; -1 without any.
        actions: gives those of the step that is asked for, as they are kept.
    """

    def __init__(self, arrays: StepArrays) -> None:
        self._arrays = arrays
        self.is_kept = not arrays.actions.objects
        self.states: Any = None
        self.steps: list[bytes] = []
        self._parts = arrays.actions.parts
        self.shift = 0
        self.epoch = -1
        self._begun, self._requests = 0, 1.0
        self.actions: Callable[[], bytes] = self._all_actions
        if self.is_kept and len(self._parts) == 1:  # which is quicker
            self.actions = self._parts[0].tobytes
        self._costs: list[float] = []
        self._has_nan = False

    def begin(self, states: Any, tag: int = 0) -> None:
        """Begins anew with states; None for later.

        Args:
            states: those.
            tag: the number of the request that they were saved with.
        """
        self.states, self.steps, self._begun = states, [], tag
        self.epoch = -1 if states is None else tag >> self.shift

    def _all_actions(self) -> bytes:
        return b"".join(map(_BYTES, self._parts))

    def unpacked(self, steps: Sequence[bytes]) -> list[list[NDArray[Any]]]:
        """The actions of some steps, as leaves."""
        found = []
        for data in steps:
            leaves, at = [], 0
            for part in self._parts:
                leaf = np.frombuffer(data, part.dtype, part.size, at)
                leaves.append(leaf.reshape(part.shape))
                at += part.nbytes
            found.append(leaves)
        return found

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
        size = sum(part.nbytes for part in self._parts)
        most = max(1, min(MOST_STEPS, MOST_BYTES // max(size, 1)))
        wanted = min(max(min(self._costs) / (SHARE * duration), 1), most)
        if self.states is not None:  # other groups have had some of the requests since
            self._requests = max((tag - self._begun) / (len(self.steps) + 1), 1)
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
