"""The contract: infos of every kind arrive as they were, and stay so."""

from __future__ import annotations

import pkgutil
import threading
from functools import partial

import numpy as np
import pytest
from backends import QUICK_START
from comparing import assert_same
from example_envs import Level, LockingEnv, ReusingEnv, ScriptedEnv, plain_step

from xuance_envs.errors import EnvError
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

NAN = float("nan")

INFOS = {
    "empty": [{}],
    "numbers": [{"int": 3, "float": 0.1, "bool": True}, {"int": -3, "float": -0.0, "bool": False}],
    "floats at the edge": [{"nan": NAN, "inf": np.inf, "tiny": 5e-324}, {"nan": 1.0}],
    "ints": [{"n": n} for n in (0, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**40)],
    "numpy ints": [
        {"n": kind(n)}
        for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64)
        for n in (np.iinfo(kind).min, np.iinfo(kind).max)
    ],
    "numpy uint64": [{"n": np.uint64(2**64 - 1)}, {"n": np.uint64(2**63)}, {"n": np.uint64(3)}],
    "numpy floats": [
        {"x": kind(x)}
        for kind in (np.float16, np.float32, np.float64, np.longdouble)
        for x in (0.1, -0.0, np.nan, -np.inf)
    ],
    "other numpy scalars": [
        {"x": np.bool_(True), "y": np.bool_(False)},
        {"x": np.complex64(1 + 2j), "y": np.str_("a")},
        {"x": np.datetime64("2020-01-01"), "y": np.timedelta64(3, "s")},
        {"x": np.bytes_(b"a"), "y": np.uintc(4)},
    ],
    "changing types": [
        {"x": x} for x in (1, 1.0, np.float32(1), np.int64(1), True, np.bool_(True), None, "1", 1)
    ],
    "late keys": [{"a": 1}, {"a": 2, "b": 0.5}, {"c": True, "a": 3, "b": 0.5}, {"d": None}],
    "vanishing keys": [{"a": 1, "b": 2}, {"b": 2}, {}, {"a": 1}, {"b": "two"}, {"a": 1, "b": 2}],
    "as many keys, but others": [{"a": 1, "b": 2}, {"a": 1, "c": 2}, {"a": 1, "d": "x"}, {"e": 1}],
    "another order": [{"a": 1, "b": 2.0}, {"b": 2.0, "a": 1}, {"b": 1, "a": 2.0}],
    "strings and bytes": [{"s": "text", "b": b"bytes", "e": ""}, {"s": "ünïcödé \0 \ud800"}],
    "none": [{"x": None}, {"x": None, "y": 1}, {"y": None}],
    "arrays": [{"a": np.arange(6).reshape(2, 3), "n": 1}, {"a": np.array(["x", None], object)}],
    "no dimensions": [{"a": np.array(5)}, {"a": np.array(0.5, np.float16)}, {"a": np.int64(5)}],
    "more than a pipe holds": [{"a": np.arange(30_000)}, {"s": "x" * 200_000, "n": 1}],
    "nested": [{"d": {"e": {"f": np.ones(2), "g": (1, [2.0, None])}}, "n": 1}, {"d": {}}],
    "keys that are no strings": [{1: "one", (0, 1): 2, None: 3}, {True: 1, 2.5: 0, b"k": 1.0}],
    "a key of every hue": [{"": 1, "a b": 2.0, "ü": 3, "__main__": 4, "\0": None}],
    "more keys than columns": [
        {f"key {k}": k for k in range(100)},
        {f"key {k}": k / 2 for k in range(99, -1, -1)},
        {f"key {k}": str(k) for k in range(0, 100, 7)},
    ],
    "ever new keys": [{f"step {step}": step, "always": 1} for step in range(90)],
    "sorts of int": [{"x": Level.LOW}, {"x": 1}, {"x": Level.LOW}],
}


def one_step_each(scripts):
    """Functions that make environments which give these infos, one at each step."""
    return [partial(ScriptedEnv, steps=script) for script in scripts]


SOME_INFOS = {
    name: INFOS[name]
    for name in ("numbers", "changing types", "vanishing keys", "arrays", "more keys than columns")
}


def rotated(script, i):
    """The script from another place on, so that each environment's infos are of another kind."""
    start = i % len(script)
    return script[start:] + script[:start]


@pytest.mark.everywhere(
    "numbers", "changing types", "late keys", "more than a pipe holds", "nested"
)
@pytest.mark.parametrize("script", INFOS.values(), ids=INFOS)
def test_an_info_arrives_as_the_environment_gave_it(make_either, script):
    scripts = [rotated(script, i) for i in range(5)]
    envs = make_either(one_step_each(scripts))
    envs.reset()
    for step in range(len(script) + 2):
        infos = envs.step([0] * 5)[4]
        for i, own_script in enumerate(scripts):
            assert_same(infos[i], own_script[step % len(script)], f"step {step}, infos[{i}]")


