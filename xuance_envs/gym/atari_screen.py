"""What an Atari game shows, taken from the emulator as cheaply as can be.

The emulator has its screen as colour numbers. To turn all of them into shades of grey, twice a
step, and to scale the result takes a third as long as emulating the step does. But from one step to
the next most of a screen stays as it is, so only bands of rows that changed are turned and scaled
anew. What a number looks like is learned from the emulator, when a new one turns up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xuance_envs.gym.atari_games import load_cv2
from xuance_envs.gym.atari_resize import BandedResizer, Run

__all__ = ["RamView", "Screen"]

Image = NDArray[np.uint8]

_COLOURS = 256

_UNKNOWN = b"\xff"
"""How numbers look that have not been seen; colours that do look like it take a second look."""

_BRIDGE = 4
"""So many unchanged bands between two changed ones cost less than another run would."""


class _Passing:
    """A screen's colour numbers in passing, and as words, which compare faster."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.numbers = np.empty(shape, np.uint8)
        self.words = self.numbers.reshape(-1).view(np.uint64)


class _Scratch(threading.local):
    """Buffers for one step, which stay in the cache because all games of a thread share them."""

    def __init__(self) -> None:
        self.by_shape: dict[tuple[int, ...], tuple[_Passing, _Passing]] = {}

    def of(self, shape: tuple[int, ...]) -> tuple[_Passing, _Passing]:
        """Return the buffer for frames that are taken, and the one for those that are noted."""
        try:
            return self.by_shape[shape]
        except KeyError:
            self.by_shape[shape] = _Passing(shape), _Passing(shape)
            return self.by_shape[shape]


_scratch = _Scratch()


class _Colours:
    """What colour numbers look like, in grey or RGB, as far as they have been seen.

    Args:
        channels: The shape of one look: ``()`` for grey, ``(3,)`` for RGB.

    Attributes:
        paint: Writes what some numbers look like into an array.
    """

    def __init__(self, channels: tuple[int, ...]) -> None:
        looks = self._looks = np.full((_COLOURS, *channels), ord(_UNKNOWN), np.uint8)
        self._is_known = np.zeros(_COLOURS, np.bool_)
        lut = load_cv2().LUT
        self.paint: Callable[[Image, Image], Any] = lambda numbers, look: lut(numbers, looks, look)
        if channels:
            self.paint = lambda numbers, look: looks.take(numbers, axis=0, out=look, mode="clip")

    def know(self, numbers: Image) -> bool:
        """Tell whether all of the numbers have been seen."""
        return bool(self._is_known[numbers].all())

    def learn(self, numbers: Image, look: Image) -> None:
        """Take note of what a screen's numbers look like."""
        self._looks[numbers] = look
        self._is_known[numbers] = True

    def black_out_unknown(self, numbers: Image, look: Image) -> None:
        """Paint the numbers black that were never seen."""
        look[~self._is_known[numbers]] = 0


