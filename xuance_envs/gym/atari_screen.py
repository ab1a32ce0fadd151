"""Incremental conversion of the emulator's screen to grayscale or RGB frames.

The emulator stores its screen as color numbers. Converting and resizing all of them takes a third
as long as emulating a step. Most of a screen stays the same between steps, so only changed
bands of rows are converted and resized. The palette is learned from the emulator as new color
numbers appear.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.gym.atari_games import load

Image = NDArray[np.uint8]
Run = tuple[int, int]  # a range of bands

_COLORS = 256

# Each byte of an unseen color in the table. Known colors with this byte need a slower check.
_UNKNOWN = b"\xff"

_UNUSED_NUMBER = 255  # a number that no color has: the console's color numbers are even
_MAX_GAP = 4  # two runs with at most this many unchanged bands between them are faster as one run
_MIN_BANDS = 8  # below this number of bands, updating bands separately saves little
_THIN = 8  # maximum height, in rows, of bands for finding changes, if images are resized as a whole


def resize(image: Image, size: tuple[int, int]) -> Image:
    """Resize an image by area, like :class:`gymnasium.wrappers.AtariPreprocessing`."""
    cv2 = load("cv2")
    height, width = size
    scaled: Image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return scaled.reshape(height, width, -1)


class BandedResizer:
    """Resizer for images of one shape that updates only the bands that changed."""

    def __init__(self, shape: tuple[int, ...], size: tuple[int, int] | None) -> None:
        self._cv2 = load("cv2")
        self._size = size
        height, width = size or shape[:2]
        # A band is the smallest number of rows that maps to a whole number of output rows.
        bands = math.gcd(shape[0], height)
        self.rows, self._rows_out = shape[0] // bands, height // bands
        # OpenCV derives pixel weights from the ratio of the sizes. Only if it is a binary fraction
        # (210 to 84 rows: 2.5) do bands give the same result as the whole image.
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


class _FrameBuffer:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.numbers = np.empty(shape[:2], np.uint8)
        self.words = self.numbers.reshape(-1).view(np.uint64)
        self.pixels = np.empty(shape, np.uint8)


class _Buffers:
    """Scratch memory of one step: its frames, and a mask of differences."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.noted, self.first, self.last = (_FrameBuffer(shape) for _ in range(3))
        self.differs = np.empty(len(self.last.words), np.bool_)


class _Scratch(threading.local):
    """Buffers shared by all games of a thread, so that they stay in the CPU cache."""

    def __init__(self) -> None:
        self.of = functools.cache(_Buffers)


_scratch = _Scratch()


