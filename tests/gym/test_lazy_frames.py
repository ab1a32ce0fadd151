from __future__ import annotations

import gc
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xuance_envs.gym.lazy_frames import LazyFrames

NUMPY_2 = np.lib.NumpyVersion(np.__version__) >= "2.0.0"


@st.composite
def frames_that_fit(draw):
    """Frames of one dtype and, but for the last axis, one shape."""
    leading = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    dtype = draw(st.sampled_from([np.uint8, np.int64, np.float32, np.float64, np.bool_]))
    widths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    return [draw(hnp.arrays(dtype, (*leading, width))) for width in widths]


@given(frames_that_fit())
def test_is_the_concatenation_of_its_frames(frames):
    expected = np.concatenate(frames, axis=-1)
    lazy = LazyFrames(frames)

    assert lazy.shape == expected.shape
    assert lazy.dtype == expected.dtype
    assert lazy.ndim == expected.ndim
    assert len(lazy) == len(expected)
    for array in (np.asarray(lazy), lazy._force(), np.array(lazy)):
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)
    out = np.empty_like(expected)
    lazy.copy_to(out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_images_of_any_number_of_channels(channels):
    frames = np.random.default_rng(0).integers(0, 256, (4, 7, 5, channels), np.uint8)
    lazy = LazyFrames(frames)
    np.testing.assert_array_equal(np.asarray(lazy), np.concatenate(frames, axis=-1))
    np.testing.assert_array_equal(
        np.asarray(lazy, np.float32), np.concatenate(frames, axis=-1).astype(np.float32)
    )


def test_an_index_counts_along_the_last_axis():
    frames = [np.arange(6).reshape(3, 2), np.arange(10, 16).reshape(3, 2)]
    lazy, array = LazyFrames(frames), np.concatenate(frames, axis=-1)
    for index in (0, -1, slice(1, 3), [0, 2]):
        np.testing.assert_array_equal(lazy[index], array[..., index])
    with pytest.raises(IndexError):
        lazy[4]


def test_iterates_over_the_first_axis():
    frames = [np.arange(6).reshape(3, 2), np.arange(10, 16).reshape(3, 2)]
    rows = list(LazyFrames(frames))
    assert len(rows) == 3
    np.testing.assert_array_equal(rows, np.concatenate(frames, axis=-1))


def test_conversion_to_another_dtype():
    lazy = LazyFrames([np.array([1.7, -1.2]), np.array([2.5])])
    array = np.asarray(lazy, dtype=np.int32)
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, np.array([1.7, -1.2, 2.5]).astype(np.int32))


def test_copy_is_always_made_and_cannot_be_refused():
    lazy = LazyFrames([np.zeros(2), np.ones(2)])
    for array in (lazy.__array__(copy=True), lazy.__array__(copy=None), lazy.__array__()):
        array[:] = 7
    np.testing.assert_array_equal(lazy, [0, 0, 1, 1])
    with pytest.raises(ValueError, match="avoid copy"):
        lazy.__array__(copy=False)


@pytest.mark.skipif(not NUMPY_2, reason="NumPy 1 takes copy=False for 'only if needed'")
def test_numpy_2_is_told_that_a_copy_is_needed():
    with pytest.raises(ValueError, match="copy"):
        np.array(LazyFrames([np.zeros(2)]), copy=False)


