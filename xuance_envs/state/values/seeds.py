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

    def __init__(self, seed_parameters: tuple[Any, ...]) -> None:
        self._seed_parameters = seed_parameters

    @cached_property
    def made(self) -> np.random.SeedSequence:
        entropy, key, pool, spawned = self._seed_parameters
        return np.random.SeedSequence(
            entropy, spawn_key=key, pool_size=pool, n_children_spawned=spawned
        )

    def seed_parameters(self) -> tuple[Any, ...]:
        """Return the current parameters of the seed sequence."""
        return _parameters(self.made) if "made" in vars(self) else self._seed_parameters

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
    if isinstance(seed, np.random.SeedSequence):
        return _parameters(seed)
    return seed.seed_parameters() if isinstance(seed, LazySeedSequence) else None


def _parameters(seed: np.random.SeedSequence) -> tuple[Any, ...]:
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
