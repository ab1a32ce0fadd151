"""Running mean and variance, and their conversion to and from plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.errors import VecEnvError
from xuance_envs.vector_envs.arguments import checked_number
from xuance_envs.vector_envs.vector_env import VecEnv

ONES_DOT_LIMIT = 4096
"""Up to this size, a dot product with ones is the fastest sum. Above it, BLAS starts threads."""

NOT_FINITE = (FloatingPointError, RuntimeWarning)
"""Exceptions for non-finite or too large samples; RuntimeWarning if warnings are errors."""

MAX_MAGNITUDE = 1e150
"""Samples up to this magnitude are always accepted: sums of many of their squares are finite."""


class MomentBuffers:
    """Preallocated arrays for summing and scaling small batches in few NumPy calls."""

    __slots__ = (
        "_arrays",
        "_clip_high",
        "_clip_low",
        "_count",
        "_mean",
        "_means",
        "_row_ones",
        "_shape",
    )

    def __init__(self, count: int, shape: tuple[int, ...], clip: float = math.inf) -> None:
        self._count = count
        self._shape = shape
        rows = (count, *shape)
        # Broadcasts and reductions cost two to three times as much as elementwise calls. So the
        # mean is repeated for each sample, and sums are products with ones.
        # A scalar mean needs no repetition: a zero-dimensional array is as fast as a full one.
        # NumPy 1 is an exception: it would convert such an array to the samples' precision.
        self._means = np.empty(rows if shape or np.__version__ < "2" else ())
        self._mean: Any = None  # the mean that `_means` repeats
        self._arrays = np.ones(count), self._means, np.empty(rows), np.empty(rows)
        is_vector = len(shape) == 1 and count * shape[0] <= ONES_DOT_LIMIT
        self._row_ones = np.ones(shape) if is_vector else None
        self._clip_low, self._clip_high = np.array(-float(clip)), np.array(float(clip))

    def sums(self, samples: NDArray[Any], origin: Any) -> tuple[Any, Any]:
        """Return the sum of the deviations from ``origin``, and the sum of their squares."""
        ones, means, deviations, squares = self._arrays_for(samples, origin)
        np.subtract(samples, means, out=deviations)
        # Squares first: infinities of both signs would make the sum of deviations NaN.
        if not self._shape:
            squared = float(deviations.dot(deviations))
            if math.isfinite(squared):
                return float(deviations.dot(ones)), squared
            raise FloatingPointError
        np.multiply(deviations, deviations, out=squares)
        if self._row_ones is None:
            squared = np.add.reduce(squares, axis=0)
            if np.isfinite(squared).all():
                return np.add.reduce(deviations, axis=0), squared
        else:
            squared = ones.dot(squares)
            if math.isfinite(self._row_ones.dot(squared)):
                return ones.dot(deviations), squared
        raise FloatingPointError

    def scale(self, samples: NDArray[Any], moments: Moments, out: NDArray[Any]) -> None:
        """Write the samples' clipped z-scores to ``out``."""
        _, means, rows, deviations = self._arrays_for(samples, moments.mean)
        np.subtract(samples, means, out=rows)
        deviations[...] = moments.deviation
        np.divide(rows, deviations, out=rows)
        out[...] = rows.clip(self._clip_low, self._clip_high, out=rows)

    def _arrays_for(self, samples: NDArray[Any], mean: Any) -> tuple[NDArray[np.float64], ...]:
        """Return the buffers, cut to the number of samples, with the mean in the second one."""
        if mean is not self._mean:
            # There is no call in between, so an interrupt cannot separate the two assignments.
            self._means[...] = mean
            self._mean = mean
        count = len(samples)
        if count == self._count:
            return self._arrays
        return tuple(array[:count] if array.ndim else array for array in self._arrays)


class Moments:
    r"""Immutable mean and population variance of samples.

    Let m be the mean of n samples, and q the sum of squared deviations from m. After k more samples
    with deviations d from m, Chan, Golub and LeVeque give

    .. math::

        m' = m + \frac{\sum d}{n + k}, \qquad
        q' = q + \sum d^2 - \frac{(\sum d)^2}{n + k},

    which for k = 1 is Welford's formula. The first batch uses deviations from its first sample, so
    values far from zero lose no precision.

    Welford 1962, https://doi.org/10.1080/00401706.1962.10490022; Chan, Golub and LeVeque 1983,
    https://doi.org/10.1080/00031305.1983.10483115.
    """

    __slots__ = ("count", "deviation", "epsilon", "mean", "squares")

    def __init__(self, count: int, mean: Any, squares: Any, epsilon: Any) -> None:
        self.count = count
        self.mean = mean
        self.squares = squares
        self.epsilon = epsilon
        root = math.sqrt if type(squares) is float else np.sqrt
        self.deviation = root(self.variance + epsilon)

    @classmethod
    def empty(cls, shape: tuple[int, ...], epsilon: float) -> Moments:
        """Return the moments of no samples."""
        if not shape:
            return cls(0, 0.0, 0.0, float(epsilon))
        return cls(0, np.zeros(shape), np.zeros(shape), np.array(float(epsilon)))

    @property
    def variance(self) -> Any:
        """Population variance; 1 before the first sample."""
        return self.squares / float(self.count) if self.count else self.squares + 1.0

    def with_samples(
        self, buffers: MomentBuffers, samples: NDArray[Any], more: NDArray[Any] | None = None
    ) -> Moments:
        """Return new moments that include ``samples`` and ``more``."""
        count, origin = self.count, self.mean
        if not count:
            if not len(samples):
                return self if more is None else self.with_samples(buffers, more)
            origin = np.array(samples[0], np.float64)
            check_finite(origin)
            origin = origin if origin.shape else float(origin)
        total, squares = buffers.sums(samples, origin)
        count += len(samples)
        if more is not None:
            its_total, its_squares = buffers.sums(more, origin)
            total, squares, count = total + its_total, squares + its_squares, count + len(more)
        shift = total / float(count)
        squares = self.squares + (squares - total * shift)
        return Moments(count, origin + shift, squares, self.epsilon)


