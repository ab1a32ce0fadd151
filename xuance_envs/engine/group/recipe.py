"""Inputs for creating a group's environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.serialization import copy_of


@dataclass(frozen=True)
class Recipe:
    """Functions that create environments, their keyword arguments, and the autoreset mode."""

    env_fns: Sequence[Callable[..., Any]]
    keywords: Sequence[Mapping[str, Any]]
    first: int = 0
    autoreset: Autoreset = Autoreset.SAME_STEP

    def __len__(self) -> int:
        return len(self.env_fns)

    def part(self, lo: int, hi: int) -> Recipe:
        """Return the recipe of environments ``lo`` to ``hi - 1`` from the recipe of all."""
        return replace(self, env_fns=self.env_fns[lo:hi], keywords=self.keywords[lo:hi], first=lo)


def reset_arguments(seed: int | None, options: Any = None) -> dict[str, Any]:
    """Return keyword arguments for the ``reset`` of an environment, with a copy of the options."""
    given = {} if seed is None else {"seed": seed}
    return given if options is None else {**given, "options": copy_of(options)}


Seeding = tuple[int | None, int]  # last seed of an environment, and its number of restarts


def derived_seed(seed: int, restarts: int) -> int:
    """Derive a new seed for a restart, so that a crash caused by the seed does not repeat."""
    return int(np.random.SeedSequence((seed % 2**64, restarts)).generate_state(1)[0])
