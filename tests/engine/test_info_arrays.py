"""Arrays in infos: which get a column, when, and within what room."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from comparing import assert_same
from info_arrays import info_arrays

from xuance_envs.engine.data.info_batch import InfoBatch
from xuance_envs.engine.data.info_columns import MAX_ARRAY_KINDS, kind_of
from xuance_envs.engine.data.info_writer import InfoWriter
from xuance_envs.engine.data.step_infos import StepInfos


class Group:
    """Infos of some environments, written and read."""

    def __init__(self, num_envs=1, info_bytes=1 << 12):
        self.num_envs = num_envs
        self.arrays = info_arrays(num_envs, info_bytes)
        self.writer = InfoWriter(self.arrays, copy.deepcopy)

    def left(self, *infos):
        """By environment, the keys of these infos that are left to the rest."""
        self.writer.rest = {}
        for i, info in enumerate(infos):
            self.writer.write(i, info)
        rest = {i: (lambda frozen: frozen, frozen) for i, frozen in self.writer.rest.items()}
        group_of = np.zeros(self.num_envs, np.intp)
        batch = InfoBatch(self.arrays.copy(), [self.writer.table.layout], group_of, rest)
        assert_same(list(StepInfos(batch, np.arange(len(infos)))), list(infos))
        return {
            i: [key for key in rest if type(key) is str] for i, rest in self.writer.rest.items()
        }


def masked():
    return np.ma.array([1, 2], mask=[True, False])


class Own(np.ndarray):
    pass


MAY = {
    "a vector": np.zeros(3),
    "axes": np.zeros((2, 3), np.uint8),
    "Fortran order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "gaps": np.arange(10)[::3],
    "turned round": np.arange(10)[::-1],
    "broadcast": np.broadcast_to(np.float32(1), (2, 2)),
    "no axes": np.array(5),
    "no elements": np.zeros((3, 0)),
    "another byte order": np.arange(3, dtype=">i4"),
    "complex": np.array([1 + 2j]),
    "long double": np.array([1.5], np.longdouble),
    "strings of one length": np.array(["ab", "c"]),
    "bytes of one length": np.array([b"ab", b"c"]),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "durations": np.array([3], "m8[s]"),
    "structured": np.array([(1.5, 2)], [("x", "f4"), ("n", "u1")]),
    "read-only": np.frombuffer(bytes(8)),
}
MAY_NOT = {
    "objects": np.array([None, 1], object),
    "structured with objects": np.array([(1, None)], [("n", "i4"), ("o", "O")]),
    "masked": masked(),
    "a subclass": np.zeros(2).view(Own),
    "a record array": np.rec.array([(1,)], dtype=[("n", "i4")]),
    "a matrix's like": np.zeros((1, 1)).view(Own),
    "a dtype that says more": np.zeros(2, np.dtype("f4", metadata={"unit": "m"})),
    "a list": [1, 2],
}


@pytest.mark.parametrize("value", MAY.values(), ids=MAY)
def test_an_array_has_a_column_from_the_first_time_on(value):
    group = Group(2)
    for _ in range(3):
        assert group.left({"n": 1, "x": value}, {"n": 2, "x": value}) == {}
    rows, mask = group.arrays.bytes, kind_of(value)
    assert mask.nbytes == value.nbytes
    assert rows[0, : value.nbytes].tobytes() == value.tobytes("F" if value.flags.fnc else "C")


@pytest.mark.parametrize("value", MAY_NOT.values(), ids=MAY_NOT)
def test_what_is_more_than_bytes_is_left_to_the_rest(value):
    assert kind_of(value) is None
    group = Group()
    info = {"n": 1, "x": value}
    group.writer.write(0, info)
    assert list(group.writer.rest[0]) == ["x"]
    assert type(group.writer.rest[0]["x"]) is type(value)


CHANGES = {
    "another dtype": np.zeros(3, np.float32),
    "another byte order": np.zeros(3, ">f8"),
    "another shape": np.zeros(4),
    "another axis": np.zeros((3, 1)),
    "fewer axes": np.array(0.0),
    "more bytes": np.zeros(100),
    "no elements": np.zeros(0),
    "another order": np.zeros((3, 2), order="F"),
}


@pytest.mark.parametrize("other", CHANGES.values(), ids=CHANGES)
def test_an_array_that_changes_has_a_column_again_when_it_settles(other):
    group = Group()
    usual = {"n": 1, "x": np.arange(3.0), "y": np.ones(2)}
    assert group.left(usual) == {}
    assert group.left({**usual, "x": other}) == {0: ["x"]}
    for _ in range(3):
        assert group.left({**usual, "x": other}) == {}
    for info in (usual, {**usual, "x": other}) * 3:
        assert group.left(info) == {}, "both are known now"


def test_an_array_that_always_changes_is_not_learned():
    group = Group()
    group.left({"x": np.zeros(1)})
    version = group.writer.table.version
    for n in range(2, 30):
        assert group.left({"x": np.zeros(n)}) == {0: ["x"]}
    assert group.writer.table.version == version


def test_an_array_that_would_be_broadcast_to_its_column_is_not():
    group = Group()
    for shape in ((2, 3), (1, 3), (2, 1), (3,)):
        group.left({"x": np.ones((2, 3))})
        group.left({"x": np.zeros(shape)})


def test_environments_may_have_arrays_of_different_shapes_under_one_key():
    group = Group(3)
    infos = [{"x": np.full(n + 1, n)} for n in range(3)]
    group.left(*infos)
    group.left(*infos)
    for _ in range(3):
        assert group.left(*infos) == {}


def test_what_has_no_room_is_left_to_the_rest():
    group = Group(info_bytes=64)
    info = {"fits": np.zeros(4), "does not": np.zeros(6), "n": 1, "does": np.zeros(2)}
    for _ in range(5):
        assert group.left(info) == {0: ["does not"]}
    assert group.left({"fits": np.zeros(4), "n": 1}) == {}


def test_no_room_at_all_leaves_all_arrays_but_empty_ones_to_the_rest():
    group = Group(info_bytes=0)
    for _ in range(3):
        assert group.left({"x": np.zeros(2), "empty": np.zeros(0), "n": 1}) == {0: ["x"]}


def test_arrays_that_are_gone_make_room():
    group = Group(2, info_bytes=64)
    old, new = {"old": np.ones(8), "n": 1}, {"new": np.arange(6.0), "n": 2}
    assert group.left(old, old) == {}
    assert group.left(new, old) == {0: ["new"]}
    assert group.left(new, new) == {0: ["new"], 1: ["new"]}, "the other's was still there"
    for _ in range(4):
        group.left(new, new)
    assert group.left(new, new) == {}


def test_kinds_that_are_gone_make_room():
    group = Group()
    for n in range(MAX_ARRAY_KINDS + 20):
        for _ in range(3):
            left = group.left({"x": np.zeros(n, np.uint8)})
        assert left == {}


def test_more_bytes_of_a_column_leave_what_was_written_before_as_it_is():
    group = Group(2)
    infos = [{"a": np.full(2, 7.0), "b": np.arange(3), "c": np.ones(5)}, {"b": np.arange(3)}]
    assert group.left(*infos) == {}
    infos[1]["b"] = np.arange(40)
    group.left(*infos)
    assert group.left(*infos) == {}


def test_what_is_under_a_key_of_another_type_is_left_to_the_rest():
    group = Group()
    for n in range(3):
        group.writer.rest = {}
        group.writer.write(0, {n: np.zeros(2), ("a", n): np.zeros(2)})
        assert len(group.writer.rest[0]) == 2


def test_the_bits_of_nans_stay():
    bits = np.array([0x7FF8_0000_0000_1234, 0xFFF0_0000_0000_0001], np.uint64)
    group = Group()
    for order in ("C", "F"):
        for value in (bits.view(float), np.array([bits, bits], order=order).view(float)):
            for _ in range(3):
                group.left({order: value})
    assert group.left({"C": bits.view(float)}) == {}


def test_a_value_read_is_the_callers_own():
    group = Group()
    batch = None
    for value in (np.zeros(3), np.zeros((2, 2), order="F"), np.array(1.0)):
        group.left({"x": value})
        group.left({"x": value})
        batch = InfoBatch(
            group.arrays.copy(), [group.writer.table.layout], np.zeros(1, np.intp), {}
        )
        for build in (lambda b=batch: b.build(0, 0), lambda b=batch: b.dicts(np.arange(1))[0]):
            got = build()["x"]
            assert (got.flags.owndata, got.flags.writeable) == (True, True)
            assert got.flags.fnc == value.flags.fnc
            got[...] = 9
            assert_same(build()["x"], value)
            column = batch.column("x", np.arange(1))[0]
            column[...] = 9
            assert_same(build()["x"], value)
