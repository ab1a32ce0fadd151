"""Flattening of a space to leaves.

Dict and Tuple spaces are branches, and all other spaces are leaves. Values of leaves with a fixed
shape (Box, Discrete, MultiDiscrete, MultiBinary) are stored in arrays. Values of other leaves
(Text, Graph, Sequence, OneOf, custom) are stored as objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class StepSpaces(NamedTuple):
    """Spaces of one environment; ``reward_space`` is None if rewards are numbers."""

    observation_space: Space[Any]
    action_space: Space[Any]
    reward_space: spaces.Box | None = None

    def differing(self, other: StepSpaces) -> str | None:
        """Return the name of the first space that differs from the other's, or None."""
        compared = zip(self._fields, self, other, strict=True)
        return next((name for name, mine, others in compared if mine != others), None)


def shape_of_observations(space: Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: inner.shape for key, inner in space.spaces.items()}
    return space.shape


def shape_of_rewards(space: spaces.Box | None) -> tuple[int, ...]:
    """Return the shape of one reward: ``()`` or ``(k,)``."""
    return () if space is None else space.shape


class BadValueError(ValueError):
    """A value does not fit its array; the message describes the expected and the given value."""


@dataclass(frozen=True)
class Leaf:
    path: str
    space: Space[Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None


class SpaceLayout:
    """Leaves of a space, and conversion between its values and the leaves' values.

    ``leading`` axes, such as an agent axis, precede the axes of every leaf.
    """

    def __init__(self, space: Space[Any], *leading: int, path: str = "") -> None:
        self.space = space
        self.flat = not isinstance(space, (spaces.Dict, spaces.Tuple))
        self._is_dict = isinstance(space, spaces.Dict)
        self._prefix = f"{path}: " if path else ""
        if isinstance(space, spaces.Dict | spaces.Tuple):
            inner = space.spaces
            parts = inner.items() if isinstance(inner, dict) else enumerate(inner)
            self._children = {
                key: SpaceLayout(each, *leading, path=f"{path}[{key!r}]") for key, each in parts
            }
            leaves = [leaf for child in self._children.values() for leaf in child.leaves]
        elif isinstance(space, ARRAY_SPACES):
            assert space.shape is not None
            leaves = [Leaf(path, space, (*leading, *space.shape), np.dtype(space.dtype))]
        else:
            leaves = [Leaf(path, space, leading, None)]
        self.leaves: tuple[Leaf, ...] = tuple(leaves)

    def array_shapes(self, num_envs: int) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return the dtypes and shapes of arrays for the leaves that are stored in arrays."""
        leaves = [(leaf.dtype, (num_envs, *leaf.shape)) for leaf in self.leaves]
        return [(dtype, shape) for dtype, shape in leaves if dtype is not None]

    def flatten(self, value: Any) -> list[Any]:
        """Split a value or a batch into the values of the leaves."""
        if self.flat:
            return [value]
        children = self._children
        if self._is_dict:
            if not isinstance(value, Mapping) or value.keys() != children.keys():
                got = f"the keys {list(value)}" if isinstance(value, Mapping) else describe(value)
                raise BadValueError(
                    f"{self._prefix}expected a dict with the keys {list(children)}, got {got}"
                )
        elif not isinstance(value, tuple | list) or len(value) != len(children):
            raise BadValueError(
                f"{self._prefix}expected a tuple of length {len(children)}, got {describe(value)}"
            )
        parts: list[Any] = []
        for key, child in children.items():
            parts += (value[key],) if child.flat else child.flatten(value[key])
        return parts

    def unflatten(self, parts: Sequence[Any]) -> Any:
        """Reverse :meth:`flatten`."""
        return parts[0] if self.flat else self._take(iter(parts))

    def _take(self, parts: Iterator[Any]) -> Any:
        if self.flat:
            return next(parts)
        if self._is_dict:
            return {key: child._take(parts) for key, child in self._children.items()}
        return tuple([child._take(parts) for child in self._children.values()])


def replace_leaves(
    space: Space[Any], others: Mapping[str, Space[Any]], path: str = ""
) -> Space[Any]:
    """Return the space with its leaves at the paths in ``others`` replaced, in the same order."""
    if path in others:
        return others[path]
    if isinstance(space, spaces.Dict):
        inner = space.spaces.items()
        # Pairs, because Gymnasium sorts a plain dict.
        return spaces.Dict([(k, replace_leaves(s, others, f"{path}[{k!r}]")) for k, s in inner])
    if isinstance(space, spaces.Tuple):
        below = enumerate(space.spaces)
        return spaces.Tuple([replace_leaves(s, others, f"{path}[{i!r}]") for i, s in below])
    return space


def fit(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Convert a value to an array of this dtype and shape; only floats may be rounded."""
    try:
        array = np.asarray(value)
    except Exception as error:
        raise BadValueError(
            f"expected an array of shape {shape} and dtype {dtype}, got {describe(value)}, "
            f"which NumPy cannot convert: {error}"
        ) from None
    if array.shape != shape:
        raise BadValueError(f"expected shape {shape}, got {_described('shape', value, array)}")
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        raise BadValueError(f"expected dtype {dtype}, got {_described('dtype', value, array)}")
    try:
        with np.errstate(over="raise", invalid="ignore"):
            cast = array.astype(dtype)
            rounds = array.dtype.kind == dtype.kind == "f"
            lost = not rounds and not (
                np.array_equal(cast, array) and np.array_equal(cast.astype(array.dtype), array)
            )
    except FloatingPointError:
        lost = True
    if lost:
        if dtype.kind != "f" and np.isnan(array).any():
            values = "a NaN"
        else:
            low, high = np.nanmin(array), np.nanmax(array)
            values = f"the value {low}" if low == high else f"values from {low} to {high}"
        raise BadValueError(
            f"expected values that fit dtype {dtype}, got dtype {array.dtype} with {values}"
        )
    return cast


def _described(what: str, value: Any, array: NDArray[Any]) -> str:
    """Describe an array by its shape or dtype, and a scalar by its value."""
    return f"{what} {getattr(array, what)}" if array.ndim else describe(value)


def map_batch(function: Callable[..., Any], batch: Any, *others: Any) -> Any:
    """Apply a function to the corresponding arrays of several batches."""
    if isinstance(batch, dict):
        return {
            key: map_batch(function, part, *[other[key] for other in others])
            for key, part in batch.items()
        }
    if isinstance(batch, tuple):
        return tuple(map_batch(function, *parts) for parts in zip(batch, *others, strict=True))
    return function(batch, *others)


def describe(value: Any) -> str:
    """Describe a value briefly for an error message."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of length {len(value)}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
