"""Mean and variance of everything seen so far, in one pass."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Moments", "Scale", "are_finite", "check_scale"]


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
        mean: of each number of a sample, float64; 0 before the first.
        squares: by number of a sample, the sum of the squared deviations from the mean, float64.
    """

    __slots__ = ("count", "mean", "squares")

    def __init__(self, count: int, mean: Any, squares: Any) -> None:
        self.count = count
        self.mean = mean
        self.squares = squares

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> Moments:
        """Those of no samples of a shape."""
        return cls(0, np.zeros(shape), np.zeros(shape))

    @property
    def variance(self) -> Any:
        """The population's: the mean squared deviation; 1 before the first sample."""
        if self.count == 0:
            return np.ones_like(self.squares)
        return self.squares / self.count

    def with_samples(self, samples: NDArray[Any], scratch: NDArray[np.float64]) -> Moments:
        """Those of these samples, too.

        Args:
            samples: ``(k, *shape)`` finite numbers.
            scratch: ``(2, k, *shape)``, written to.
        """
        if len(samples) == 0:
            return self
        count = self.count + len(samples)
        origin = self.mean if self.count else np.array(samples[0], np.float64)
        deviations = np.subtract(samples, origin, out=scratch[0])
        total = np.add.reduce(deviations, axis=0)
        squares = np.add.reduce(np.multiply(deviations, deviations, out=scratch[1]), axis=0)
        shift = total / count
        return Moments(count, origin + shift, self.squares + (squares - total * shift))


class Scale(NamedTuple):
    """Moments, and the deviation by which numbers are divided.

    Attributes:
        moments: of what has been seen.
        deviation: the square root of their variance and a small number.
    """

    moments: Moments
    deviation: Any

    @classmethod
    def of(cls, moments: Moments, epsilon: float) -> Scale:
        """The scale of moments.

        Args:
            moments: of what has been seen.
            epsilon: added to the variance.
        """
        return cls(moments, np.sqrt(moments.variance + epsilon))


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
    return bool(np.logical_and.reduce(np.isfinite(numbers), axis=None))