@pytest.mark.parametrize("script", SOME_INFOS.values(), ids=SOME_INFOS)
def test_the_info_of_a_reset_arrives_as_the_environment_gave_it(make, script):
    envs = make([partial(ScriptedEnv, resets=rotated(script, i)) for i in range(5)])
    for count in range(len(script) + 1):
        infos = envs.reset()[1]
        for i in range(5):
            assert_same(infos[i], script[(count + i) % len(script)], f"infos[{i}]")


@pytest.mark.everywhere("changing types")
@pytest.mark.parametrize("script", SOME_INFOS.values(), ids=SOME_INFOS)
def test_reset_info_is_the_info_of_the_automatic_reset(make, script):
    ending = [plain_step(terminated=True, info={"last": True})]
    envs = make([partial(ScriptedEnv, ending, [{}, *rotated(script, i)]) for i in range(5)])
    envs.reset()
    for step in range(len(script)):
        infos = envs.step([0] * 5)[4]
        for i in range(5):
            expected = script[(step + i) % len(script)]
            assert_same(infos[i]["reset_info"], expected, f"infos[{i}]['reset_info']")
            assert infos[i]["last"] is True


# --- a sequence of dicts ------------------------------------------------------------------------


@pytest.fixture
def infos(make):
    """The infos of a step in which environments 1 and 3 end an episode."""
    envs = make([partial(ReusingEnv, (length,)) for length in (9, 1, 9, 1, 9)])
    envs.reset()
    return envs.step([5, 6, 7, 8, 9])[4]


def test_an_info_is_the_same_object_on_every_look(infos):
    assert infos[1] is infos[1]
    assert infos[1] is infos[-4]
    assert infos[1]["trail"] is infos[1]["trail"]
    assert infos[1]["reset_obs"] is infos[1]["reset_obs"]


def test_writing_into_an_info_lasts_and_leaves_the_others_alone(infos):
    infos[0]["mine"] = 1
    infos[0]["trail"][:] = 99
    del infos[1]["step"]
    assert infos[0]["mine"] == 1
    assert "step" not in infos[1]
    assert "mine" not in infos[2]
    assert infos[2]["trail"].tolist() == [1, 1, 7]


def test_an_info_can_be_replaced(infos):
    mine = {"mine": 1}
    infos[2] = mine
    infos[-1] = mine
    assert infos[2] is mine
    assert infos[4] is mine
    assert infos[3]["step"] == 1


def test_a_negative_index_counts_from_the_end(infos):
    assert infos[-1]["trail"][2] == 9
    assert infos[-5]["trail"][2] == 5


def test_an_index_may_be_a_numpy_integer(infos):
    assert infos[np.int64(3)] is infos[3]


@pytest.mark.parametrize("index", [5, -6, 100])
def test_an_index_beyond_the_environments_is_an_index_error(infos, index):
    with pytest.raises(IndexError):
        infos[index]
    with pytest.raises(IndexError):
        infos[index] = {}


@pytest.mark.parametrize("key", ["step", 1.0, None])
def test_an_index_that_is_no_int_is_a_type_error(infos, key):
    with pytest.raises(TypeError):
        infos[key]


def test_a_slice_is_a_list_of_the_same_dicts(infos):
    assert type(infos[1:4]) is list
    assert [id(info) for info in infos[1:4]] == [id(infos[i]) for i in (1, 2, 3)]
    assert [id(info) for info in infos[::-2]] == [id(infos[i]) for i in (4, 2, 0)]
    assert infos[5:] == []


def test_it_can_be_gone_through_in_both_directions(infos):
    expected = [id(infos[i]) for i in range(5)]
    assert [id(info) for info in infos] == expected
    assert [id(info) for info in reversed(infos)] == expected[::-1]
    assert len(infos) == 5


def test_it_equals_a_list_of_the_same_dicts_and_shows_as_one(make):
    envs = make(one_step_each([[{"n": n}] for n in range(5)]))
    envs.reset()
    infos = envs.step([0] * 5)[4]
    assert infos == [{"n": n} for n in range(5)]
    assert infos != [{"n": n} for n in range(4)]
    assert repr(infos) == "[{'n': 0}, {'n': 1}, {'n': 2}, {'n': 3}, {'n': 4}]"