class _Palette:
    """The known part of the table that maps color numbers to grayscale or RGB."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        table = self._color_table = np.full((_COLORS, *channels), ord(_UNKNOWN), np.uint8)
        self._is_known = np.zeros(_COLORS, np.bool_)
        lut = load("cv2").LUT
        self.paint: Callable[[Image, Image], Any] = lambda image, out: lut(image, table, out)
        if channels:
            self.paint = lambda image, out: table.take(image, axis=0, out=out, mode="clip")

    def all_known(self, numbers: Image) -> bool:
        return bool(self._is_known[numbers].all())

    def learn(self, numbers: Image, pixels: Image) -> None:
        self._color_table[numbers] = pixels
        self._is_known[numbers] = True

    def black_out_unknown(self, numbers: Image, pixels: Image) -> None:
        pixels[~self._is_known[numbers]] = 0


class Screen:
    """The screen of one emulator in grayscale or RGB, from the last two frames of each step."""

    def __init__(self, ale: Any, *, rgb: bool, pools: bool, size: tuple[int, int] | None) -> None:
        height, width = ale.getScreenDims()
        channels = (3,) if rgb else ()
        self._shape = (height, width, *channels)
        self._number = ale.getScreen
        self._convert = ale.getScreenRGB if rgb else ale.getScreenGrayscale
        self._pools = pools
        self._palette = _Palette(channels)
        self._resizer = BandedResizer(self._shape, size)
        self._rows = self._resizer.rows
        self._band_words = self._rows * width // 8
        # The previous step's last frame. Each step records the bands in which its frames differ
        # from this frame. A band of the image is unchanged if neither this step nor the previous
        # step recorded it.
        self._before = np.empty((height, width), np.uint8)
        self._words_before = self._before.reshape(-1).view(np.uint64)
        self._differed_before: list[Run] = [(0, height // self._rows)]
        self._changed_first: list[Run] = []
        self._not_resized: list[Run] = []
        self.image: Image = np.zeros(self._shape, np.uint8)

    def __env_state__(self) -> None:
        """Return no state: after loading, the next image is converted completely."""

    def __set_env_state__(self, state: None) -> None:
        """Mark every row as changed."""
        self._before[...] = _UNUSED_NUMBER
        self._differed_before = [(0, len(self._before) // self._rows)]

    def note(self) -> None:
        """Keep the screen in case the game ends with the next frame."""
        if self._pools:
            self._number(_scratch.of(self._shape).noted.numbers)

    def take_first(self) -> None:
        """Capture the second-to-last frame of a step."""
        if not self._pools:
            return
        buffers = _scratch.of(self._shape)
        first = buffers.first
        self._number(first.numbers)
        self._changed_first = runs = self._differing(first, buffers)
        self._paint_bands(first, runs)  # the palette learns new colors only from the visible frame

    def take_last(self, *, alone: bool) -> None:
        """Capture the last frame of a step."""
        buffers = _scratch.of(self._shape)
        last = buffers.last
        self._number(last.numbers)
        runs = self._differing(last, buffers)
        first, differing = None, runs
        if self._pools and not alone:
            first, differing = buffers.first, _union(runs, self._changed_first)
        changed = _union(differing, self._differed_before)
        self._not_resized = _union(changed, self._not_resized)
        self._differed_before = changed  # until the image is complete, in case of an interrupt
        self._paint_bands(last, changed)
        for begin, end in changed:
            rows = slice(begin * self._rows, end * self._rows)
            if first is None:
                self.image[rows] = last.pixels[rows]
            else:
                self._palette.paint(first.numbers[rows], first.pixels[rows])
                np.maximum(first.pixels[rows], last.pixels[rows], out=self.image[rows])
        for begin, end in runs:
            rows = slice(begin * self._rows, end * self._rows)
            self._before[rows] = last.numbers[rows]
        self._differed_before = differing

    def take_end(self, *, alone: bool) -> None:
        """Capture the frame in which the game ended before the end of the step."""
        if alone or not self._pools:
            self.take_last(alone=True)
            return
        # The palette contains the colors of captured frames. A noted frame may contain unknown
        # colors, which can no longer be learned.
        buffers = _scratch.of(self._shape)
        noted, buffers.first, buffers.noted = buffers.noted, buffers.noted, buffers.first
        self._changed_first = self._differing(noted, buffers)
        self.take_last(alone=False)
        if not self._palette.all_known(noted.numbers):
            self._palette.paint(noted.numbers, noted.pixels)
            self._palette.black_out_unknown(noted.numbers, noted.pixels)
            self._convert(self.image)
            np.maximum(noted.pixels, self.image, out=self.image)

    def frame(self) -> Image:
        """Return the resized image, a new array of shape ``(height, width, channels)``."""
        frame = self._resizer(self.image, self._not_resized)
        self._not_resized = []
        return frame

    def _differing(self, frame: _FrameBuffer, buffers: _Buffers) -> list[Run]:
        """Return the runs of bands in which a frame differs from the previous step's last frame."""
        np.not_equal(frame.words, self._words_before, out=buffers.differs)
        differs, words = buffers.differs.tobytes(), self._band_words
        runs = []
        place = differs.find(1)
        while place >= 0:
            begin = last = place // words
            while place >= 0 and (band := place // words) - last <= _MAX_GAP:
                last = band
                place = differs.find(1, (band + 1) * words)
            runs.append((begin, last + 1))
        return runs

    def _paint_bands(self, frame: _FrameBuffer, runs: list[Run]) -> None:
        """Convert some bands of a frame to pixels; the emulator must still show this frame."""
        for begin, end in runs:
            rows = slice(begin * self._rows, end * self._rows)
            numbers, pixels = frame.numbers[rows], frame.pixels[rows]
            self._palette.paint(numbers, pixels)
            if _UNKNOWN in pixels.tobytes() and not self._palette.all_known(numbers):
                self._convert(frame.pixels)
                self._palette.learn(frame.numbers, frame.pixels)


def _union(some: list[Run], others: list[Run]) -> list[Run]:
    """Return the runs of all bands that are in either list."""
    if some == others or not others:
        return some
    runs: list[Run] = []
    for run in sorted(some + others):
        if runs and run[0] <= runs[-1][1] + _MAX_GAP:
            runs[-1] = runs[-1][0], max(runs[-1][1], run[1])
        else:
            runs.append(run)
    return runs


class RamView:
    """The memory of one emulator, with the interface of :class:`Screen`."""

    def __init__(self, ale: Any) -> None:
        self._ram = ale.getRAM
        self.image: Image = self._ram()

    def __env_state__(self) -> Image:
        return self.image

    def __set_env_state__(self, state: Image) -> None:
        self.image = state

    def note(self) -> None:
        """Do nothing: RAM is not max-pooled over two frames."""

    def take_last(self, *, alone: bool) -> None:
        self.image = self._ram()

    take_first, take_end = note, take_last

    def frame(self) -> Image:
        return self.image.copy()
