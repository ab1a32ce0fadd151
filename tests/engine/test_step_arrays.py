"""The arrays of a step: laid out the same wherever they are, and faithful to any space."""

from __future__ import annotations

import mmap
from itertools import chain

import numpy as np
import pytest
from any_space import any_space, array_space, samples
from comparing import assert_same, batch_of, in_form, row
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from xuance_envs.engine.data.space_layout import StepSpaces
from xuance_envs.engine.data.step_arrays import StepArrays

SPACE = spaces.Dict(
    image=spaces.Box(0, 255, (3, 5), np.uint8),
    flag=spaces.Box(0, 1, (), np.bool_),
    number=spaces.Discrete(9),
    word=spaces.Text(4),
    nothing=spaces.Box(0, 1, (0,)),
    half=spaces.Box(0, 1, (3,), np.float16),
)
ACTIONS = spaces.MultiBinary(5)


def arrays_of(arrays):
    """Every array there is, in a fixed order."""
    rows = arrays.observations, arrays.reset_observations, arrays.actions
    numbers = arrays.infos, arrays.reset_infos
    return [
        *(part for part in chain(*(each.parts for each in rows)) if isinstance(part, np.ndarray)),
        *(arrays.rewards, arrays.terminated, arrays.truncated),
        *chain(*((each.cells, each.kinds) for each in numbers)),
    ]


def address(array):
    return array.__array_interface__["data"][0]


def on_shared_memory(num_envs):
    """The arrays as the caller sees them, and as a worker does: the same memory mapped twice."""
    size = StepArrays.nbytes(StepSpaces(SPACE, ACTIONS), num_envs)
    memory = mmap.mmap(-1, size)
    mine = StepArrays.allocate(StepSpaces(SPACE, ACTIONS), num_envs, memory)
    return mine, StepArrays.allocate(StepSpaces(SPACE, ACTIONS), num_envs, memoryview(memory))


def test_there_is_an_array_for_everything_but_objects():
    arrays = StepArrays.allocate(StepSpaces(SPACE, ACTIONS), 7)
    expected = {
        "image": ((7, 3, 5), np.uint8),
        "flag": ((7,), np.bool_),
        "number": ((7,), np.int64),
        "nothing": ((7, 0), np.float32),
        "half": ((7, 3), np.float16),
    }
    for rows in (arrays.observations, arrays.reset_observations):
        batch = rows.view()
        assert batch.pop("word") == (None,) * 7
        assert {key: (array.shape, array.dtype) for key, array in batch.items()} == expected
    actions = arrays.actions.view()
    assert (actions.shape, actions.dtype) == ((7, 5), np.int8)
    assert (arrays.rewards.shape, arrays.rewards.dtype) == ((7,), np.float64)
    for flags in (arrays.terminated, arrays.truncated):
        assert (flags.shape, flags.dtype) == ((7,), np.bool_)


def test_everything_is_zero_at_first():
    assert not any(
        array.any() for array in arrays_of(StepArrays.allocate(StepSpaces(SPACE, ACTIONS), 3))
    )


def test_no_two_arrays_overlap_and_none_shares_a_cache_line():
    arrays = [
        array
        for array in arrays_of(StepArrays.allocate(StepSpaces(SPACE, ACTIONS), 7))
        if array.size
    ]
    base = min(map(address, arrays))
    lines = [
        set(
            range(
                (address(array) - base) // 64, (address(array) - base + array.nbytes - 1) // 64 + 1
            )
        )
        for array in arrays
    ]
    assert all((address(array) - base) % 64 == 0 for array in arrays)
    assert sum(map(len, lines)) == len(set().union(*lines))


def test_the_size_is_enough_and_no_more():
    size = StepArrays.nbytes(StepSpaces(SPACE, ACTIONS), 7)
    StepArrays.allocate(StepSpaces(SPACE, ACTIONS), 7, bytearray(size))
    with pytest.raises(ValueError, match="buffer"):
        StepArrays.allocate(StepSpaces(SPACE, ACTIONS), 7, bytearray(size - 1))


