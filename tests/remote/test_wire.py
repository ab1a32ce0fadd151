"""Messages in both formats: each preserves the data, and rejects everything else."""

from __future__ import annotations

import contextlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Any

import msgpack
import numpy as np
import pytest
from any_space import any_space, samples
from comparing import assert_same
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from xuance_envs.engine.data.space_layout import SpaceLayout
from xuance_envs.engine.data.space_rows import SpaceRows
from xuance_envs.remote.server.hosting.commands import _info_to_wire
from xuance_envs.remote.wire import formats
from xuance_envs.remote.wire.bounds import (
    TooLargeError,
    TooManyNodesError,
    check_json_nodes,
    check_nodes,
)
from xuance_envs.remote.wire.formats import WireFormat, dumps, loads
from xuance_envs.remote.wire.nodes import DTYPES, LazyList, WireError, array_from_wire
from xuance_envs.remote.wire.spaces import space_from_wire, space_to_wire
from xuance_envs.remote.wire.values import (
    batch_from_wire,
    batch_to_wire,
    from_wire,
    infos_from_wire,
    to_wire,
)

FORMS = list(WireFormat)


def through(form: WireFormat, value: Any) -> Any:
    """Encode a value in a message and decode it."""
    return from_wire(loads(dumps(to_wire(value), form), form))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.integers(-(2**100), 2**100),
    st.floats(width=32).map(np.float32),
    st.integers(0, 255).map(np.uint8),
    st.booleans().map(np.bool_),
)
arrays = st.builds(
    lambda name, shape, seed: (np.random.default_rng(seed).random(shape) * 9).astype(DTYPES[name]),
    st.sampled_from(sorted(DTYPES)),
    st.sampled_from([(), (0,), (3,), (2, 0), (2, 1, 2)]),
    st.integers(0, 99),
)
hashables = st.one_of(st.text(), st.integers(), st.booleans(), st.tuples(st.integers(), st.text()))
values = st.recursive(
    scalars | arrays,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text() | st.just("$"), inner, max_size=3),
        st.dictionaries(hashables, inner, max_size=3),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
    ),
    max_leaves=8,
)