def check_scale(name: str, epsilon: float, clip: float) -> None:
    """Raise a ValueError unless ``epsilon`` and ``clip`` are above 0 and ``epsilon`` is finite."""
    expected = "a finite number above 0"
    checked_number(f"{name}: epsilon", epsilon, lambda value: 0 < value < math.inf, expected)
    checked_number(f"{name}: clip", clip, lambda value: value > 0, "a number above 0")


def check_finite(*samples: NDArray[Any] | None) -> None:
    """Raise FloatingPointError if an array contains NaN or infinity."""
    for numbers in samples:
        # For few numbers, a search in the bytes takes half the time of a reduction.
        if (
            numbers is not None
            and numbers.dtype.kind == "f"
            and b"\0" in np.isfinite(numbers).tobytes()
        ):
            raise FloatingPointError


def find_worst(numbers: NDArray[Any]) -> tuple[float, tuple[int, ...]]:
    """Return magnitude and index of the first NaN or infinity, or else of the largest number."""
    sizes = np.abs(numbers.astype(np.float64))
    sizes[np.isnan(sizes)] = np.inf
    at = tuple(map(int, np.unravel_index(sizes.argmax(), sizes.shape)))
    return sizes[at], at


def env_id_of(vec_env: VecEnv) -> str:
    """Return the environments' id; an empty string if they have none."""
    with suppress(AttributeError, NotImplementedError, VecEnvError):
        (spec,) = vec_env.get_attr("spec", env_ids=[0])
        return str(getattr(spec, "id", ""))
    return ""


def moment_key(what: str, name: str) -> str:
    """Return a key such as ``mean.position``, or ``mean`` if ``name`` is empty."""
    return f"{what}.{name}" if name else what


def moments_to_dict(environment: str, moments: Mapping[str, Moments]) -> dict[str, Any]:
    """Convert moments to numbers and lists; ``squares``, unlike the variance, is not rounded."""
    learned: dict[str, Any] = {"environment": environment}
    for name, its in moments.items():
        learned["count"] = its.count
        learned[moment_key("mean", name)] = np.asarray(its.mean).tolist()
        learned[moment_key("squares", name)] = np.asarray(its.squares).tolist()
    return learned


def moments_from_dict(
    transform: str, environment: str, own: Mapping[str, Moments], learned: Mapping[str, Any]
) -> dict[str, Moments]:
    """Check data of :func:`moments_to_dict` and convert it to moments."""
    given = str(learned.get("environment", ""))
    if given and environment and given != environment:
        raise ValueError(
            f"{transform}: expected statistics learned in {environment}, got those of {given}"
        )
    names = [moment_key(what, name) for name in own for what in ("mean", "squares")]
    expected = {"environment", "count", *names}
    if learned.keys() != expected:
        wanted, got = (
            ", ".join(f"{transform}.{key}" for key in sorted(keys)) for keys in (expected, learned)
        )
        raise ValueError(f"state: expected the keys {wanted}, got {got}")
    return {name: _moments(transform, name, its, learned) for name, its in own.items()}


def _moments(transform: str, name: str, own: Moments, learned: Mapping[str, Any]) -> Moments:
    keys = [moment_key(what, name) for what in ("mean", "squares")]
    mean, squares = (np.array(learned[key], np.float64) for key in keys)
    count, shape = int(learned["count"]), np.shape(own.mean)
    if mean.shape != shape or squares.shape != shape:
        raise ValueError(
            f"{transform}: {' and '.join(keys)}: expected shape {shape}, got {mean.shape} and "
            f"{squares.shape}"
        )
    are_sums = (squares >= 0) & np.isfinite(squares)
    if count < 0 or not (np.abs(mean) <= MAX_MAGNITUDE).all() or not are_sums.all():
        raise ValueError(
            f"{transform}: expected a non-negative count, finite means and finite, non-negative "
            f"sums of squared deviations, got {count}, {mean} and {squares}"
        )
    if not shape:
        return Moments(count, float(mean), float(squares), own.epsilon)
    return Moments(count, mean, squares, own.epsilon)
