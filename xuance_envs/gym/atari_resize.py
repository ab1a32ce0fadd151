"""Scaling a game's screen down: only where it has changed since the step before.

From one step to the next most of a game's screen stays as it is, and scaling by area is the most
expensive thing an Atari step does besides emulation. The screen is therefore cut into horizontal
bands that are scaled independently of each other, and only those that changed are scaled anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from xuance_envs.gym.atari_games import load_cv2

__all__ = ["Resizer", "resize"]

Image = NDArray[np.uint8]

_FEWEST_BANDS = 8
"""With fewer bands there is little to leave out."""

_BRIDGE = 2
"""So many unchanged bands between two changed ones cost less than another call would."""


def resize(frame: Image, size: tuple[int, int]) -> Image:
    """Scale an image as a whole, by area, as :class:`gymnasium.wrappers.AtariPreprocessing` does.

    Args:
        frame: Of shape ``(height, width)`` or ``(height, width, channels)``.
        size: Height and width of the result.

    Returns:
        A new array of shape ``(*size, channels)``, with one channel for a frame without channels.
    """
    cv2 = load_cv2()
    height, width = size
    scaled: Image = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
    return scaled.reshape(height, width, -1)


class Resizer:
    """Scales one image after another to one size, and gives for each what :func:`resize` would.

    A band is as many rows as make a whole number of rows of the result. OpenCV computes a pixel's
    weights from the ratio of the sizes, which is the same for a band as for the whole, and from the
    pixel's place, which is a multiple of that ratio. Where the ratio is a binary fraction (210 to
    84 rows: 2.5) all of this is exact, so the results are the same bit for bit. For other ratios,
    and for enlarging, which blends neighbouring bands, everything is always scaled.

    Args:
        shape: Of the images: ``(height, width)`` or ``(height, width, channels)``, contiguous.
        size: Height and width of the results.
    """

    def __init__(self, shape: tuple[int, ...], size: tuple[int, int]) -> None:
        self._cv2 = load_cv2()
        self._size = size
        self._dsize_width = size[1]
        bands = math.gcd(shape[0], size[0])
        self._rows_in, self._rows_out = shape[0] // bands, size[0] // bands
        binary = self._rows_out & (self._rows_out - 1) == 0
        shrinks = size[0] <= shape[0] and size[1] <= shape[1]
        words, rest = divmod(math.prod(shape), 8 * bands)
        self._in_bands = bands >= _FEWEST_BANDS and binary and shrinks and rest == 0
        if self._in_bands:
            self._words = words
            self._differs = np.empty(bands * words, np.bool_)
            self._result = np.empty((*size, *shape[2:]), np.uint8)
            self._before = np.zeros(math.prod(shape) // 8, np.uint64)
            self._is_first = True

    def __call__(self, image: Image) -> Image:
        """Scale an image.

        Args:
            image: It must stay as it is until the next call: what that one changed is found by
                comparing the two.

        Returns:
            A new array of shape ``(*size, channels)``.
        """
        if not self._in_bands:
            return resize(image, self._size)
        now = image.reshape(-1).view(np.uint64)
        if self._is_first:
            self._is_first = False
            self._scale(image, 0, len(self._differs) // self._words)
        else:
            np.not_equal(now, self._before, out=self._differs)
            for first, last in self._changed_bands():
                self._scale(image, first, last)
        self._before = now
        height, width = self._size
        return self._result.copy().reshape(height, width, -1)

    def _scale(self, image: Image, first: int, last: int) -> None:
        rows_in, rows_out = self._rows_in, self._rows_out
        self._cv2.resize(
            image[first * rows_in : last * rows_in],
            (self._dsize_width, (last - first) * rows_out),
            self._result[first * rows_out : last * rows_out],
            interpolation=self._cv2.INTER_AREA,
        )

    def _changed_bands(self) -> Iterator[tuple[int, int]]:
        """Yield runs of bands to scale anew: the first one, and the one after the last."""
        differs, words = self._differs.tobytes(), self._words
        place = differs.find(1)
        while place >= 0:
            first = last = place // words
            while place >= 0 and (band := place // words) - last <= _BRIDGE:
                last = band
                place = differs.find(1, (band + 1) * words)
            yield first, last + 1