@pytest.mark.everywhere("False")
@pytest.mark.parametrize("copy", [True, False])
def test_looked_at_after_later_steps_an_info_still_shows_its_own_step(make, copy):
    envs = make([partial(ReusingEnv, (length,)) for length in (9, 1, 2, 1, 9)], copy=copy)
    held = [envs.reset()[1]]
    held += [envs.step([step] * 5)[4] for step in (21, 22, 23, 24)]
    envs.reset()
    for step, infos in enumerate(held):
        assert_same(infos[4]["trail"], np.array([1, step, 20 + step if step else -1], np.float32))
        assert infos[4]["step"] == step
        if step:
            episode = np.array([step + 1, 0, -1], np.float32)
            assert_same(infos[1]["reset_obs"], episode)
            assert_same(infos[1]["reset_info"], {"trail": episode, "step": 0})


@pytest.mark.everywhere
def test_infos_outlive_the_vector_environment(make):
    envs = make([partial(ReusingEnv, (1,))] * 5)
    envs.reset()
    infos = envs.step([3] * 5)[4]
    envs.close()
    assert infos[2]["trail"].tolist() == [1, 1, 3]
    assert infos[2]["reset_obs"].tolist() == [2, 0, -1]


def test_buf_infos_are_those_of_the_last_step(make):
    envs = make([ReusingEnv] * 5)
    assert [dict(info) for info in envs.buf_infos] == [{}] * 5
    envs.reset()
    infos = envs.step([3] * 5)[4]
    assert envs.buf_infos is infos


def test_without_processes_an_info_may_hold_what_cannot_be_copied_beside_what_can():
    array, lock = np.zeros(2), threading.Lock()
    step = plain_step(info={"lock": lock, "array": array})
    with DummyVecEnv([partial(ScriptedEnv, [step])]) as envs:
        envs.reset()
        infos = envs.step([0])[4]
        array += 1
        assert infos[0]["lock"] is lock
        assert infos[0]["array"].tolist() == [0, 0]


def test_an_info_that_cannot_be_sent_is_an_error_naming_its_environment():
    env_fns = [ReusingEnv] * 5
    env_fns[3] = LockingEnv
    with SubprocVecEnv(env_fns, in_series=2, context=QUICK_START) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"environment 3 failed in 'step': .*cannot be pickled"):
            envs.step([0] * 5)
        assert envs.closed


# --- columns ------------------------------------------------------------------------------------


def columns_of(make, infos, key):
    envs = make(one_step_each([[info] for info in infos]))
    envs.reset()
    return envs.step([0] * 5)[4].column(key)


ALL = [True] * 5
SOME = [True, False, True, True, False]
ABSENT = object()

COLUMNS = {
    "ints": ([1, 2, 3, 4, 2**62], ALL, np.int64),
    "floats": ([0.1, np.nan, -0.0, np.inf, 5e-324], ALL, np.float64),
    "bools": ([True, False, True, True, False], ALL, np.bool_),
    "numpy bools": ([np.True_, np.False_] * 2 + [np.True_], ALL, np.bool_),
    "float32": ([np.float32(x) for x in (0.1, 1, 2, 3, 4)], ALL, np.float32),
    "float16": ([np.float16(x) for x in (0.1, 1, 2, 3, 4)], ALL, np.float16),
    "uint8": ([np.uint8(x) for x in (0, 1, 2, 254, 255)], ALL, np.uint8),
    "uint64": ([np.uint64(x) for x in (0, 1, 2, 3, 2**62)], ALL, np.uint64),
    "some ints": ([7, ABSENT, 8, 9, ABSENT], SOME, np.int64),
    "some floats": ([0.5, ABSENT, 1.5, 2.5, ABSENT], SOME, np.float64),
    "some bools": ([True, ABSENT, True, False, ABSENT], SOME, np.bool_),
    "ints and floats": ([1, 0.5, np.int8(2), np.float32(0.25), True], ALL, np.float64),
    "some ints and floats": ([1, ABSENT, 0.5, 2, ABSENT], SOME, np.float64),
    "nowhere": ([ABSENT] * 5, [False] * 5, np.float64),
    "strings": (["a", "", "c", "dd", "e"], ALL, object),
    "some strings": (["a", ABSENT, "c", "d", ABSENT], SOME, object),
    "numbers and strings": ([1, "two", 3.0, True, np.int8(5)], ALL, object),
    "none": ([None] * 5, ALL, object),
    "numbers and none": ([None, ABSENT, 1, 0.5, ABSENT], SOME, object),
    "ints beyond 64 bits": ([1, 2**70, 3, 4, 5], ALL, object),
    "tuples": ([(1, 2), (), (3,), (4,), ([],)], ALL, object),
    "lists": ([[1, 2], ABSENT, [3], [4, 5], ABSENT], SOME, object),
}


