"""Lazily built seeds of NumPy's bit generators."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence, ISpawnableSeedSequence
from numpy.typing import NDArray

from xuance_envs._override import override


class LazySeedSequence(ISpawnableSeedSequence):
    """Seed sequence that is built on first use, which halves the time to build a generator."""

    def __init__(self, parameters: tuple[Any, ...]) -> None:
        self.parameters = parameters

    @cached_property
    def made(self) -> np.random.SeedSequence:
        entropy, key, pool, spawned = self.parameters
        return np.random.SeedSequence(
            entropy, spawn_key=key, pool_size=pool, n_children_spawned=spawned
        )

    @override
    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return self.made.generate_state(n_words, dtype)

    @override
    def spawn(self, n_children: int) -> list[Any]:
        return self.made.spawn(n_children)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def __reduce__(self) -> Any:
        return self.made.__reduce__()

    def __repr__(self) -> str:
        return repr(self.made)


def seed_parameters_of(seed: Any) -> tuple[Any, ...] | None:
    """Return the parameters of a seed sequence; None if the seed is of another type."""
    if isinstance(seed, LazySeedSequence):
        if "made" not in vars(seed):
            return seed.parameters
    elif not isinstance(seed, np.random.SeedSequence):
        return None
    return seed.entropy, seed.spawn_key, seed.pool_size, seed.n_children_spawned


class _ZeroSeedSequence(ISeedSequence):
    """Cheap seed for a bit generator whose state is set next."""

    @override
    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return _zeros(n_words, dtype)


@cache
def _zeros(count: int, dtype: Any) -> NDArray[Any]:
    """Return zeros, cached; read-only by convention."""
    return np.zeros(count, dtype)


UNSEEDED = _ZeroSeedSequence()
