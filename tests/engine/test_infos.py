"""Infos written into columns and read back: every value with its own type, and nothing else."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same
from hypothesis import given
from hypothesis import strategies as st
from info_arrays import info_arrays
from interrupts import Instant

from xuance_envs.engine.data import info_columns
from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.info_columns import INFO_BYTES, MAX_COLUMNS, NUMBER_KINDS
from xuance_envs.engine.data.info_writer import InfoWriter
from xuance_envs.engine.data.step_infos import StepInfos

NUM_ENVS = 3
CODE = str(Path(info_columns.__file__).parent)


class Columns:
    """A writer on arrays of its own, and the infos as somebody else reads them."""

    def __init__(self, freeze=copy.deepcopy, info_bytes=INFO_BYTES):
        self.arrays = info_arrays(NUM_ENVS, info_bytes)
        self.writer = InfoWriter(self.arrays, freeze)

    def after(self, *infos):
        """The infos of a step in which the environments gave these."""
        self.writer.rest = {}
        for i, info in enumerate(infos):
            self.writer.write(i, info)
        rest = {i: (lambda frozen: frozen, frozen) for i, frozen in self.writer.rest.items()}
        batch = InfoBatch(
            self.arrays.copy(), [self.writer.table.layout], np.zeros(NUM_ENVS, np.intp), rest
        )
        return StepInfos(batch, np.arange(len(infos)))


numbers = st.one_of(
    st.integers(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.none(),
    st.booleans().map(np.bool_),
    *(
        st.integers(np.iinfo(kind).min, np.iinfo(kind).max).map(kind)
        for kind in (
            np.int8,
            np.int16,
            np.int32,
            np.int64,
            np.uint8,
            np.uint16,
            np.uint32,
            np.uint64,
        )
    ),
    *(st.floats(width=bits).map(kind) for bits, kind in ((16, np.float16), (32, np.float32))),
    st.floats().map(np.float64),
)


def array_of(dtype, shape, order, first):
    """Some array, in the order of C or of Fortran, or with gaps in its memory."""
    array = (np.arange(np.prod(shape, dtype=int)) + first).reshape(shape).astype(dtype)
    if order == "gaps" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    return np.asfortranarray(array) if order == "F" else array


DTYPES = ["?", "i1", "u1", "<i2", ">i4", "<f2", "<f4", ">f8", "<c16", "S3", "<U2", "<M8[s]", "q"]
arrays = st.builds(
    array_of,
    st.sampled_from([*DTYPES, "l", "g", [("x", "<f4"), ("y", "u1", (2,))]]),
    st.sampled_from([(), (0,), (2,), (3,), (2, 2), (1, 2, 3)]),
    st.sampled_from(["C", "F", "gaps"]),
    st.integers(0, 5),
)
others = st.one_of(
    arrays,
    st.text(),
    st.binary(),
    st.complex_numbers(),
    st.lists(numbers),
    st.tuples(numbers, st.text()),
)
keys = st.one_of(st.sampled_from("abcdef"), st.text(), st.integers(), st.tuples(st.integers()))
info_dicts = st.one_of(
    st.dictionaries(st.sampled_from("abcdef"), numbers),  # such as fit the columns
    st.dictionaries(st.sampled_from("abc"), st.one_of(numbers, arrays)),
    st.dictionaries(keys, st.one_of(numbers, others)),
)


@given(
    st.lists(st.tuples(*[info_dicts] * NUM_ENVS), max_size=6), st.sampled_from([0, 32, INFO_BYTES])
)
def test_infos_of_any_kind_in_any_order_are_read_as_they_were_written(steps, info_bytes):
    columns = Columns(info_bytes=info_bytes)
    held = [columns.after(*infos) for infos in steps]
    for infos, written in zip(held, steps, strict=True):
        for info, expected in zip(infos, written, strict=True):
            assert_same(info, expected)


@given(st.lists(st.tuples(*[info_dicts] * NUM_ENVS), min_size=1, max_size=4), st.data())
def test_a_column_has_what_the_dicts_have(steps, data):
    columns = Columns()
    for written in steps:
        infos = columns.after(*written)
        for key in {key for info in written for key in info}:
            values, mask = infos.column(key)
            assert mask.tolist() == [key in info for info in written]
            for i, info in enumerate(written):
                value = values[i]
                if key not in info:
                    assert value is None or values[i, ...].tobytes().strip(b"\0") == b""
                elif isinstance(info[key], np.ndarray) and values.dtype != object:
                    assert_same(values[i, ...], info[key])
                elif isinstance(info[key], np.ndarray) and not info[key].ndim:
                    assert value == info[key] or value != value
                elif values.dtype == object:
                    assert_same(value, info[key])
                else:  # one type for all, float64 where they have several
                    assert_same(value, values.dtype.type(info[key]))


FIT = [
    *(3, 3.0, True, None, -0.0, float("nan"), float("-inf"), 2**63 - 1, -(2**63)),
    *(np.bool_(True), np.float16(0.1), np.float32(0.1), np.float64(0.1), np.float32("nan")),
    *(np.int8(-3), np.int16(-3), np.int32(-3), np.int64(-(2**63))),
    *(np.uint8(3), np.uint16(3), np.uint32(3), np.uint64(2**63 - 1)),
]
"""What fits a column."""

DO_NOT_FIT = [
    *(2**63, -(2**63) - 1, 10**400, np.uint64(2**63), np.uint64(2**64 - 1)),
    *(np.longdouble(3), np.complex128(3), "3", b"3", (3,), [3], {"3": 3}),
]
"""What does not."""


def shown(value):
    return f"{type(value).__name__}-{value!r:.9}"


@pytest.mark.parametrize("value", FIT + DO_NOT_FIT, ids=shown)
@pytest.mark.parametrize("before", [3, 3.0, True, None, np.float32(3), "3"], ids=repr)
def test_a_value_keeps_its_type_whatever_was_there_before(before, value):
    columns = Columns()
    assert_same(columns.after({"x": before})[0], {"x": before})
    for _ in range(2):
        assert_same(columns.after({"x": value})[0], {"x": value})


@pytest.mark.parametrize("value", FIT, ids=shown)
def test_numbers_of_up_to_64_bits_go_into_columns(value):
    columns = Columns()
    columns.after({"x": value})
    assert columns.writer.rest == {}


@pytest.mark.parametrize("value", DO_NOT_FIT, ids=shown)
def test_anything_else_is_left_for_the_rest(value):
    columns = Columns()
    columns.after({"x": value})
    assert_same(columns.writer.rest, {0: {"x": value}})


def test_once_a_key_is_known_a_number_is_all_that_is_written():
    def refuse(rest):
        raise AssertionError("nothing should be left for it")

    columns = Columns(refuse)
    for step in range(5):
        infos = columns.after(*[{"n": step, "x": step / 2, "b": step > 2, "none": None}] * NUM_ENVS)
    assert columns.writer.table.keys == ["n", "x", "b", "none"]
    assert infos[2] == {"n": 4, "x": 2.0, "b": True, "none": None}


def test_what_does_not_fit_is_frozen_when_it_is_written():
    columns = Columns()
    array = np.zeros(2)
    info = {"array": array, "n": 1}
    infos = columns.after(info)
    array += 1
    info["array"] = info["n"] = None
    assert_same(infos[0], {"array": np.zeros(2), "n": 1})


@pytest.mark.parametrize("wrong", [None, [], (), "", [("a", 1)], 3, np.zeros(1)], ids=repr)
@pytest.mark.parametrize("before", [{}, {"a": 1}], ids=repr)
def test_an_info_that_is_no_dict_is_refused(before, wrong):
    columns = Columns()
    columns.after(before)
    with pytest.raises(ValueError, match=rf"info: expected a dict.*{type(wrong).__name__}"):
        columns.after(wrong)


def test_a_dict_of_another_class_is_a_dict():
    class Other(dict):
        pass

    columns = Columns()
    for n in range(3):
        assert columns.after(Other(n=n, s="text"))[0] == {"n": n, "s": "text"}


def test_infos_of_some_environments_are_found_by_their_place():
    columns = Columns()
    columns.after({"n": 0}, {"n": 1, "s": "one"}, {"n": 2})
    batch = InfoBatch(
        columns.arrays.take(np.array([2, 1])),
        [columns.writer.table.layout],
        np.zeros(NUM_ENVS, np.intp),
        {1: (lambda frozen: frozen, {"s": "one"})},
    )
    infos = StepInfos(batch, np.array([2, 1]))
    assert infos == [{"n": 2}, {"n": 1, "s": "one"}]
    assert infos.column("n")[0].tolist() == [2, 1]
    assert infos.column("s")[1].tolist() == [False, True]


def test_groups_may_keep_a_key_in_different_columns():
    arrays = info_arrays(2)
    one, other = (InfoWriter(arrays.slice(i, i + 1), copy.deepcopy) for i in range(2))
    one.write(0, {"a": 1, "b": 2.5})
    other.write(0, {"b": 3.5, "c": True, "a": 4})
    batch = InfoBatch(arrays, [one.table.layout, other.table.layout], np.arange(2), {})
    infos = StepInfos(batch, np.arange(2))
    assert_same(list(infos), [{"a": 1, "b": 2.5}, {"b": 3.5, "c": True, "a": 4}])
    assert infos.column("a")[0].tolist() == [1, 4]
    assert infos.column("b")[0].tolist() == [2.5, 3.5]
    assert infos.column("c")[0].tolist() == [False, True]
    assert infos.column("c")[1].tolist() == [False, True]


def test_a_dict_is_built_only_when_it_is_looked_at():
    class Counting(InfoBatch):
        built = 0

        def build(self, position, env):
            Counting.built += 1
            return super().build(position, env)

    columns = Columns()
    columns.after(*[{"n": n} for n in range(NUM_ENVS)])
    batch = Counting(columns.arrays, [columns.writer.table.layout], np.zeros(NUM_ENVS, np.intp), {})
    infos = StepInfos(batch, np.arange(NUM_ENVS))
    assert len(infos) == NUM_ENVS
    infos.column("n")
    assert Counting.built == 0
    assert infos[1] is infos[1]
    assert Counting.built == 1


def test_infos_can_be_copied_and_pickled_as_a_list():
    infos = Columns().after({"n": 1}, {"s": "text"}, {})
    for other in (infos.copy(), pickle.loads(pickle.dumps(infos)), copy.deepcopy(infos)):
        assert type(other) is list
        assert other == [{"n": 1}, {"s": "text"}, {}]
    assert infos.copy()[0] is infos[0]


def test_infos_are_added_to_lists_as_a_list_is():
    dicts = [{"n": 1}, {"s": "text"}, {}]
    infos = Columns().after(*dicts)
    more = [{"more": True}]
    assert infos + more == dicts + more
    assert more + infos == more + dicts
    assert infos + infos == dicts + dicts
    assert type(infos + more) is type(more + infos) is type(infos + infos) is list
    assert (infos + more)[0] is infos[0]
    gathered = list(more)
    gathered += infos
    assert gathered == more + dicts
    for other in ((), "", None, 3):
        with pytest.raises(TypeError):
            infos + other
        with pytest.raises(TypeError):
            other + infos


@pytest.mark.parametrize(
    "given",
    [
        ({"a": 1, "t": "x"}, {"a": 2.5}, {}),
        ({"b": None, "a": np.float32(3)}, {"a": 2**80}, {"a": True, "b": np.int8(1)}),
        ({}, {}, {}),
    ],
)
def test_going_through_all_infos_gives_what_looking_at_each_gives(given) -> None:
    assert_same(list(Columns().after(*given)), list(given))
    infos = Columns().after(*given)
    infos[1] = {"mine": True}
    first = infos[0]
    through = list(infos)
    assert through[0] is first
    assert through[1] == {"mine": True}
    assert all(infos[i] is through[i] for i in range(3))


@pytest.mark.parametrize("info", [{}, {"a": 1}, {"b": 0.5}, {"": None}])
def test_an_info_replaces_one_that_something_else_wrote(info):
    columns = Columns()
    columns.after({}, {"a": 7})
    columns.arrays.kinds[:2] = NUMBER_KINDS[float].code
    columns.writer.forget()
    assert_same(columns.after({}, info)[1], info)
    columns.arrays.kinds[:2] = NUMBER_KINDS[float].code
    columns.writer.forget()
    assert_same(columns.after({}, info)[1], info)


ORDERS = {
    "a new key in front": [{"b": 1}, {"a": 2, "b": 3}, {"b": 4}],
    "a new key between": [{"a": 1, "c": 2}, {"a": 1, "b": 3, "c": 4}, {"a": 5, "c": 6}],
    "both ways": [{"a": 1, "b": 2}, {"b": 3, "a": 4}] * 10,
    "a form that occurred before": [{"b": 1, "a": 0.5}, {"a": 1, "c": 0.5, "b": 0.5}],
    "what is no number first": [{"s": "text", "a": 1}, {"a": 1}, {"t": "text", "a": 1, "s": None}],
    "what is no number between": [{"a": 1, "s": "text", "b": 2}, {"a": 1, "b": 2, "s": [1]}],
    "a number that outgrows its column": [{"a": 1, "b": 2}, {"a": 2**80, "b": 2}],
    "other keys than strings": [{1: 2, "a": 3}, {"a": 1, 1: 2}, {"a": 4}],
    "more keys than columns": [
        {f"key {k}": k for k in range(0, 2 * MAX_COLUMNS, 2)},
        {f"key {k}": k for k in range(2 * MAX_COLUMNS)},
        {f"key {k}": k for k in reversed(range(2 * MAX_COLUMNS))},
    ],
}


@pytest.mark.parametrize("script", ORDERS.values(), ids=ORDERS)
def test_keys_keep_their_order(script):
    columns = Columns()
    held = []
    for step in range(len(script)):
        given = [script[(step + i) % len(script)] for i in range(NUM_ENVS)]
        held.append((columns.after(*given), columns.after(*given), given))
    for infos, again, given in held:
        assert_same(list(infos), given)
        assert_same([again[i] for i in range(NUM_ENVS)], given)


def test_more_keys_than_columns_fill_all_columns():
    columns = Columns()
    columns.after({f"key {k}": k for k in range(2 * MAX_COLUMNS)})
    assert len(columns.writer.table.keys) == MAX_COLUMNS


def test_a_column_of_arrays_with_two_shapes_is_one_of_objects():
    columns = Columns()
    for step in range(4):
        given = [{"x": np.full(2 + i, step)} for i in range(NUM_ENVS)]
        values, mask = columns.after(*given).column("x")
        assert_same(list(values), [info["x"] for info in given])
        assert mask.all()
    assert not columns.writer.rest


def test_columns_come_to_have_the_order_of_all_infos():
    columns = Columns()
    columns.after(*[{"step": 0}] * NUM_ENVS)
    given = [{"x": 0.5, "step": 1, "score": 1.0}] * NUM_ENVS
    for _ in range(3):
        assert_same(list(columns.after(*given)), given)
        assert columns.writer.rest == {}
    given = [{"score": 1.0, "step": 2, "x": 0.5}] * NUM_ENVS
    assert_same(list(columns.after(*given)), given)
    for _ in range(3):
        version = columns.writer.table.version
        assert_same(list(columns.after(*given)), given)
        assert columns.writer.rest == {}
    assert columns.writer.table.version == version


def test_an_interrupt_while_columns_are_put_into_order_spoils_no_info():
    def infos(columns):
        layouts, group_of = [columns.writer.table.layout], np.zeros(NUM_ENVS, np.intp)
        batch = InfoBatch(columns.arrays.copy(), layouts, group_of, {})
        return list(StepInfos(batch, np.arange(NUM_ENVS)))

    given = [{"b": 1, "c": 2.5, "v": np.ones(3)}, {"c": 3.5}, {"a": 4, "w": np.arange(4), "v": 1}]
    for number in itertools.count():
        columns = Columns()
        columns.after(*given[:2])
        with Instant(number, [CODE]) as instant:
            columns.writer.write(2, given[2])
        assert_same(infos(columns)[:2], given[:2])
        columns.writer.write(2, given[2])
        assert_same(infos(columns), given)
        if not instant.came:
            break
    assert number > 50
