"""Resizing of game screens, in full or in horizontal bands with bitwise identical results."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from xuance_envs.gym.atari_games import load_cv2

Image = NDArray[np.uint8]
Run = tuple[int, int]

_MIN_BANDS = 8
"""Below this number of bands, updating bands separately saves little."""

_THIN = 8
"""Maximum height, in rows, of bands for finding changes, if images are resized as a whole."""


def resize(image: Image, size: tuple[int, int]) -> Image:
    """Resize an image by area, like :class:`gymnasium.wrappers.AtariPreprocessing`."""
    cv2 = load_cv2()
    height, width = size
    scaled: Image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return scaled.reshape(height, width, -1)


class BandedResizer:
    """Resizer for images of one shape that updates only the bands that changed.

    A band is the smallest number of rows that maps to a whole number of output rows. OpenCV derives
    pixel weights from the ratio of the sizes. If this ratio is a binary fraction (210 to 84 rows:
    2.5), bands give the same result as the whole image. Otherwise, and for upscaling, the
    whole image is resized.
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
        """Resize an image that differs from the last one only in these ranges of bands."""
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