def test_numpy_functions_take_it():
    first, second = LazyFrames([np.zeros(2), np.ones(2)]), LazyFrames([np.ones(2), np.zeros(2)])
    expected = [[0, 0, 1, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(np.stack([first, second]), expected)
    np.testing.assert_array_equal(np.array([first, second]), expected)
    batch = np.empty((2, 4))
    batch[0], batch[1] = first, second
    np.testing.assert_array_equal(batch, expected)


def test_comparison_is_element_by_element():
    lazy = LazyFrames([np.array([1, 2]), np.array([3])])
    other = LazyFrames([np.array([1]), np.array([0, 3])])
    for equal in (lazy == other, lazy == [1, 0, 3], np.array([1, 0, 3]) == lazy):
        assert equal.dtype == np.bool_
        np.testing.assert_array_equal(equal, [True, False, True])
    np.testing.assert_array_equal(lazy != other, [False, True, False])
    with pytest.raises(TypeError, match="unhashable"):
        hash(lazy)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol):
    lazy = LazyFrames([np.array([1, 2], np.uint8), np.array([3], np.uint8)])
    copy = pickle.loads(pickle.dumps(lazy, protocol))
    assert copy.dtype == np.uint8
    np.testing.assert_array_equal(copy, lazy)


def test_pickle_keeps_frames_shared():
    frames = [np.full((50, 50, 1), i, np.uint8) for i in range(23)]
    observations = [LazyFrames(frames[i : i + 4]) for i in range(20)]
    assert len(pickle.dumps(observations)) < 1.5 * sum(frame.nbytes for frame in frames)


def test_repr_says_what_it_is_without_the_values():
    assert (
        repr(LazyFrames([np.zeros((2, 3, 1))] * 4)) == "LazyFrames(shape=(2, 3, 4), dtype=float64)"
    )


def test_frames_are_shared_and_the_concatenation_is_not_kept():
    frames = [np.zeros((100, 100, 1), np.uint8) for _ in range(4)]
    lazy = LazyFrames(frames)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(10):
            assert np.asarray(lazy).nbytes == 40_000
            lazy._force()
            lazy[0]
        assert tracemalloc.get_traced_memory()[0] < 10_000
        out = np.empty(lazy.shape, lazy.dtype)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        lazy.copy_to(out)
        assert tracemalloc.get_traced_memory()[1] - before < 10_000  # no temporary
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "at least one frame"),
        ([np.float32(1)], "scalar"),
        ([np.zeros((2, 1)), np.zeros((3, 1))], r"\(2, 1\).*frame 1.*\(3, 1\)"),
        ([np.zeros((2, 1)), np.zeros((2, 1)), np.zeros(2)], r"\(2, 1\).*frame 2.*\(2,\)"),
        ([np.zeros(2, np.float32), np.zeros(2, np.float64)], "float32.*frame 1.*float64"),
    ],
)
def test_frames_that_do_not_fit_together_are_refused(frames, message):
    with pytest.raises(ValueError, match=message):
        LazyFrames(frames)


class TestCopyTo:
    def test_writes_into_a_row_of_a_batch_and_nowhere_else(self):
        frames = np.random.default_rng(0).integers(1, 256, (4, 3, 2, 1), np.uint8)
        batch = np.zeros((3, 3, 2, 4), np.uint8)
        LazyFrames(frames).copy_to(batch[1])
        np.testing.assert_array_equal(batch[1], np.concatenate(frames, axis=-1))
        assert not batch[[0, 2]].any()

    @pytest.mark.parametrize("shape", [(4,), (2, 2, 3)])
    def test_casts_within_a_kind(self, shape):
        frames = [np.full(shape, 0.1), np.full(shape, 2.0)]
        out = np.empty((*shape[:-1], 2 * shape[-1]), np.float32)
        LazyFrames(frames).copy_to(out)
        np.testing.assert_array_equal(out, np.concatenate(frames, axis=-1).astype(np.float32))

    @pytest.mark.parametrize("shape", [(4,), (2, 2, 3)])
    def test_refuses_a_cast_to_another_kind_and_writes_nothing(self, shape):
        out = np.full((*shape[:-1], shape[-1]), 9)
        with pytest.raises(TypeError, match="same_kind"):
            LazyFrames([np.ones(shape)]).copy_to(out)
        assert (out == 9).all()

    def test_refuses_another_shape(self):
        with pytest.raises(ValueError, match=r"expected.*\(3, 2\), got \(2, 3\)"):
            LazyFrames([np.zeros((3, 1)), np.zeros((3, 1))]).copy_to(np.zeros((2, 3)))

    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])  # OpenCV writes only bytes
    @pytest.mark.parametrize("width", [1, 2])
    def test_refuses_a_read_only_array(self, dtype, width):
        pytest.importorskip("cv2")
        out = np.zeros((3, 4, 2 * width), dtype)
        out.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            LazyFrames([np.ones((3, 4, width), np.uint8)] * 2).copy_to(out)


