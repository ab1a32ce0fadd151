"""Functions that the bytes of a state may call.

A state consists of plain data and calls of these functions, so reading it requires trust in
nothing else. States name them: they cannot be renamed.
"""

from __future__ import annotations

import random
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence, ISpawnableSeedSequence
from numpy.typing import NDArray

from xuance_envs._override import override

_NEEDS_TARGET = "works only while a state is loaded into an environment"


def there(path: tuple[Any, ...]) -> Any:
    """Return the target environment's object at a path."""
    raise TypeError(_NEEDS_TARGET)


def function(path: tuple[Any, ...], name: str) -> Any:
    """Return the target environment's function at a path, if it has this name."""
    raise TypeError(_NEEDS_TARGET)


def with_attributes(made: Any, attributes: dict[str, Any]) -> None:
    """Set the attributes of a new object."""
    raise TypeError(_NEEDS_TARGET)


def with_random(made: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """Set the state and attributes of a new object derived from ``random.Random``."""
    raise TypeError(_NEEDS_TARGET)


def native(path: tuple[Any, ...], content: Any) -> Any:
    """Return the target environment's array at a path, to be filled with this content."""
    raise TypeError(_NEEDS_TARGET)


def class_named(module: str, name: str) -> Any:
    """Return a class of the target environment or of a module."""
    raise TypeError(_NEEDS_TARGET)


def method(owner: Any, name: str) -> Any:
    """Return a bound method."""
    raise TypeError(_NEEDS_TARGET)


def array(data: bytes, dtype: str, shape: tuple[int, ...], form: int) -> NDArray[Any]:
    """Return a new array; ``form`` is 1 for Fortran order, plus 2 for read-only."""
    order: Any = "F" if form & 1 else "C"
    made = np.frombuffer(data, dtype)
    if made.shape != shape:
        made = made.reshape(shape, order=order)
    made = made.copy(order=order)
    if form & 2:
        made.flags.writeable = False
    return made


def view(
    base: NDArray[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str
) -> NDArray[Any]:
    """Return a view into another array's memory."""
    return np.ndarray(shape, dtype, base, offset, strides)


def scalar(data: bytes, dtype: str) -> Any:
    """Return a NumPy scalar."""
    return np.frombuffer(data, dtype)[0]


_BIT_GENERATORS = {"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"}


def bit_generator(kind: str, state: dict[str, Any], seed: tuple[Any, ...] | None) -> Any:
    """Return a bit generator in a given state."""
    if kind not in _BIT_GENERATORS:
        raise ValueError(f"expected a bit generator of NumPy, got {kind!r}")
    made = getattr(np.random, kind)(_UNSEEDED)
    if seed is None:
        made.state = state
    else:
        made.__setstate__((state, _LazySeedSequence(seed)))
    return made


class _LazySeedSequence(ISpawnableSeedSequence):
    """Lazily built :class:`numpy.random.SeedSequence`.

    Only spawning needs it, and building it takes as long as the rest of a generator.
    """

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
        return _seed_parameters(self.made) if "made" in vars(self) else self._seed_parameters

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


def _seed_parameters(seed: np.random.SeedSequence) -> tuple[Any, ...]:
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


_UNSEEDED = _ZeroSeedSequence()


def generator(bits: Any) -> np.random.Generator:
    """Return a generator with this bit generator."""
    return np.random.Generator(bits)


def random_state(state: dict[str, Any]) -> Any:
    """Return a legacy NumPy generator."""
    made = np.random.RandomState(0)
    made.set_state(state)
    return made


def python_random(state: tuple[Any, ...]) -> Any:
    """Return a generator of Python's ``random``."""
    made = random.Random()
    made.setstate(state)
    return made


# -- reducers ----------------------------------------------------------------------------


def memory_owner(value: Any) -> Any:
    """Return the object that owns an array's memory."""
    while True:
        if isinstance(value, np.ndarray):
            if value.base is None:
                return value
            value = value.base
        elif isinstance(value, memoryview) and value.obj is not None:
            value = value.obj
        else:
            return value


def _reduce_array(value: NDArray[Any]) -> Any:
    dtype, base = value.dtype, value.base
    if dtype.hasobject or dtype.kind == "V" or dtype.metadata:
        return NotImplemented
    if type(base) is np.ndarray and base.dtype.kind not in "OV" and base.flags.c_contiguous:
        offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return view, (base, offset, value.shape, value.strides, dtype.str)
    flags = value.flags
    by_columns = flags.f_contiguous and not flags.c_contiguous
    data = value.tobytes("F" if by_columns else "C")
    return array, (data, dtype.str, value.shape, by_columns + 2 * (not flags.writeable))


def _reduce_scalar(value: np.generic) -> Any:
    return scalar, (value.tobytes(), value.dtype.str)


def _reduce_generator(value: np.random.Generator) -> Any:
    return generator, (value.bit_generator,)


def _reduce_bit_generator(value: Any) -> Any:
    seed = value.seed_seq
    seed_parameters = None
    if isinstance(seed, np.random.SeedSequence):
        seed_parameters = _seed_parameters(seed)
    elif isinstance(seed, _LazySeedSequence):
        seed_parameters = seed.seed_parameters()
    return bit_generator, (type(value).__name__, value.state, seed_parameters)


def _reduce_random_state(value: np.random.RandomState) -> Any:
    return random_state, (value.get_state(legacy=False),)


def _reduce_random(value: random.Random) -> Any:
    return python_random, (value.getstate(),)


_SCALARS = set(np.sctypeDict.values()) - {np.object_, np.void, np.str_, np.bytes_}

REDUCERS: dict[type, Any] = {
    np.ndarray: _reduce_array,
    np.random.Generator: _reduce_generator,
    np.random.RandomState: _reduce_random_state,
    random.Random: _reduce_random,
    **{getattr(np.random, name): _reduce_bit_generator for name in _BIT_GENERATORS},
    **dict.fromkeys(_SCALARS, _reduce_scalar),
}
"""Reduce functions by exact type."""