def as_it_travels(value: Any) -> Any:
    """Return the value with JSON's NaN for each NaN, and with int64 for longlong."""
    if isinstance(value, float | np.floating) and math.isnan(value):
        return type(value)(math.nan)
    if isinstance(value, np.generic):
        return DTYPES[value.dtype.name].type(value)
    if isinstance(value, spaces.GraphInstance):
        return value
    if isinstance(value, dict):
        return {key: as_it_travels(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_it_travels(item) for item in value)
    return value


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@given(value=values)
def test_a_value_comes_back_with_its_types_and_bits(form: WireFormat, value: Any) -> None:
    assert_same(as_it_travels(through(form, value)), as_it_travels(value))


def batch_of(space: spaces.Space, values: list[Any]) -> Any:
    rows = SpaceRows.allocate(SpaceLayout(space), len(values))
    for i, value in enumerate(values):
        # Like environments' observations: their dtype may be a different C type of the same size,
        # which the fastest rows refuse.
        rows.row(i, lambda frozen: frozen, strict=False)[:] = value
    return rows.copy_writable()


@given(space=any_space, count=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_spaces_and_their_values_are_the_same_through_both_forms(
    space: spaces.Space, count: int, seed: int
) -> None:
    batch = batch_of(space, samples(space, count, seed))
    for form in FORMS:
        arrived = space_from_wire(loads(dumps(space_to_wire(space), form), form))
        assert arrived == space
        assert arrived.dtype == space.dtype
        message = dumps(batch_to_wire(space, batch), form)
        came = batch_from_wire(arrived, loads(message, form), count)
        assert_same(as_it_travels(came), as_it_travels(batch))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_an_array_that_arrived_is_its_owners_to_write_to(form: WireFormat) -> None:
    arrived = through(form, np.arange(3))
    arrived[0] = 7
    assert arrived.tolist() == [7, 1, 2]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_batch_of_a_big_endian_space_arrives(form: WireFormat) -> None:
    space = spaces.Box(-1, 1, (2,), np.dtype(">f4"))
    batch = np.float32([[0.5, -1]])
    node = loads(dumps(batch_to_wire(space, batch), form), form)
    assert_same(batch_from_wire(space, node, 1), batch.astype(">f4"))


def test_a_space_whose_keys_are_not_strings_travels() -> None:
    space = spaces.Dict(
        [(2, spaces.Discrete(3)), ("b", spaces.Text(4)), ((1, "x"), spaces.Box(0, 1))]
    )
    arrived = space_from_wire(loads(dumps(space_to_wire(space), WireFormat.JSON), WireFormat.JSON))
    assert list(arrived.spaces.items()) == list(space.spaces.items())
    batch = batch_of(space, samples(space, 2, 0))
    node = loads(dumps(batch_to_wire(space, batch), WireFormat.JSON), WireFormat.JSON)
    assert_same(batch_from_wire(arrived, node, 2), batch)


def test_json_is_what_a_person_would_write() -> None:
    space = spaces.Dict(x=spaces.Box(-1, 1, (2,)), n=spaces.Discrete(3))
    batch = {"x": np.float32([[0, 0.5]]), "n": np.array([2])}
    assert json.loads(dumps(batch_to_wire(space, batch), WireFormat.JSON)) == {
        "x": [[0, 0.5]],
        "n": [2],
    }
    info = {"score": 1.5, "steps": 3, "name": "x", "won": True, "nothing": None, "list": [1]}
    assert json.loads(dumps(to_wire(info), WireFormat.JSON)) == info


def test_numbers_that_are_not_finite_are_strings_in_json() -> None:
    space = spaces.Box(-np.inf, np.inf, (3,))
    batch = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    text = dumps(batch_to_wire(space, batch), WireFormat.JSON)
    assert json.loads(text) == [["NaN", "Infinity", "-Infinity"]]
    assert_same(batch_from_wire(space, json.loads(text), 1), batch)


def test_large_uniform_bounds_are_not_spelled_out() -> None:
    space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    message = dumps(space_to_wire(space), WireFormat.JSON)
    assert len(message) < 400
    assert space_from_wire(json.loads(message)) == space


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("low", [-np.inf, 0.0, np.array([0, -np.inf])], ids=str)
def test_an_unbounded_box_of_integers_stays_unbounded(form: WireFormat, low: Any) -> None:
    space = spaces.Box(low, np.inf, (2,), np.int32)
    arrived = space_from_wire(loads(dumps(space_to_wire(space), form), form))
    assert arrived == space
    assert not arrived.is_bounded("above")
    assert_same(samples(arrived, 3, 5), samples(space, 3, 5))


def test_subclasses_travel_as_what_they_derive_from() -> None:
    assert_same(through(WireFormat.JSON, OrderedDict(a=1)), {"a": 1})
    assert_same(through(WireFormat.MSGPACK, np.str_("text")), "text")


class Color(str, Enum):
    RED = "red"


def test_a_member_of_an_enum_travels_as_its_value() -> None:
    given = {"color": Color.RED, "level": IntEnum("Level", ["LOW"])(1), Color.RED: True}
    assert_same(through(WireFormat.JSON, given), {"color": "red", "level": 1, "red": True})


class Unconvertible:
    """Value whose conversion to an array fails, like that of a tensor that needs gradients."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("call detach first")


@pytest.mark.parametrize(
    "value",
    [
        *(object(), lambda: 0, np.array([object()]), np.array(["text"]), np.longdouble(1), 1j),
        *(np.ma.array([1, 2], mask=[0, 1]), np.ma.masked, Unconvertible()),
    ],
    ids=[
        *("object", "function", "array of objects", "array of text", "longdouble", "complex"),
        *("masked array", "masked", "unconvertible"),
    ],
)
def test_what_cannot_travel_is_refused(value: Any) -> None:
    with pytest.raises(WireError, match="cannot send"):
        to_wire({"deep": [value]})


def test_a_value_within_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(WireError, match="contain themselves"):
        to_wire(value)


class OwnSpace(spaces.Box):
    """Space of a class that is not Gymnasium's."""


@pytest.mark.parametrize(
    "space", [OwnSpace(0, 1), spaces.Box(0, 1, dtype=np.longdouble), spaces.Tuple([OwnSpace(0, 1)])]
)
def test_custom_spaces_are_refused(space: spaces.Space) -> None:
    with pytest.raises(WireError):
        space_to_wire(space)


# --- what is malformed --------------------------------------------------------------------------

BOX = spaces.Box(-1, 1, (2,))


def raw(dtype: Any = "float32", shape: Any = (1, 2), data: Any = bytes(8), **more: Any) -> Any:
    shape = list(shape) if isinstance(shape, tuple) else shape
    return {"$": "array", "dtype": dtype, "shape": shape, "data": data, **more}


@pytest.mark.parametrize(
    "node",
    [
        None,
        1,
        "NaN",
        [],
        [[1]],
        [[1, 2], [3, 4]],
        [[1, [2]]],
        [[1, "2"]],
        [[1, None]],
        [[1, True]],
        [[1, 1e300]],
        [[1, 10**400]],
        {},
        {"$": "array"},
        {"$": ["array"]},
        {"$": "scalar", "dtype": "float32", "data": 1},
        raw(more=1),
        raw(dtype="float64"),
        raw(dtype="object"),
        raw(dtype="O"),
        raw(dtype=["float32"]),
        raw(dtype=None),
        raw(shape=(2, 1)),
        raw(shape=(-1, 2)),
        raw(shape=(1, -2)),
        raw(shape=(2**62, 2**62)),
        raw(shape=(10**30, 2)),
        raw(shape=[1.0, 2]),
        raw(shape=[True, 2]),
        raw(shape=[1] * 64),
        raw(shape="12"),
        raw(data=bytes(7)),
        raw(data=b""),
        raw(data="text"),
        raw(data=None),
        raw(shape=(0, 2**39, 2**39), data=b""),
    ],
    ids=lambda node: ascii(node)[:70],
)
def test_a_batch_that_is_not_one_is_refused(node: Any) -> None:
    with pytest.raises(WireError):
        batch_from_wire(BOX, node, 1)


@pytest.mark.parametrize(
    ("dtype", "node"),
    [
        ("uint8", [0, 300]),
        ("uint8", [-1]),
        ("int8", [0.5]),
        ("int8", ["NaN"]),
        ("int64", [2**63]),
        ("uint64", [2**64]),
        ("bool", [2]),
        ("bool", [0.0]),
        ("bool", raw("bool", (1,), b"\x02")),
        ("float16", [1e6]),
        ("float32", ["nan"]),
    ],
)
def test_a_number_that_does_not_fit_is_refused(dtype: str, node: Any) -> None:
    shape = (len(node),) if isinstance(node, list) else (1,)
    with pytest.raises(WireError):
        array_from_wire(node, np.dtype(dtype), shape)


@pytest.mark.parametrize(
    "node",
    [
        {"$": "no such"},
        {"$": 1},
        {"$": "tuple"},
        {"$": "tuple", "items": 1},
        {"$": "tuple", "items": [], "more": 1},
        {"$": "dict", "items": [1]},
        {"$": "dict", "items": [[1, 2, 3]]},
        {"$": "dict", "items": [[[], 2]]},
        {"$": "set", "items": [[]]},
        {"$": "int", "data": "text"},
        {"$": "int", "data": 1},
        {"$": "float", "data": "1"},
        {"$": "bytes", "data": "?"},
        {"$": "bytes", "data": "\xff"},
        {"$": "scalar", "dtype": "int8", "data": 300},
        {"$": "scalar", "dtype": "int8", "data": [1]},
        {"$": "graph", "nodes": 1, "edges": None, "edge_links": None},
        {"$": "graph", "nodes": None, "edges": None, "edge_links": None},
        {1: 2},
        {b"a": 2},
    ],
    ids=ascii,
)
def test_a_value_that_is_not_one_is_refused(node: Any) -> None:
    with pytest.raises(WireError):
        from_wire([node])


@pytest.mark.parametrize(
    "node",
    [
        None,
        [],
        {"type": "Space"},
        {"type": ["Box"]},
        {"type": "Box"},
        {"type": "Box", "low": 0, "high": 1, "shape": [2], "dtype": "float32"},
        {"type": "Box", "low": raw(), "high": raw(), "shape": [-1], "dtype": "float32"},
        {
            "type": "Box",
            "low": raw(shape=(), data=bytes(4)),
            "high": raw(shape=(), data=bytes(4)),
            "shape": [2**20, 2**20],
            "dtype": "float32",
        },
        {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
        {"type": "Discrete", "n": 2.0, "start": 0, "dtype": "int64"},
        {"type": "MultiBinary", "n": [2**30, 2**30]},
        {"type": "MultiBinary", "n": "2"},
        {"type": "Text", "min_length": 1, "max_length": 0, "charset": "ab"},
        {"type": "Text", "min_length": 1, "max_length": 2, "charset": 5},
        {"type": "Dict", "spaces": {}},
        {"type": "Dict", "spaces": [[1]]},
        {"type": "Tuple", "spaces": 1},
        {"type": "Sequence", "space": {"type": "Discrete", "n": 1}, "stack": 1},
        {"type": "Graph", "nodes": None, "edges": None},
    ],
    ids=lambda node: ascii(node)[:60],
)
def test_a_space_that_is_not_one_is_refused(node: Any) -> None:
    with pytest.raises(WireError):
        space_from_wire(node)


DEEP = 100_000


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (WireFormat.JSON, b""),
        (WireFormat.JSON, b"{"),
        (WireFormat.JSON, b"NaN"),
        (WireFormat.JSON, b"[Infinity]"),
        (WireFormat.JSON, b"\xff\xfe"),
        (WireFormat.JSON, b"[" * DEEP + b"]" * DEEP),
        (WireFormat.JSON, b"9" * 10_000),
        (WireFormat.MSGPACK, b""),
        (WireFormat.MSGPACK, b"\xc1"),
        (WireFormat.MSGPACK, b"\x91" * DEEP + b"\xc0"),
        (WireFormat.MSGPACK, msgpack.packb({"a": [1, 2]})[:-1]),
        (WireFormat.MSGPACK, msgpack.packb(1) + b"\x00"),
        (WireFormat.MSGPACK, msgpack.packb({1: 2}, strict_types=True)),
        (WireFormat.MSGPACK, b"\x81\x90\x01"),
        (WireFormat.MSGPACK, b"\xdd\xff\xff\xff\xff"),
        (WireFormat.MSGPACK, b"\xc6\xff\xff\xff\xff"),
        (WireFormat.MSGPACK, msgpack.packb(msgpack.ExtType(5, b"x"))),
        (WireFormat.MSGPACK, b"\xa2\xff\xff"),
    ],
    ids=lambda part: ascii(part)[:40],
)
def test_bytes_that_are_no_message_are_refused(form: WireFormat, data: bytes) -> None:
    with pytest.raises(WireError):
        loads(data, form)


@given(data=st.binary(max_size=60))
def test_no_bytes_do_anything_but_decode_or_be_refused(data: bytes) -> None:
    for form in FORMS:
        try:
            tree = loads(data, form)
        except WireError:
            continue
        for read in (from_wire, space_from_wire, lambda node: batch_from_wire(BOX, node, 1)):
            with contextlib.suppress(WireError):
                read(tree)


trees = st.recursive(
    scalars.filter(lambda value: not isinstance(value, np.generic)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["$", "dtype", "shape", "data", "items"]), inner),
        st.builds(
            lambda tag, inner: {"$": tag, **inner},
            st.sampled_from(["array", "scalar", "dict", "set", "tuple", "graph", "int", "bytes"]),
            st.dictionaries(st.sampled_from(["dtype", "shape", "data", "items"]), inner),
        ),
    ),
)


