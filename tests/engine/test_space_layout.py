"""How values are made to fit, and how nested spaces are taken apart and put together."""

from __future__ import annotations

import re

import numpy as np
import pytest
from any_space import any_space, samples
from comparing import assert_same
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from xuance_envs.engine.data.space_layout import BadValueError, SpaceLayout, describe, fit

NUMBERS = [np.dtype(code) for code in "?bBhHiIqQefd"]


def fitted(value, dtype):
    return fit(value, np.dtype(dtype), np.shape(value))


# --- fit ----------------------------------------------------------------------------------------


def test_an_array_that_fits_already_is_not_copied():
    array = np.zeros((2, 3), np.float32)
    assert fit(array, array.dtype, array.shape) is array


FITTING = [
    ([0, 255], np.uint8),
    ([-128, 127], np.int8),
    ([0.0, 3.0], np.int64),
    ([True, False], np.uint8),
    ([0, 1], np.bool_),
    ([1.0, 0.0], np.bool_),
    ([2**24, -(2**24)], np.float32),
    ([2**53], np.float64),
    (np.array([2**63], np.uint64), np.float64),
    (np.array([2**63 - 1], np.uint64), np.int64),
    (np.array([2**63 - 1]), np.uint64),
    (np.array([7], ">i8"), np.int64),
    (np.float16(0.5), np.float64),
    (3, np.float32),
    (np.array(3, np.uint8), np.int64),
    ([], np.int64),
    (np.zeros((0, 2)), np.uint8),
]


@pytest.mark.parametrize(("value", "dtype"), FITTING, ids=str)
def test_what_loses_nothing_fits(value, dtype):
    array = fitted(value, dtype)
    assert array.dtype == dtype
    assert array.shape == np.shape(value)
    assert array.tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize("value", [0.1, 1e-300, np.nan, np.inf, -np.inf, -0.0])
def test_floats_are_rounded_to_a_smaller_float(value):
    for dtype in (np.float16, np.float32):
        assert_same(fit([value], np.dtype(dtype), (1,)), np.array([value]).astype(dtype))


NOT_FITTING = [
    ([0, 256], np.uint8),
    ([-1], np.uint8),
    (np.array([-1], np.int8), np.uint8),
    (np.array([200], np.uint8), np.int8),
    (np.array([-1], np.int64), np.uint64),
    (np.array([2**64 - 1], np.uint64), np.int64),
    (np.array([2**63], np.uint64), np.int64),
    (np.array([2**31], np.uint32), np.int32),
    (np.array([-1], np.int16), np.uint32),
    ([2**63], np.int64),
    ([128], np.int8),
    ([2], np.bool_),
    ([-1], np.bool_),
    ([0.5], np.bool_),
    ([0.5], np.int64),
    ([np.nan], np.int64),
    ([np.nan], np.uint8),
    ([np.nan], np.bool_),
    ([np.inf], np.int64),
    ([2.0**63], np.int64),
    ([2.0**64], np.uint64),
    ([-1.0], np.uint64),
    ([-1.0], np.uint8),
    ([256.0], np.uint8),
    ([1e300], np.float32),
    ([-70000.0], np.float16),
    ([2**24 + 1], np.float32),
    ([2**53 + 1], np.float64),
    (np.array([2**64 - 1], np.uint64), np.float64),
    (np.array([2**63 - 1]), np.float64),
    ([70000], np.float16),
    ([1j], np.float64),
    (["1"], np.int64),
    ([b"1"], np.uint8),
    ([None], np.float32),
    (np.array([1], object), np.int64),
    (np.array(["2020-01-01"], "M8[D]"), np.int64),
]


@pytest.mark.parametrize(("value", "dtype"), NOT_FITTING, ids=str)
def test_what_would_lose_something_does_not_fit(value, dtype):
    with pytest.raises(BadValueError, match=rf"expected .*{np.dtype(dtype)}.*got dtype"):
        fitted(value, dtype)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([0, 1, 300, 2], "dtype int64 with values from 0 to 300"),
        ([300, 300], "dtype int64 with the value 300"),
        ([0, 0.5, np.nan], "dtype float64 with a NaN"),
    ],
)
def test_one_value_that_does_not_fit_is_enough(value, told):
    with pytest.raises(BadValueError, match=rf"uint8, got {told}$"):
        fitted(value, np.uint8)


def test_a_nan_is_no_reason_in_floats():
    with pytest.raises(BadValueError, match=r"float32, got dtype float64 with the value 1e\+300$"):
        fitted([np.nan, 1e300], np.float32)


@pytest.mark.parametrize(("value", "told"), [(None, "None (NoneType)"), ("a", "'a' (str)")])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_scalar_is_described_itself(value, told, shape):
    with pytest.raises(BadValueError, match=rf"got {re.escape(told)}$"):
        fit(value, np.dtype(np.float32), shape)


@pytest.mark.parametrize(("value", "shape"), [([1, 2], (3,)), ([1], ()), ([[1]], (1,)), ([], (1,))])
def test_another_shape_does_not_fit(value, shape):
    expected, got = (
        str(s).replace("(", r"\(").replace(")", r"\)") for s in (shape, np.shape(value))
    )
    with pytest.raises(BadValueError, match=f"expected shape {expected}, got shape {got}"):
        fit(value, np.dtype(np.int64), shape)


