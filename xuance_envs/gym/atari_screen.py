"""What an Atari game shows, taken from the emulator into buffers that are used again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RamView", "Screen"]

Image = NDArray[np.uint8]

_COLOURS = 256


class Screen:
    """The screen of one emulator, in shades of grey or in colour.

    Of the frames of a step only the last two are converted to grey or RGB: :meth:`take_first` and
    :meth:`take_last`. The others are noted (:meth:`note`), a plain copy of colour numbers: where
    the game ends before the step does, :meth:`take_end` pools the last frame with the one noted.

    Args:
        ale: The emulator.
        rgb: Whether frames have three channels, otherwise they are ``(height, width)`` in grey.
        pools: Whether what is returned is the pixel-wise maximum of two frames where there are two,
            otherwise the last one alone.

    Attributes:
        shape: Of one frame.
    """

    def __init__(self, ale: Any, *, rgb: bool, pools: bool) -> None:
        height, width = ale.getScreenDims()
        self.shape: tuple[int, ...] = (height, width, 3) if rgb else (height, width)
        self._pools = pools
        self._convert = ale.getScreenRGB if rgb else ale.getScreenGrayscale
        self._number = ale.getScreen
        self._first = np.empty(self.shape, np.uint8)
        self._last = np.empty(self.shape, np.uint8)
        self._given = np.empty(self.shape, np.uint8)
        self._given_before = np.empty(self.shape, np.uint8)
        self._noted = np.empty((height, width), np.uint8)
        self._last_numbers = np.empty((height, width), np.uint8)
        # What each colour number looks like, as far as it has been seen.
        self._table = np.empty((_COLOURS, *self.shape[2:]), np.uint8)
        self._seen = np.zeros(_COLOURS, np.bool_)

    def note(self) -> None:
        """Keep the screen, in case the game ends with the next frame."""
        if self._pools:
            self._number(self._noted)

    def take_first(self) -> None:
        """Take the frame before the last of a step."""
        if self._pools:
            self._convert(self._first)

    def take_last(self, *, alone: bool) -> Image:
        """Take the last frame of a step.

        Args:
            alone: Whether there was no other frame to pool it with.

        Returns:
            A buffer that stays as it is until the second call from now.
        """
        self._given, self._given_before = self._given_before, self._given
        self._convert(self._last)
        if self._pools:
            self._number(self._last_numbers)
            if not alone:
                return np.maximum(self._first, self._last, out=self._given)
        np.copyto(self._given, self._last)
        return self._given

    def take_end(self, *, alone: bool) -> Image:
        """Take the frame that the game ended with, earlier than the step would.

        Args:
            alone: Whether it is the first of the step.

        Returns:
            As :meth:`take_last`.
        """
        if alone or not self._pools:
            return self.take_last(alone=True)
        # The frame that was noted lies between the last one taken and this one, which show what its
        # colours look like. One that neither they nor others before showed would be black.
        self._learn()
        ended = self.take_last(alone=True)
        self._learn()
        np.copyto(self._first, self._table[self._noted])
        self._first[~self._seen[self._noted]] = 0
        return np.maximum(self._first, self._last, out=ended)

    def _learn(self) -> None:
        self._table[self._last_numbers] = self._last
        self._seen[self._last_numbers] = True


class RamView:
    """The memory of one emulator, with the methods of :class:`Screen`.

    Args:
        ale: The emulator.

    Attributes:
        shape: Of one frame.
    """

    def __init__(self, ale: Any) -> None:
        self.shape: tuple[int, ...] = (ale.getRAMSize(),)
        self._ram = ale.getRAM

    def note(self) -> None:
        """Do nothing: memory is not pooled."""

    def take_first(self) -> None:
        """Do nothing: memory is not pooled."""

    def take_last(self, *, alone: bool) -> Image:
        """Return a copy of the memory."""
        ram: Image = self._ram()
        return ram

    def take_end(self, *, alone: bool) -> Image:
        """Return a copy of the memory."""
        return self.take_last(alone=alone)