class _Picture:
    """One frame: its colour numbers, and what they look like.

    Args:
        shape: Of the look.
        rows: How many rows make a band.
        colours: What numbers look like.

    Attributes:
        look: What it looks like, in an array of this shape.
    """

    def __init__(self, shape: tuple[int, ...], rows: int, colours: _Colours) -> None:
        self.look = np.empty(shape, np.uint8)
        self._own = _Passing(shape[:2])
        self._rows = rows
        self._colours = colours
        self._band_words = len(self._own.words) * rows // shape[0]
        self._differs = np.ones(len(self._own.words), np.bool_)
        self._is_blank = True

    def follow(self, frame: _Passing, convert: Callable[[Image], Any] | None) -> list[Run]:
        """Take on a frame.

        Args:
            frame: Its colour numbers.
            convert: Writes what the frame looks like; None where that cannot be had any more.

        Returns:
            Where it differs from the one before: first bands, and bands after the last.
        """
        if self._is_blank:
            self._is_blank = False
        else:
            np.not_equal(frame.words, self._own.words, out=self._differs)
        runs = self._runs()
        numbers, own, look, rows = frame.numbers, self._own.numbers, self.look, self._rows
        for first, last in runs:
            low, high = first * rows, last * rows
            new, new_look = numbers[low:high], look[low:high]
            own[low:high] = new
            self._colours.paint(new, new_look)
            if _UNKNOWN in new_look.tobytes() and not self._colours.know(new):
                self._meet(numbers, convert, low, high)
        return runs

    def _meet(
        self, numbers: Image, convert: Callable[[Image], Any] | None, low: int, high: int
    ) -> None:
        """Paint some rows in which there are colours that have not been seen."""
        new, new_look = numbers[low:high], self.look[low:high]
        if convert is None:
            self._colours.black_out_unknown(new, new_look)
            return
        whole = np.empty_like(self.look)
        convert(whole)
        self._colours.learn(numbers, whole)
        new_look[...] = whole[low:high]

    def _runs(self) -> list[Run]:
        differs, words = self._differs.tobytes(), self._band_words
        runs = []
        place = differs.find(1)
        while place >= 0:
            first = last = place // words
            while place >= 0 and (band := place // words) - last <= _BRIDGE:
                last = band
                place = differs.find(1, (band + 1) * words)
            runs.append((first, last + 1))
        return runs


class Screen:
    """The screen of one emulator, in shades of grey or in colour.

    Of the frames of a step only the last two are looked at: :meth:`take_first` and
    :meth:`take_last`. The others are noted (:meth:`note`): where the game ends before the step
    does, :meth:`take_end` pools the last frame with the one noted.

    Args:
        ale: The emulator.
        rgb: Whether frames have three channels, otherwise they are ``(height, width)`` in grey.
        pools: Whether the image is the pixel-wise maximum of two frames where there are two,
            otherwise it is the last one alone.
        size: Height and width to scale to, None for the screen's own.

    Attributes:
        image: The screen after the step, pooled, not scaled.
    """

    def __init__(self, ale: Any, *, rgb: bool, pools: bool, size: tuple[int, int] | None) -> None:
        height, width = ale.getScreenDims()
        channels = (3,) if rgb else ()
        shape = (height, width, *channels)
        self._resizer = BandedResizer(shape, size)
        rows = self._resizer.rows
        self._everywhere = [(0, height // rows)]
        self._rows = rows
        self._pools = pools
        self._number = ale.getScreen
        self._convert = ale.getScreenRGB if rgb else ale.getScreenGrayscale
        self._screen_shape = (height, width)
        colours = _Colours(channels)
        self._first = _Picture(shape, rows, colours)
        self._last = _Picture(shape, rows, colours)
        self._pooled = np.empty(shape, np.uint8)
        self._changed_first: list[Run] = []
        self._changed = self._everywhere
        self._was_alone = True
        self.image: Image = self._pooled

    def note(self) -> None:
        """Keep the screen, in case the game ends with the next frame."""
        if self._pools:
            self._number(_scratch.of(self._screen_shape)[1].numbers)

    def take_first(self) -> None:
        """Take the frame before the last of a step."""
        if self._pools:
            self._changed_first = self._first.follow(self._taken(), self._convert)

    def take_last(self, *, alone: bool) -> None:
        """Take the last frame of a step.

        Args:
            alone: Whether there was no other frame to pool it with.
        """
        changed = self._last.follow(self._taken(), self._convert)
        if alone or not self._pools:
            self.image = self._last.look
            self._changed = changed if not self._pools else self._everywhere
            self._was_alone = True
        else:
            self._pool(changed)

    def take_end(self, *, alone: bool) -> None:
        """Take the frame that the game ended with, earlier than the step would.

        Args:
            alone: Whether it is the first of the step.
        """
        if alone or not self._pools:
            self.take_last(alone=True)
            return
        changed = self._last.follow(self._taken(), self._convert)
        # All that was ever taken has shown what colours look like. One that was only ever noted,
        # should there be such, cannot be asked for any more.
        noted = _scratch.of(self._screen_shape)[1]
        self._changed_first = self._first.follow(noted, None)
        self._pool(changed)

    def frame(self) -> Image:
        """Return the image, scaled: a new array of shape ``(height, width, channels)``."""
        return self._resizer(self.image, self._changed)

    def _taken(self) -> _Passing:
        taken = _scratch.of(self._screen_shape)[0]
        self._number(taken.numbers)
        return taken

    def _pool(self, changed_last: list[Run]) -> None:
        if self._was_alone:
            self._was_alone = False
            self._changed = self._everywhere
        else:
            self._changed = _union(self._changed_first, changed_last)
        first, last, pooled, rows = self._first.look, self._last.look, self._pooled, self._rows
        for begin, end in self._changed:
            low, high = begin * rows, end * rows
            np.maximum(first[low:high], last[low:high], out=pooled[low:high])
        self.image = pooled


def _union(some: list[Run], others: list[Run]) -> list[Run]:
    """Return the runs of all bands that are in either."""
    if some == others:
        return some
    runs: list[Run] = []
    for run in sorted(some + others):
        if runs and run[0] <= runs[-1][1] + _BRIDGE:
            runs[-1] = runs[-1][0], max(runs[-1][1], run[1])
        else:
            runs.append(run)
    return runs


class RamView:
    """The memory of one emulator, with the methods of :class:`Screen`.

    Args:
        ale: The emulator.

    Attributes:
        image: The memory after the step.
    """

    def __init__(self, ale: Any) -> None:
        self._ram = ale.getRAM
        self.image: Image = self._ram()

    def note(self) -> None:
        """Do nothing: memory is not pooled."""

    def take_first(self) -> None:
        """Do nothing: memory is not pooled."""

    def take_last(self, *, alone: bool) -> None:
        """Take the memory after the last frame of a step."""
        self.image = self._ram()

    def take_end(self, *, alone: bool) -> None:
        """Take the memory at the end of a game."""
        self.image = self._ram()

    def frame(self) -> Image:
        """Return a copy of the memory, of shape ``(128,)``."""
        return self.image.copy()