def test_what_numpy_makes_no_array_of_does_not_fit():
    with pytest.raises(BadValueError, match=r"expected .*shape \(2,\).*float32.*list of length 2"):
        fit([[1.0], [1.0, 2.0]], np.dtype(np.float32), (2,))


@given(np_st.arrays(st.sampled_from(NUMBERS), st.integers(0, 4)), st.sampled_from(NUMBERS))
def test_either_nothing_is_lost_or_it_does_not_fit(array, dtype):
    try:
        got = fit(array, dtype, array.shape)
    except BadValueError:
        return
    assert (got.dtype, got.shape) == (dtype, array.shape)
    for one, other in zip(got.tolist(), array.tolist(), strict=True):
        if dtype.kind == array.dtype.kind == "f":  # rounded, but not beyond the range
            assert np.isfinite(one) == np.isfinite(other)
        else:
            assert one == other, "Python compares numbers of any kind exactly"


# --- layouts ------------------------------------------------------------------------------------

NESTED = spaces.Dict(
    camera=spaces.Box(0, 255, (4, 4), np.uint8),
    rest=spaces.Tuple((spaces.Discrete(3), spaces.Dict({"a b": spaces.Text(3)}))),
)


def test_a_space_of_fixed_shape_is_its_own_one_leaf():
    layout = SpaceLayout(spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32))
    assert layout.flat
    assert all(leaf.dtype is not None for leaf in layout.leaves)
    [leaf] = layout.leaves
    assert (leaf.path, leaf.shape, leaf.dtype) == ("", (2, 2), np.int32)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
        spaces.OneOf((spaces.Discrete(2), spaces.Discrete(2))),
    ],
    ids=str,
)
def test_a_space_without_a_fixed_shape_is_one_leaf_held_as_an_object(space):
    layout = SpaceLayout(space)
    assert layout.flat
    assert layout.leaves[0].dtype is None


def test_leaves_have_paths_that_python_can_index_with():
    layout = SpaceLayout(NESTED)
    assert not layout.flat
    paths = [leaf.path for leaf in layout.leaves]
    assert paths == ["['camera']", "['rest'][0]", "['rest'][1]['a b']"]
    value = {"camera": "C", "rest": ("R", {"a b": "T"})}
    assert [eval(f"value{path}", {"value": value}) for path in paths] == ["C", "R", "T"]
    assert layout.flatten(value) == ["C", "R", "T"]
    assert layout.unflatten(["C", "R", "T"]) == value


def test_the_order_of_a_dicts_keys_does_not_matter():
    layout = SpaceLayout(spaces.Dict(b=spaces.Discrete(2), a=spaces.Discrete(2)))
    assert layout.flatten({"a": 1, "b": 2}) == layout.flatten({"b": 2, "a": 1})


def test_a_list_does_for_a_tuple():
    layout = SpaceLayout(spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))))
    assert layout.flatten([1, 2]) == layout.flatten((1, 2)) == [1, 2]
    assert layout.unflatten([1, 2]) == (1, 2)


@given(any_space, st.integers(0, 1000))
def test_taking_a_value_apart_and_putting_it_together_changes_nothing(space, seed):
    layout = SpaceLayout(space)
    for value in samples(space, 3, seed):
        parts = layout.flatten(value)
        assert len(parts) == len(layout.leaves)
        assert_same(layout.unflatten(parts), value)


@given(any_space, st.integers(0, 1000))
def test_leaves_say_what_their_values_look_like(space, seed):
    layout = SpaceLayout(space)
    [value] = samples(space, 1, seed)
    for leaf, part in zip(layout.leaves, layout.flatten(value), strict=True):
        if leaf.dtype is not None:
            assert (part.shape, part.dtype) == (leaf.shape, leaf.dtype)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"camera": 0}, r"^expected a dict with .*'camera', 'rest'.*got the keys \['camera'\]"),
        ({"camera": 0, "rest": (0, {"a b": 0}), "x": 0}, "got the keys .*'x'"),
        ([0, 0], "expected a dict .*got a list of length 2"),
        (np.zeros(3), r"expected a dict .*got an array of shape \(3,\) and dtype float64"),
        ({"camera": 0, "rest": (0,)}, r"\['rest'\]: expected a tuple of length 2, got .* length 1"),
        ({"camera": 0, "rest": {0: 0, 1: 0}}, r"\['rest'\]: expected a tuple .*2, got \{0: 0"),
        ({"camera": 0, "rest": (0, {"a": 0})}, r"\['rest'\]\[1\]: expected a dict .*'a b'"),
    ],
)
def test_a_value_of_another_structure_is_refused_naming_the_place(value, message):
    with pytest.raises(BadValueError, match=message):
        SpaceLayout(NESTED).flatten(value)


def test_values_are_described_in_a_few_words():
    assert describe(np.zeros((2, 3), np.int8)) == "an array of shape (2, 3) and dtype int8"
    assert describe([1, 2]) == "a list of length 2"
    assert describe(()) == "a tuple of length 0"
    assert describe(None) == "None (NoneType)"
    assert describe("x" * 1000) == f"'{'x' * 56}... (str)"
