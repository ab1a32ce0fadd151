"""Mean and variance of everything seen so far, in one pass."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments", "Room", "Scale", "are_finite", "check_scale"]

FEW = 4096
"""Numbers of which a product with ones is the quicker sum; of more, BLAS would start threads."""


class Room:
    """Room in which samples are summed and scaled, so many at most.

    A call of NumPy's costs more than its arithmetic where there are a few samples. Calls that
    repeat one row for all the others, and reductions, cost two or three times as much as those
    over arrays of one shape; so a row is first written out for each sample, and sums are products
    with ones.

    Args:
        count: number of samples.
        shape: of one.
    """

    __slots__ = ("_arrays", "_count", "_shape")

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        self._count = count
        self._shape = shape
        rows = (count, *shape)
        self._arrays = np.ones(count), np.empty(rows), np.empty(rows), np.empty(rows)

    def sums(self, samples: NDArray[Any], origin: Any) -> tuple[Any, Any]:
        """The sum of the deviations from an origin, and of their squares.

        Float64; Python's own numbers where samples are, whose arithmetic is the same and quicker.

        Args:
            samples: ``(k, *shape)`` finite numbers.
            origin: of one's shape.
        """
        ones, rows, squares, same = self._of(samples)
        deviations = np.subtract(self._exact(samples), self._repeated(origin, same), out=rows)
        if not self._shape:
            return float(deviations.dot(ones)), float(deviations.dot(deviations))
        np.multiply(deviations, deviations, out=squares)
        if deviations.size > FEW:
            return np.add.reduce(deviations, axis=0), np.add.reduce(squares, axis=0)
        if len(self._shape) == 1:
            return ones.dot(deviations), ones.dot(squares)
        flat = (each.reshape(len(ones), -1) for each in (deviations, squares))
        total, squared = (ones.dot(each).reshape(self._shape) for each in flat)
        return total, squared

    def scaled(
        self, samples: NDArray[Any], mean: Any, deviation: Any, least: Any, most: Any
    ) -> NDArray[np.float64]:
        """The deviations from a mean, in standard deviations and within bounds.

        Args:
            samples: ``(k, *shape)``.
            mean: of one's shape.
            deviation: likewise.
            least: the lower bound.
            most: the upper bound.

        Returns:
            ``(k, *shape)`` float64, as it is until the room is used again.
        """
        _, rows, _, same = self._of(samples)
        np.subtract(self._exact(samples), self._repeated(mean, same), out=rows)
        np.divide(rows, self._repeated(deviation, same), out=rows)
        return rows.clip(least, most, out=rows)

    def _of(self, samples: NDArray[Any]) -> tuple[NDArray[np.float64], ...]:
        count = len(samples)
        if count == self._count:
            return self._arrays
        return tuple(array[:count] for array in self._arrays)

    def _exact(self, samples: NDArray[Any]) -> NDArray[Any]:
        """The samples; of float64, where numbers of Python's are subtracted from them."""
        if self._shape or samples.dtype == np.float64:
            return samples
        return samples.astype(np.float64)

    def _repeated(self, value: Any, rows: NDArray[np.float64]) -> Any:
        """One for all samples; a number is as quick by itself."""
        if not self._shape:
            return value
        rows[...] = value
        return rows


class Moments:
    r"""The mean and the population's variance of so many samples; never changed.

    With the mean m of n samples and the sum q of their squared deviations from it, k samples more
    with deviations d from m give, after Chan, Golub and LeVeque,

    .. math::

        m' = m + \frac{\sum d}{n + k}, \qquad
        q' = q + \sum d^2 - \frac{(\sum d)^2}{n + k},

    which for k = 1 is Welford's formula. The first samples are taken as deviations from the first
    one, so that what is far from zero loses no digits.

    Welford 1962, https://doi.org/10.1080/00401706.1962.10490022; Chan, Golub and LeVeque 1983,
    https://doi.org/10.1080/00031305.1983.10483115.

    Args:
        count: number of samples.
        mean: of each number of a sample, float64; 0 before the first. Of samples that are numbers
            a number.
        squares: by number of a sample, the sum of the squared deviations from the mean, likewise.
    """

    __slots__ = ("count", "mean", "squares")

    def __init__(self, count: int, mean: Any, squares: Any) -> None:
        self.count = count
        self.mean = mean
        self.squares = squares

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Moments:
        """Those of no samples of a shape."""
        return cls(0, np.zeros(shape), np.zeros(shape)) if shape else cls(0, 0.0, 0.0)

    @property
    def variance(self) -> Any:
        """The population's: the mean squared deviation; 1 before the first sample."""
        return self.squares / float(self.count) if self.count else self.squares + 1.0

    def with_samples(self, samples: NDArray[Any], room: Room) -> Moments:
        """Those of these samples, too.

        Args:
            samples: ``(k, *shape)`` finite numbers.
            room: for as many at least.
        """
        if len(samples) == 0:
            return self
        count = self.count + len(samples)
        origin = self.mean if self.count else _origin(samples[0])
        total, squares = room.sums(samples, origin)
        shift = total / float(count)
        return Moments(count, origin + shift, self.squares + (squares - total * shift))


def _origin(sample: Any) -> Any:
    """A copy of one sample in float64; of a number Python's own."""
    copy = np.array(sample, np.float64)
    return copy if copy.shape else float(copy)


class Scale(NamedTuple):
    """Moments, and the deviation by which numbers are divided.

    Attributes:
        moments: of what has been seen.
        deviation: the square root of their variance and a small number.
    """

    moments: Moments
    deviation: Any

    @classmethod
    def of(cls, moments: Moments, epsilon: Any) -> Scale:
        """The scale of moments.

        Args:
            moments: of what has been seen.
            epsilon: added to the variance, a number or an array of one.
        """
        variance = moments.variance + epsilon
        return cls(moments, math.sqrt(variance) if type(variance) is float else np.sqrt(variance))


def check_scale(name: str, epsilon: float, clip: float) -> None:
    """Raises unless numbers can be divided and clipped so.

    Raises:
        ValueError: one of them is out of its range.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"{name}: epsilon: expected a number above 0, got {epsilon!r}")
    if not clip > 0:
        raise ValueError(f"{name}: clip: expected a number above 0, got {clip!r}")


def are_finite(numbers: NDArray[Any]) -> bool:
    """Whether there is neither NaN nor infinity among the numbers of an array."""
    if numbers.dtype.kind != "f":
        return True
    # Of a few numbers a search takes half the time of a reduction.
    return b"\0" not in np.isfinite(numbers).tobytes()