@pytest.mark.parametrize(("values", "mask", "dtype"), COLUMNS.values(), ids=COLUMNS)
def test_a_column_is_one_key_of_all_infos(make_either, values, mask, dtype):
    # Their other keys differ, so groups of environments find the key in different places.
    infos = [{f"other {i}": i, "key": value} for i, value in enumerate(values)]
    infos = [{k: v for k, v in info.items() if v is not ABSENT} for info in infos]
    got, got_mask = columns_of(make_either, infos, "key")
    assert_same(got_mask, np.array(mask))
    assert (got.shape, got.dtype) == ((5,), dtype)
    nothing = None if dtype is object else np.zeros((), dtype)[()]
    for i, value in enumerate(values):
        if dtype is object:
            assert_same(got[i], nothing if value is ABSENT else value)
        else:
            assert_same(got[i], nothing if value is ABSENT else dtype(value))


def test_a_column_may_be_of_a_key_beyond_those_that_have_columns(make):
    infos = [{f"key {k}": k + i for k in range(100)} for i in range(5)]
    for key, first in (("key 0", 0), ("key 99", 99)):
        values, mask = columns_of(make, infos, key)
        assert values.tolist() == [first + i for i in range(5)]
        assert mask.all()


def test_a_column_belongs_to_the_caller(make):
    envs = make([partial(ReusingEnv, (9,))] * 5)
    envs.reset()
    infos = envs.step([0] * 5)[4]
    values, mask = infos.column("step")
    values[:], mask[:] = 99, False
    assert infos[0]["step"] == 1
    assert infos.column("step")[0].tolist() == [1] * 5
    assert infos.column("step")[1].all()


@pytest.mark.everywhere
def test_a_column_looked_at_after_later_steps_still_shows_its_own_step(make):
    envs = make([partial(ReusingEnv, (9,))] * 5)
    held = [envs.reset()[1]]
    held += [envs.step([0] * 5)[4] for _ in range(3)]
    for step, infos in enumerate(held):
        assert infos.column("step")[0].tolist() == [step] * 5


@pytest.mark.everywhere
def test_a_column_of_a_partial_reset_is_in_the_order_asked_for(make):
    envs = make([partial(ScriptedEnv, resets=[{"n": i, "s": str(i)}]) for i in range(5)])
    envs.reset()
    infos = envs.reset(env_ids=[4, 0, 3])[1]
    assert infos.column("n")[0].tolist() == [4, 0, 3]
    assert infos.column("s")[0].tolist() == ["4", "0", "3"]


def test_a_column_is_of_the_infos_of_the_step_not_of_the_resets(make):
    step = plain_step(terminated=True, info={"n": 1})
    envs = make([partial(ScriptedEnv, [step], [{"n": 2, "first": True}])] * 5)
    envs.reset()
    infos = envs.step([0] * 5)[4]
    assert infos.column("n")[0].tolist() == [1] * 5
    assert not infos.column("first")[1].any()


# --- what it costs ------------------------------------------------------------------------------


PICKLING = (
    "xuance_envs.engine.pickled_commands.dumps_for_worker",
    "xuance_envs.engine.pickled_commands.loads",
    "xuance_envs.engine.serialization.copy.deepcopy",
)
"""How this process turns objects into bytes for a worker and back, and copies its own."""


@pytest.fixture
def pickled(monkeypatch):
    """Everything that is pickled, or read from a pickle, or copied in this process."""
    values = []

    def noting(original):
        def noted(value):
            values.append(value)
            return original(value)

        return noted

    for place in PICKLING:
        module, _, name = place.rpartition(".")
        monkeypatch.setattr(place, noting(getattr(pkgutil.resolve_name(module), name)))
    return values


def test_an_ordinary_step_pickles_and_copies_nothing(make, pickled):
    infos = [
        {"n": n, "x": n / 2, "won": n > 1, "none": None, "array": np.full((2, 3), n)}
        for n in range(4)
    ]
    steps = [plain_step(terminated=n == 3, info=info) for n, info in enumerate(infos)]
    envs = make([partial(ScriptedEnv, steps, [{"first": 1, "mask": np.ones(4, bool)}])] * 5)
    envs.reset()
    for _ in steps:  # new columns are told once
        envs.step([0] * 5)
    pickled.clear()
    ends = 0
    for _ in range(12):
        infos = envs.step([0] * 5)[4]
        ends += sum("reset_info" in info for info in infos)
        assert infos.column("n")[1].all()
        assert_same(infos.column("array")[0], np.broadcast_to(infos[0]["array"], (5, 2, 3)))
    assert ends == 15
    assert pickled == []


def test_whatever_does_not_fit_in_columns_is_pickled_or_copied_in_that_step_only(make, pickled):
    envs = make([partial(ScriptedEnv, [{"n": 1, "s": "a string"}, {"n": 2}])] * 5)
    envs.reset()
    for _ in range(3):
        assert envs.step([0] * 5)[4][0] == {"n": 1, "s": "a string"}
        assert pickled != []
        pickled.clear()
        envs.step([0] * 5)
        assert pickled == []
