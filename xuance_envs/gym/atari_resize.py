"""Scaling a game's screen down, as a whole or in horizontal bands that give the same result."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from xuance_envs.gym.atari_games import load_cv2

__all__ = ["BandedResizer", "resize"]

Image = NDArray[np.uint8]
Run = tuple[int, int]

_MIN_BANDS = 8
"""With fewer bands there is little to leave out."""

_THIN = 8
"""How many rows a band of images that are not scaled in bands has at most."""


def resize(image: Image, size: tuple[int, int]) -> Image:
    """Scale an image as a whole, by area, as :class:`gymnasium.wrappers.AtariPreprocessing` does."""
    cv2 = load_cv2()
    height, width = size
    scaled: Image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return scaled.reshape(height, width, -1)


class BandedResizer:
    """Scales images of one shape to one size, again only where they changed.

    A band is as many rows as make a whole number of rows of the result. OpenCV computes a pixel's
    weights from the ratio of the sizes, which is the same for a band as for the whole, and from the
    pixel's place, which is a multiple of that ratio. Where the ratio is a binary fraction (210 to
    84 rows: 2.5) all of this is exact, so the results are the same bit for bit. For other ratios,
    and for enlarging, which blends neighbouring bands, the whole is always scaled.
    """

    def __init__(self, shape: tuple[int, ...], size: tuple[int, int] | None) -> None:
        self._cv2 = load_cv2()
        self._size = size
        height, width = size or shape[:2]
        bands = math.gcd(shape[0], height)
        self.rows, self._rows_out = shape[0] // bands, height // bands
        is_binary = self._rows_out & (self._rows_out - 1) == 0
        shrinks = height <= shape[0] and width <= shape[1]
        self._in_bands = size is not None and bands >= _MIN_BANDS and is_binary and shrinks
        self._result = np.empty((height, width, *shape[2:]), np.uint8)
        self._frame_shape = (height, width, shape[2] if len(shape) > 2 else 1)
        if not self._in_bands:
            self.rows = max(rows for rows in range(1, _THIN + 1) if shape[0] % rows == 0)

    def __call__(self, image: Image, runs: list[Run]) -> Image:
        """Scale an image."""
        if self._size is None:
            return image.reshape(self._frame_shape).copy()
        if not self._in_bands:
            return resize(image, self._size)
        cv2, result, rows, rows_out = self._cv2, self._result, self.rows, self._rows_out
        width = self._size[1]
        for first, last in runs:
            cv2.resize(
                image[first * rows : last * rows],
                (width, (last - first) * rows_out),
                result[first * rows_out : last * rows_out],
                interpolation=cv2.INTER_AREA,
            )
        return result.reshape(self._frame_shape).copy()
