"""The instants at which tests interrupt code are those at which Python itself would."""

from __future__ import annotations

import sys

from interrupts import Instant


def fails() -> None:
    raise ValueError("as told")


def handled() -> str:
    try:
        fails()
    except ValueError as error:
        text = str(error)
    return text


def test_no_instant_leaves_an_exception_behind() -> None:
    number, came = 0, True
    while came:
        with Instant(number, [__file__]) as instant:
            handled()
        assert sys.exc_info() == (None, None, None), instant.place
        came, number = instant.came, number + 1
    assert number > 4
