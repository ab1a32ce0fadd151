"""The way of a frame from the emulator, where it could go wrong unseen."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from interrupts import Instant

pytest.importorskip("cv2")

from xuance_envs.gym import atari_screen
from xuance_envs.gym.atari_screen import BandedResizer, Screen, resize


class FakeEmulator:
    """Shows what it is told to: colour numbers, and looks that follow from them."""

    def __init__(self, shape: tuple[int, int] = (210, 160)) -> None:
        rng = np.random.default_rng(0)
        self.numbers = np.zeros(shape, np.uint8)
        self.looks = rng.integers(0, 256, (256, 3), np.uint8)
        self.conversions = 0

    def getScreenDims(self) -> tuple[int, ...]:  # noqa: N802  # ale-py's name
        return self.numbers.shape

    def getScreen(self, out: Any) -> None:  # noqa: N802
        out[...] = self.numbers

    def getScreenGrayscale(self, out: Any) -> None:  # noqa: N802
        self.conversions += 1
        out[...] = self.grey()

    def getScreenRGB(self, out: Any) -> None:  # noqa: N802
        self.conversions += 1
        out[...] = self.looks[self.numbers]

    def grey(self) -> Any:
        return self.looks[self.numbers, 0]


def change(emulator: FakeEmulator, rng: np.random.Generator) -> None:
    """Draw a few rectangles."""
    height, width = emulator.numbers.shape
    for _ in range(rng.integers(4)):
        row, column = rng.integers(height), rng.integers(width)
        rows, columns = rng.integers(1, 30, size=2)
        emulator.numbers[row : row + rows, column : column + columns] = rng.integers(256)


SHAPES = [
    ((210, 160), (84, 84)),  # in bands of 5 rows
    ((210, 160), (105, 80)),  # of 2
    ((210, 160), (70, 90)),  # of 3, to single rows
    ((250, 160), (100, 84)),  # the taller screen
    ((210, 160), (64, 96)),  # too few bands
    ((210, 160), (60, 60)),  # no binary fraction: 3.5 is, 160 to 60 does not matter
    ((210, 160), (90, 84)),  # 7 to 3
    ((210, 160), (210, 160)),
    ((210, 160), (420, 84)),  # enlarged
    ((210, 160), (84, 200)),
]


@pytest.mark.parametrize("channels", [(), (3,)])
@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_scaling_what_changed_is_scaling_all(
    shape: tuple[int, int], size: tuple[int, int], channels: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    resizer = BandedResizer((*shape, *channels), size)
    bands = shape[0] // resizer.rows
    image = rng.integers(0, 256, (*shape, *channels), np.uint8)
    kept = resizer(image, [(0, bands)])
    first = kept.copy()
    for _ in range(20):
        begin = int(rng.integers(bands))
        end = int(rng.integers(begin, bands)) + 1
        rows = slice(begin * resizer.rows, end * resizer.rows)
        image[rows] = rng.integers(0, 256, image[rows].shape, np.uint8)
        np.testing.assert_array_equal(resizer(image, [(begin, end)]), resize(image, size))
    np.testing.assert_array_equal(kept, first)


@pytest.mark.parametrize("rgb", [False, True])
@pytest.mark.parametrize("size", [None, (84, 84), (64, 96)])
def test_frames_are_pooled_and_scaled_whatever_changes(
    rgb: bool, size: tuple[int, int] | None
) -> None:
    emulator, rng = FakeEmulator(), np.random.default_rng(1)
    screen = Screen(emulator, rgb=rgb, pools=True, size=size)

    def look() -> Any:
        return emulator.looks[emulator.numbers] if rgb else emulator.grey()

    for step in range(150):
        change(emulator, rng)
        if step % 10 == 0:  # a single frame, as after a reset
            screen.take_last(alone=True)
            expected = look()
        else:
            screen.take_first()
            first = look()
            change(emulator, rng)
            screen.take_last(alone=False)
            expected = np.maximum(first, look())
        np.testing.assert_array_equal(screen.image, expected)
        frame = expected if size is None else resize(expected, size)
        np.testing.assert_array_equal(screen.frame().squeeze(), frame.squeeze())


def test_a_game_that_ends_in_a_step_shows_its_last_two_frames() -> None:
    emulator, rng = FakeEmulator(), np.random.default_rng(2)
    screen = Screen(emulator, rgb=False, pools=True, size=(84, 84))
    emulator.numbers[...] = np.arange(160)  # every colour below 160 has been seen
    screen.take_last(alone=True)
    for _ in range(30):
        emulator.numbers[rng.integers(200) :][:20] = rng.integers(160)
        noted = emulator.grey()
        screen.note()
        emulator.numbers[rng.integers(200) :][:20] = rng.integers(160)
        screen.take_end(alone=False)
        np.testing.assert_array_equal(screen.image, np.maximum(noted, emulator.grey()))

    noted_numbers = emulator.numbers.copy()
    emulator.numbers[:50] = 200  # never taken: how it looks cannot be known
    screen.note()
    emulator.numbers[...] = noted_numbers
    screen.take_end(alone=False)
    np.testing.assert_array_equal(screen.image, emulator.grey())


def _show_in_first_frame(emulator: FakeEmulator, screen: Screen, rows: slice) -> Any:
    """Take two frames, the first with an object in these rows; return the resized image."""
    emulator.numbers[...] = 0
    emulator.numbers[rows] = 100
    screen.take_first()
    emulator.numbers[...] = 0
    screen.take_last(alone=False)
    return screen.frame()


def test_an_interrupt_at_any_moment_leaves_no_old_pixels() -> None:
    number, came = 0, True
    while came:
        emulator = FakeEmulator()
        screen = Screen(emulator, rgb=False, pools=True, size=(84, 84))

        _show_in_first_frame(emulator, screen, slice(20))
        _show_in_first_frame(emulator, screen, slice(40, 60))
        with Instant(number, [os.path.dirname(atari_screen.__file__)]) as instant:
            _show_in_first_frame(emulator, screen, slice(150, 170))
        frame = _show_in_first_frame(emulator, screen, slice(0))
        np.testing.assert_array_equal(screen.image, emulator.grey(), instant.place)
        np.testing.assert_array_equal(frame, resize(emulator.grey(), (84, 84)), instant.place)
        number, came = number + 1, instant.came
    assert number > 20


def test_the_emulator_converts_only_what_it_has_not_shown() -> None:
    emulator, rng = FakeEmulator(), np.random.default_rng(3)
    emulator.looks[emulator.looks == 255] = 254  # which would be looked up each time
    screen = Screen(emulator, rgb=False, pools=True, size=(84, 84))
    emulator.numbers[...] = np.arange(160)
    screen.take_last(alone=True)
    seen = emulator.conversions
    for _ in range(20):
        emulator.numbers[rng.integers(200) :][:20] = rng.integers(160)
        screen.take_last(alone=True)
    assert emulator.conversions == seen
    emulator.numbers[100, 100] = 161
    screen.take_last(alone=True)
    assert emulator.conversions == seen + 1


def test_games_in_threads_do_not_share_what_passes() -> None:
    failures: list[BaseException] = []

    def play(seed: int) -> None:
        emulator, rng = FakeEmulator(), np.random.default_rng(seed)
        screen = Screen(emulator, rgb=False, pools=True, size=None)
        try:
            for _ in range(300):
                change(emulator, rng)
                screen.take_first()
                first = emulator.grey()
                change(emulator, rng)
                screen.take_last(alone=False)
                np.testing.assert_array_equal(screen.image, np.maximum(first, emulator.grey()))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