def test_arrays_on_the_same_memory_are_the_same_wherever_they_are_made():
    mine, theirs = on_shared_memory(7)
    for number, (one, other) in enumerate(zip(arrays_of(mine), arrays_of(theirs), strict=True)):
        one[...] = number % 2 or 1
        assert_same(other, one)
    assert all(array.any() for array in arrays_of(theirs) if array.size)


def test_a_slice_is_the_same_arrays_for_some_environments():
    mine, theirs = on_shared_memory(7)
    part = theirs.slice(2, 5)
    for array in arrays_of(part):
        array[...] = 1
    for array in arrays_of(mine):
        if not array.size:
            continue
        by_env = array.T if len(array) != 7 else array.reshape(7, -1)
        assert [bool(rows.all()) for rows in by_env] == [i in range(2, 5) for i in range(7)]
        assert [bool(rows.any()) for rows in by_env] == [i in range(2, 5) for i in range(7)]


def test_a_space_of_objects_only_takes_no_memory_of_its_own():
    text = spaces.Text(4)
    assert StepArrays.nbytes(StepSpaces(text, text), 3) < StepArrays.nbytes(
        StepSpaces(text, ACTIONS), 3
    )


@given(any_space, st.integers(0, 1000))
def test_observations_are_read_as_they_were_written(space, seed):
    storage = StepArrays.allocate(StepSpaces(space, ACTIONS), 4).observations
    values = samples(space, 4, seed)
    for place, value in zip(
        [storage.row(i, lambda value: value, strict=False) for i in range(4)], values, strict=True
    ):
        place[:] = value
    for batch in (storage.copy(), storage.copy_writable(), storage.view()):
        for i, value in enumerate(values):
            assert_same(row(space, batch, i), in_form(space, value))
    taken = storage.take(np.array([3, 1]))
    for place, i in enumerate((3, 1)):
        assert_same(in_form(space, taken.value(place)), in_form(space, values[i]))


@given(any_space, st.integers(0, 1000), st.booleans())
def test_a_batch_is_stored_in_whatever_form_it_comes(space, seed, batched):
    storage = StepArrays.allocate(StepSpaces(ACTIONS, space), 4).actions
    values = samples(space, 4, seed)
    storage.put(batch_of(space, values) if batched else values, slice(None), 4)
    for i, value in enumerate(values):
        assert_same(row(space, storage.view(), i), in_form(space, value))


@given(array_space, st.integers(0, 1000))
def test_copies_share_no_memory_and_views_cannot_be_written_to(space, seed):
    storage = StepArrays.allocate(StepSpaces(space, ACTIONS), 4).observations
    for place, value in zip(
        [storage.row(i, lambda value: value, strict=False) for i in range(4)],
        samples(space, 4, seed),
        strict=True,
    ):
        place[:] = value
    layout = storage.layout
    for mine, one, other, view in zip(
        storage.parts,
        layout.flatten(storage.copy()),
        layout.flatten(storage.copy_writable()),
        layout.flatten(storage.view()),
        strict=True,
    ):
        assert one.flags.writeable
        assert other.flags.writeable
        assert not view.flags.writeable
        assert not np.shares_memory(mine, one)
        assert not np.shares_memory(mine, other)
        assert not np.shares_memory(one, other)
        assert not mine.size or np.shares_memory(mine, view)


def test_nothing_is_stored_unless_all_of_it_fits():
    space = spaces.Tuple((spaces.Discrete(9), spaces.Discrete(9)))
    storage = StepArrays.allocate(StepSpaces(ACTIONS, space), 2).actions
    with pytest.raises(ValueError, match="expected"):
        storage.put(([1, 2], [3, 4.5]), slice(None), 2)
    assert not storage.parts[0].any()
