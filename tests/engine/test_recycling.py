"""Copies of big arrays take the memory of those nobody holds any more, and of no others."""

from __future__ import annotations

import warnings
import weakref
from functools import partial

import numpy as np
import pytest
from holders import HOLDERS

from xuance_envs.engine.data import buffer_pool
from xuance_envs.engine.data.buffer_pool import make_allocator, make_copiers

BIG = buffer_pool.MIN_POOLED_BYTES

needs_refcounts = pytest.mark.skipif(
    not buffer_pool.HAS_REFCOUNTS, reason="without the GIL, no memory is used again"
)


@pytest.fixture
def array():
    return np.arange(4 * BIG, dtype=np.uint32).astype(np.uint8).reshape(4, BIG // 4, 4)


def address(array):
    return array.__array_interface__["data"][0]


def copy_function(array, rows):
    """What copies all of an array, or some rows."""
    copy_all, copy_rows = make_copiers(array)
    return copy_all if rows is None else partial(copy_rows, rows)


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("rows", [None, np.array([1, 3])], ids=["all", "some"])
def test_what_is_held_stays_as_it_is(array, hold, rows):
    copy_of = copy_function(array, rows)
    held, expected = [], []
    for _ in range(12):
        array += 1
        copy = copy_of()
        expected.append(address(copy))
        held.append(hold(copy))
        del copy
    assert len(set(expected)) == 12


def test_it_equals_the_array_and_may_be_written_to(array):
    copy_all, copy_rows = make_copiers(array)
    for _ in range(5):
        array += 1
        copy = copy_all()
        assert copy.dtype == array.dtype
        assert copy.flags.writeable
        assert copy.flags.c_contiguous
        assert not np.shares_memory(copy, array)
        np.testing.assert_array_equal(copy, array)
        copy[:] = 0
        np.testing.assert_array_equal(copy_rows(np.array([2, 0])), array[[2, 0]])


@needs_refcounts
def test_what_was_done_to_a_copy_does_not_show_in_the_next(array):
    copy_all, _ = make_copiers(array)
    copy = copy_all()
    before = address(copy)
    copy.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5, which still does it
        copy.shape = (-1,)
    del copy
    copy = copy_all()
    assert address(copy) == before
    assert copy.shape == array.shape
    assert copy.flags.writeable


@needs_refcounts
@pytest.mark.parametrize("rows", [None, np.array([1, 3])], ids=["all", "some"])
def test_memory_that_nobody_holds_is_used_again(array, rows):
    copy_of = copy_function(array, rows)
    last = None
    places = set()
    for _ in range(50):
        copy = copy_of()
        places.add(address(copy))
        last = copy  # as in a loop that has the observations before and after a step
    assert last is not None
    assert len(places) == 2


@needs_refcounts
def test_it_keeps_no_more_than_a_few(array):
    copy_all, _ = make_copiers(array)
    held = [copy_all() for _ in range(20)]
    places = {address(copy) for copy in held}
    buffers = [weakref.ref(copy.base) for copy in held]
    held.clear()
    again = {address(copy_all()) for _ in range(20)}
    assert again < places
    assert sum(buffer() is not None for buffer in buffers) <= 6


@needs_refcounts
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_what_is_made_is_in_memory_that_nobody_holds(hold):
    make = make_allocator((4, BIG), np.float32, 2)
    held, places = [], []
    for number in range(5):
        array = make()
        assert (array.shape, array.dtype) == ((4, BIG), np.float32)
        array[...] = number
        places.append(address(array))
        held.append(hold(array))
        del array
    assert len(set(places)) == 5
    held.clear()
    assert [address(make()) for _ in range(3)] == [places[3]] * 3


@pytest.mark.parametrize("rows", [None, np.array([1])], ids=["all", "some"])
def test_small_arrays_are_copied_plainly(rows):
    array = np.arange(8.0).reshape(2, 4)
    copy = copy_function(array, rows)()
    assert not np.shares_memory(copy, array)
    np.testing.assert_array_equal(copy, array if rows is None else array[rows])


def test_without_a_count_of_references_nothing_is_used_again(array, monkeypatch):
    monkeypatch.setattr(buffer_pool, "HAS_REFCOUNTS", False)
    copy_all, _ = make_copiers(array)
    copies = [copy_all() for _ in range(3)]
    assert all(copy.flags.owndata for copy in copies)
