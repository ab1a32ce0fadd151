"""Infos that come as arrays: into columns, and what does not fit them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from comparing import assert_same
from info_arrays import info_arrays
from interrupts import Instant

from xuance_envs.engine.data import info_columns
from xuance_envs.engine.data.info_batch import InfoColumns
from xuance_envs.engine.data.info_columns import MAX_COLUMNS, NUMBER_KINDS, kind_of
from xuance_envs.engine.data.info_writer import BulkInfoWriter, InfoRows, LazyRowExtras
from xuance_envs.engine.data.step_infos import StepInfos

NUM = 3
CODE = str(Path(info_columns.__file__).parent)


class Infos:
    """A writer, and a look at what it wrote."""

    def __init__(self):
        arrays = info_arrays(NUM)
        self.writer = BulkInfoWriter(arrays)
        self.columns = InfoColumns(arrays, np.zeros(NUM, int))

    @property
    def all(self):
        self.columns.set_layout(0, self.writer.table.layout)
        return list(StepInfos(self.columns.batch(), np.arange(NUM)))


@pytest.fixture
def infos():
    return Infos()


@pytest.mark.parametrize("kind", [int, float, bool, np.int32, np.uint8, np.float32, np.bool_])
def test_values_come_back_in_their_type(infos, kind):
    assert infos.writer.write("key", NUMBER_KINDS[kind], np.array([0, 1, 1]))
    values = [info["key"] for info in infos.all]
    assert values == [0, 1, 1]
    assert {type(value) for value in values} == {kind}


def test_some_can_be_written_and_cleared(infos):
    infos.writer.write("a", NUMBER_KINDS[int], np.arange(NUM))
    infos.writer.write("b", NUMBER_KINDS[float], 0.5, np.array([0, 2]))
    assert infos.all == [{"a": 0, "b": 0.5}, {"a": 1}, {"a": 2, "b": 0.5}]
    infos.writer.clear(np.array([0]))
    assert infos.all == [{}, {"a": 1}, {"a": 2, "b": 0.5}]
    infos.writer.write("a", NUMBER_KINDS[int], np.arange(NUM))
    assert infos.all[0] == {"a": 0}


def test_a_key_that_was_removed_can_be_written_again(infos):
    for _ in range(2):
        infos.writer.write("a", NUMBER_KINDS[int], np.arange(NUM))
        infos.writer.write("b", NUMBER_KINDS[int], np.arange(NUM))
        assert infos.all[1] == {"a": 1, "b": 1}
        infos.writer.keep({"b"})
        assert infos.all[1] == {"b": 1}


def test_a_mask_says_who_has_a_key(infos):
    infos.writer.write("a", NUMBER_KINDS[int], np.arange(NUM), mask=np.array([True, False, True]))
    assert infos.all == [{"a": 0}, {}, {"a": 2}]
    infos.writer.write("a", NUMBER_KINDS[int], np.arange(NUM))
    assert infos.all[1] == {"a": 1}


def test_what_has_no_column_is_left_to_the_caller(infos):
    assert not infos.writer.write("text", kind_of("a"), np.array(["a"] * NUM))
    for number in range(MAX_COLUMNS):
        assert infos.writer.write(str(number), NUMBER_KINDS[int], number)
    assert not infos.writer.write("one more", NUMBER_KINDS[int], 1)


def test_rests_are_made_when_they_are_looked_at():
    ram = np.arange(6).reshape(2, 3)
    parts = [("ram", ram, None), ("b", np.arange(2), np.array([True, False]))]
    rests = LazyRowExtras(InfoRows(parts), np.array([1, 4]))
    assert (list(rests), len(rests), 0 in rests, 4 in rests) == ([1, 4], 2, False, True)
    thaw, frozen = rests[4]
    assert thaw(frozen)["ram"].tolist() == [3, 4, 5]
    assert "b" not in thaw(frozen)
    assert not np.shares_memory(thaw(frozen)["ram"], ram)
    assert not LazyRowExtras(InfoRows(()), np.arange(3))


def test_an_interrupt_finds_the_old_columns_or_the_new_ones():
    expected = [{"a": np.arange(2.0) + i, "b": i, "c": 9, "d": 8} for i in range(NUM)]
    known = [{key: info[key] for key in "abc"} for info in expected]
    for number in itertools.count():
        infos = Infos()
        infos.writer.write("a", kind_of(np.zeros(2)), np.add.outer(range(NUM), np.arange(2.0)))
        infos.writer.write("b", NUMBER_KINDS[int], np.arange(NUM))
        with Instant(number, [CODE]) as instant:
            infos.writer.write("c", NUMBER_KINDS[int], 9)
        assert_same([{**info, "c": 9} for info in infos.all], known)
        infos.writer.write("c", NUMBER_KINDS[int], 9)
        infos.writer.write("d", NUMBER_KINDS[int], 8)
        assert_same(infos.all, expected)
        if not instant.came:
            break
    assert number > 10