class TestFromStack:
    @given(
        hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.sampled_from([0, 4, 8, 12]))),
        st.sampled_from([1, 2, 4]),
    )
    def test_is_the_same_observation(self, stack, num_stack):
        np.testing.assert_array_equal(LazyFrames.from_stack(stack, num_stack), stack)

    @given(st.lists(st.integers(0, 3), min_size=5, max_size=20), st.integers(1, 3))
    def test_is_the_same_observation_whatever_is_shared(self, values, width):
        """Over a moving window, with frames that repeat."""
        previous = None
        for start in range(len(values) - 3):
            stack = np.repeat(np.array(values[start : start + 4], np.float32), width)
            previous = LazyFrames.from_stack(stack, 4, previous)
            np.testing.assert_array_equal(previous, stack)

    @pytest.mark.parametrize("channels", [1, 3])
    def test_a_buffer_of_observations_takes_a_quarter_of_the_memory(self, channels):
        count, rng = 300, np.random.default_rng(0)
        frames = rng.integers(0, 256, (count + 3, 40, 40, channels), np.uint8)
        gc.collect()
        tracemalloc.start()
        try:
            buffer, previous = [], None
            for i in range(count):
                stack = np.concatenate(frames[i : i + 4], axis=-1)
                previous = LazyFrames.from_stack(stack, 4, previous)
                buffer.append(previous)
            del stack
            used = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert used < 0.35 * count * 40 * 40 * 4 * channels
        np.testing.assert_array_equal(buffer[100], np.concatenate(frames[100:104], axis=-1))

    def test_a_first_observation_takes_the_memory_of_one_frame(self):
        frame = np.random.default_rng(0).integers(0, 256, (100, 100, 1), np.uint8)
        stack = np.concatenate([frame] * 4, axis=-1)
        tracemalloc.start()
        try:
            observation = LazyFrames.from_stack(stack, 4)
            assert tracemalloc.get_traced_memory()[0] < 1.5 * frame.nbytes
        finally:
            tracemalloc.stop()
        np.testing.assert_array_equal(observation, stack)

    def test_later_changes_of_the_stack_do_not_show(self):
        stack = np.arange(4.0)
        first = LazyFrames.from_stack(stack, 4)
        stack[:] = [1, 2, 3, 4]
        second = LazyFrames.from_stack(stack, 4, first)
        stack[:] = -1
        np.testing.assert_array_equal(first, [0, 1, 2, 3])
        np.testing.assert_array_equal(second, [1, 2, 3, 4])

    def test_equal_numbers_with_other_bits_are_not_shared(self):
        first = LazyFrames.from_stack(np.array([1.0, 0.0]), 2)
        second = LazyFrames.from_stack(np.array([-0.0, np.nan]), 2, first)
        assert np.signbit(np.asarray(second)[0])

    @pytest.mark.parametrize(
        "previous",
        [np.zeros((2, 4), np.uint8), np.zeros((4, 2)), np.zeros((2, 8)), np.zeros(4)],
        ids=["dtype", "shape", "width", "ndim"],
    )
    def test_a_previous_observation_of_another_kind_is_no_obstacle(self, previous):
        stack = np.zeros((2, 4))
        observation = LazyFrames.from_stack(stack, 2, LazyFrames.from_stack(previous, 2))
        assert observation.shape == stack.shape
        assert observation.dtype == stack.dtype

    @pytest.mark.parametrize(("shape", "num_stack"), [((2, 5), 2), ((), 1)])
    def test_a_stack_that_cannot_be_divided_is_refused(self, shape, num_stack):
        with pytest.raises(ValueError, match=f"multiple of num_stack={num_stack}, got shape"):
            LazyFrames.from_stack(np.zeros(shape), num_stack)

    @pytest.mark.parametrize("num_stack", [0, -1])
    def test_a_stack_of_no_frames_is_refused(self, num_stack):
        with pytest.raises(ValueError, match=f"num_stack: expected at least 1, got {num_stack}"):
            LazyFrames.from_stack(np.zeros(4), num_stack)


@pytest.mark.parametrize("widths", [(0, 2), (1, 0, 2), (2, 2), (1, 1, 1)])
def test_where_opencv_joins_images_frames_may_be_empty(widths):
    pytest.importorskip("cv2")
    frames = [np.full((2, 3, width), i, np.uint8) for i, width in enumerate(widths)]
    np.testing.assert_array_equal(LazyFrames(frames), np.concatenate(frames, axis=-1))