@given(value=values)
def test_orjson_writes_what_json_writes(value: Any) -> None:
    message = to_wire([value, {"half of a pair": "\ud800"}][: 1 + (type(value) is str)])
    in_one_call = json.loads(formats.encode_json(message))
    assert repr(in_one_call) == repr(json.loads(formats.encode_with_json(message)))
    assert repr(in_one_call) == repr(json.loads(formats.JsonWriter().write(message, 2**30)))


@given(tree=trees)
def test_no_tree_does_anything_but_decode_or_be_refused(tree: Any) -> None:
    with contextlib.suppress(WireError):
        from_wire(tree)


def test_a_timestamp_is_refused() -> None:
    with pytest.raises(WireError):
        from_wire(loads(msgpack.packb(msgpack.Timestamp(1)), WireFormat.MSGPACK))


# --- infos --------------------------------------------------------------------------------------

INFOS = [
    [{"a": 1, "b": 0.5}, {"a": 2, "b": math.inf}],
    [{"a": True}, {}],
    [{"a": np.float32(1.5), "b": np.bool_(True), "c": 2**40}, {"a": np.float32(2)}],
    [{}, {}],
    [{"a": 1, "t": "text"}, {"a": 2}],
    [{"a": 1}, {"a": 1.0}],
    [{"a": None}, {"a": None}],
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("infos", INFOS, ids=str)
def test_infos_are_the_same_through_both_forms(
    form: WireFormat, infos: list[dict[str, Any]]
) -> None:
    nodes = list(map(_info_to_wire, infos))
    assert_same(infos_from_wire(loads(dumps(nodes, form), form), 2), infos)


@pytest.mark.parametrize(
    "node",
    [
        None,
        [{}],
        [1, 2],
        {"$": "infos"},
        {"$": "infos", "count": 3, "columns": []},
        {"$": "infos", "count": 2, "columns": {}},
        {"$": "infos", "count": 2, "columns": [1]},
        {"$": "infos", "count": 2, "columns": [[1, "int", [1, 2], None]]},
        {"$": "infos", "count": 2, "columns": [["a", "object", [1, 2], None]]},
        {"$": "infos", "count": 2, "columns": [["a", ["int"], [1, 2], None]]},
        {"$": "infos", "count": 2, "columns": [["a", "int", [1], None]]},
        {"$": "infos", "count": 2, "columns": [["a", "int", [1, 2], [True]]]},
        *(
            {"$": "infos", "count": 2, "columns": [["a", "numpy.ndarray", array, None]]}
            for array in (
                [[1], [2]],
                None,
                {"$": "array", "dtype": "int8", "shape": [], "data": 1},
                {"$": "array", "dtype": "int8", "shape": [3, 1], "data": [[1], [2], [3]]},
                {"$": "array", "dtype": "object", "shape": [2], "data": [1, 2]},
            )
        ),
    ],
    ids=ascii,
)
def test_infos_that_are_none_are_refused(node: Any) -> None:
    with pytest.raises(WireError):
        infos_from_wire(node, 2)


NODES = [
    *(1, -1, 300, 70_000, 2**40, -200, -40_000, -(2**33), 1.5, None, True, [0] * 20, [0] * 70_000),
    *("x" * 5, "x" * 40, "x" * 300, "x" * 70_000, b"x" * 5, b"x" * 300, b"x" * 70_000),
    *(msgpack.ExtType(1, b"x" * size) for size in (1, 2, 3, 4, 8, 16, 17, 300, 70_000)),
    {str(key): key for key in range(20)},
    {str(key): [key] for key in range(70_000)},
]


@pytest.mark.parametrize("node", NODES, ids=lambda node: type(node).__name__)
def test_the_nodes_of_a_message_are_counted(node: Any) -> None:
    message = [node, "the end"]

    def count(node: Any) -> int:
        if isinstance(node, dict):
            return 1 + sum(1 + count(item) for item in node.values())
        return 1 + sum(map(count, node)) if isinstance(node, list) else 1

    packed, nodes = msgpack.packb(message), count(message)
    check_nodes(packed, nodes)
    with pytest.raises(TooManyNodesError):
        check_nodes(packed, nodes - 1)
    if not isinstance(node, bytes | msgpack.ExtType):
        text = json.dumps(message).encode()
        check_json_nodes(text, 2 * nodes)
        with pytest.raises(TooManyNodesError):
            check_json_nodes(text, nodes // 2)


@pytest.mark.parametrize("message", [{"a": np.arange(30_000.0).reshape(3, 10_000)}, NODES[:20]])
@pytest.mark.parametrize("form", list(WireFormat))
def test_a_message_with_a_limit_is_the_same_or_too_large(form: WireFormat, message: Any) -> None:
    whole = dumps(message, form)
    assert loads(dumps(message, form, len(whole)), form) == loads(whole, form)
    with pytest.raises(TooLargeError):
        dumps(message, form, len(whole) - 1)
    assert loads(dumps("after it", form), form) == "after it"


LARGE_DICT = {str(key): [key] if key == 20_000 else key for key in range(30_000)}


@pytest.mark.parametrize("items", [[], [1], [{"a": [0] * 20_000}, {}, LARGE_DICT]], ids=len)
@pytest.mark.parametrize("form", list(WireFormat))
def test_a_lazy_list_is_written_as_a_list(form: WireFormat, items: list[Any]) -> None:
    lazy = {"infos": LazyList(iter(items), len(items)), "end": 1}
    written = dumps(lazy, form, 2**20)
    assert written == dumps({"infos": items, "end": 1}, form, 2**20)
    assert loads(written, form) == {"infos": items, "end": 1}


@pytest.mark.parametrize("form", list(WireFormat))
def test_arrays_in_a_lazy_list_count_once(form: WireFormat) -> None:
    arrays = [to_wire(np.arange(30_000.0))] * 2
    whole = dumps({"infos": arrays}, form)
    lazy = {"infos": LazyList(iter(arrays), 2)}
    assert loads(dumps(lazy, form, len(whole)), form) == loads(whole, form)


@pytest.mark.parametrize("form", list(WireFormat))
def test_a_lazy_list_creates_no_more_than_fits(form: WireFormat) -> None:
    created = 0

    def create() -> Iterator[list[int]]:
        nonlocal created
        for created in range(1, 101):  # noqa: B007
            yield [1] * 10_000

    with pytest.raises(TooLargeError):
        dumps({"infos": LazyList(create(), 100)}, form, 45_000)
    assert created <= 5


@pytest.mark.parametrize("form", list(WireFormat))
def test_a_message_is_read_if_its_nodes_are_few_however_many_its_bytes(form: WireFormat) -> None:
    text, many = dumps("x" * 1000, form), dumps([0] * 1000, form)
    assert loads(text, form, max_nodes=100) == "x" * 1000
    assert loads(many, form, max_nodes=len(many)) == [0] * 1000
    with pytest.raises(TooManyNodesError):
        loads(many, form, max_nodes=500)


@pytest.mark.parametrize("form", WireFormat)
def test_deep_values_between_many_others_are_encoded(form: WireFormat) -> None:
    value: Any = [1.5] * 20_000
    for _ in range(62):
        value = {**dict.fromkeys(range(1, 20), 0), 0: value}
    node = to_wire(value)
    assert loads(dumps(node, form), form) == node


NUMBERED = spaces.Dict({1: spaces.Discrete(2), 2: spaces.Discrete(2)})


@pytest.mark.parametrize(
    ("space", "node", "error"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": [0, 1]}, "the keys .* got the keys .*'b'"),
        (spaces.Dict({"a": spaces.Discrete(2)}), [[0, 1]], "the keys .*'a'"),
        (NUMBERED, [[0, 1]], "a list of 2 items for Dict"),
        (NUMBERED, [[0, 1]] * 3, "a list of 2 items for Dict"),
        (NUMBERED, 5, "a list of 2 items for Dict"),
        (
            spaces.Tuple([spaces.Discrete(2)]),
            [],
            "a list of 1 item for Tuple, got a list of length 0",
        ),
        (spaces.Text(3), ["a"], "a list of 2 values for Text, got a list of length 1"),
        (spaces.Text(3), 5, "a list of 2 values for Text"),
    ],
)
def test_a_malformed_batch_is_refused(space: spaces.Space[Any], node: Any, error: str) -> None:
    with pytest.raises(WireError, match=f"expected {error}"):
        batch_from_wire(space, node, 2)
