"""What a state is rebuilt from: the few functions that its bytes name.

Everything an environment holds is written as plain data and calls of these. So reading a state
needs to trust nothing but them, and a few types that do nothing but hold data.
"""

from __future__ import annotations

import random
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence, ISpawnableSeedSequence
from numpy.typing import NDArray

from xuance_envs._override import override

__all__ = [
    "REDUCERS",
    "array",
    "bit_generator",
    "class_named",
    "function",
    "generator",
    "method",
    "native",
    "python_random",
    "random_state",
    "scalar",
    "there",
    "view",
    "with_attributes",
    "with_random",
]

_NEEDS_TARGET = "only of use where a state is put into an environment"


def there(path: tuple[Any, ...]) -> Any:
    """What the environment that is loaded into has at this place."""
    raise TypeError(_NEEDS_TARGET)


def function(path: tuple[Any, ...], name: str) -> Any:
    """The same, where it is a function of this name."""
    raise TypeError(_NEEDS_TARGET)


def with_attributes(made: Any, attributes: dict[str, Any]) -> None:
    """Gives an object that was just made its attributes."""
    raise TypeError(_NEEDS_TARGET)


def with_random(made: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """Gives a generator of a class derived from Python's its state and its attributes."""
    raise TypeError(_NEEDS_TARGET)


def native(path: tuple[Any, ...], content: Any) -> Any:
    """An array on memory that is not NumPy's: what is there, with this content."""
    raise TypeError(_NEEDS_TARGET)


def class_named(module: str, name: str) -> Any:
    """A class of the environment that is loaded into, or of a module."""
    raise TypeError(_NEEDS_TARGET)


def method(owner: Any, name: str) -> Any:
    """A bound method."""
    raise TypeError(_NEEDS_TARGET)


def array(data: bytes, dtype: str, shape: tuple[int, ...], form: int) -> NDArray[Any]:
    """An array of its own memory."""
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
    """An array on the memory of another one."""
    return np.ndarray(shape, dtype, base, offset, strides)


def scalar(data: bytes, dtype: str) -> Any:
    """A number of NumPy's."""
    return np.frombuffer(data, dtype)[0]


_BIT_GENERATORS = {"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"}


def bit_generator(kind: str, state: dict[str, Any], seed: tuple[Any, ...] | None) -> Any:
    """A source of random bits in a state."""
    if kind not in _BIT_GENERATORS:
        raise ValueError(f"no random generator of NumPy's: {kind!r}")
    made = getattr(np.random, kind)(_UNSEEDED)
    if seed is None:
        made.state = state
    else:
        made.__setstate__((state, _LazySeedSequence(seed)))
    return made


class _LazySeedSequence(ISpawnableSeedSequence):
    """A :class:`numpy.random.SeedSequence` that is made when somebody asks for it.

    Only spawning does, and it takes as long as all else of a generator.
    """

    def __init__(self, seed_parameters: tuple[Any, ...]) -> None:
        self._seed_parameters = seed_parameters

    @cached_property
    def made(self) -> np.random.SeedSequence:
        """It."""
        entropy, key, pool, spawned = self._seed_parameters
        return np.random.SeedSequence(
            entropy, spawn_key=key, pool_size=pool, n_children_spawned=spawned
        )

    def seed_parameters(self) -> tuple[Any, ...]:
        """What it is made of, as it is now."""
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
    """Seeds what is given its state next."""

    @override
    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return _zeros(n_words, dtype)


@cache
def _zeros(count: int, dtype: Any) -> NDArray[Any]:
    """So many of them, which are only read."""
    return np.zeros(count, dtype)


_UNSEEDED = _ZeroSeedSequence()


def generator(bits: Any) -> np.random.Generator:
    """A generator that draws from a source of bits."""
    return np.random.Generator(bits)


def random_state(state: dict[str, Any]) -> Any:
    """A generator of NumPy's older kind."""
    made = np.random.RandomState(0)
    made.set_state(state)
    return made


def python_random(state: tuple[Any, ...]) -> Any:
    """A generator of Python's."""
    made = random.Random()
    made.setstate(state)
    return made


# -- how each is written -----------------------------------------------------------------


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
"""By exact type, what tells how a value is rebuilt."""
