"""The contract: every form actions may come in, the form environments get them in, wrong ones."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from backends import QUICK_START
from comparing import assert_same
from example_envs import PLAIN, CustomSpace, EchoEnv, HoldingEnv, ReusingEnv
from gymnasium import spaces

from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv
from xuance_envs.vector_envs.subproc_vec_env import SubprocVecEnv

DISCRETE = spaces.Discrete(100)
FROM_MINUS_TWO = spaces.Discrete(5, start=-2)
BOX = spaces.Box(-1, 1, (2,), np.float32)
NUMBER = spaces.Box(-1, 1, (), np.float32)
ONE = spaces.Box(-1, 1, (1,), np.float32)
BYTES = spaces.Box(0, 255, (2,), np.uint8)
LEVERS = spaces.MultiDiscrete([3, 4])
BUTTONS = spaces.MultiBinary(3)
DICT = spaces.Dict(move=BOX, jump=DISCRETE)
TUPLE = spaces.Tuple((DISCRETE, BOX))
DEEP = spaces.Dict(a=TUPLE, b=spaces.Dict(c=BUTTONS))
TEXT = spaces.Text(9)
SEQUENCE = spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True)
TEXT_AND_NUMBER = spaces.Dict(text=TEXT, number=DISCRETE)


def takers(action_space, count=5):
    """Functions that make environments which remember the actions they receive."""
    return [partial(EchoEnv, PLAIN, action_space, length=100)] * count


def received(make, action_space, actions, count=5, **options):
    """What each environment received as its action."""
    envs = make(takers(action_space, count), **options)
    envs.reset(seed=0)
    envs.step(actions)
    return [got[-1] for got in envs.get_attr("received")]


def discrete(numbers):
    return [np.int64(number) for number in numbers]


def boxes(start, count=5):
    return [np.full(2, (start + i) / 8, np.float32) for i in range(count)]


# --- every form ---------------------------------------------------------------------------------

DISCRETE_FORMS = {
    "array": np.array([5, 6, 7, 8, 9]),
    "another kind of int": np.array([5, 6, 7, 8, 9], np.uint8),
    "unsigned": np.array([5, 6, 7, 8, 9], np.uint64),
    "big-endian": np.array([5, 6, 7, 8, 9], ">i4"),
    "whole floats": np.array([5, 6, 7, 8, 9], np.float32),
    "list": [5, 6, 7, 8, 9],
    "list of NumPy ints": discrete([5, 6, 7, 8, 9]),
    "mixed list": [5, np.int8(6), np.array(7), 8, 9],
    "tuple": (5, 6, 7, 8, 9),
    "every second": np.arange(5, 15)[:5],
    "backwards": np.arange(9, 4, -1)[::-1],
}


@pytest.mark.parametrize("actions", DISCRETE_FORMS.values(), ids=DISCRETE_FORMS)
def test_numbers_may_come_in_any_of_these_forms(make_either, actions):
    assert_same(received(make_either, DISCRETE, actions), discrete([5, 6, 7, 8, 9]))


BOX_FORMS = {
    "array": np.stack(boxes(0)),
    "doubles": np.stack(boxes(0)).astype(np.float64),
    "halves": np.stack(boxes(0)).astype(np.float16),
    "list of arrays": boxes(0),
    "list of lists": [box.tolist() for box in boxes(0)],
    "tuple of arrays": tuple(boxes(0)),
    "columns": np.asfortranarray(np.stack(boxes(0))),
}


@pytest.mark.parametrize("actions", BOX_FORMS.values(), ids=BOX_FORMS)
def test_arrays_may_come_in_any_of_these_forms(make_either, actions):
    assert_same(received(make_either, BOX, actions), boxes(0))


def test_ints_may_stand_for_whole_floats(make):
    actions = np.array([[0, 1]] * 5)
    assert_same(received(make, BOX, actions), [np.array([0, 1], np.float32)] * 5)


def dicts(count=5):
    moves, jumps = boxes(0, count), discrete(range(count))
    return [{"move": move, "jump": jump} for move, jump in zip(moves, jumps, strict=True)]


DICT_FORMS = {
    "batched": {"move": np.stack(boxes(0)), "jump": np.arange(5)},
    "batched in another order": {"jump": np.arange(5), "move": np.stack(boxes(0))},
    "batched lists": {"move": [box.tolist() for box in boxes(0)], "jump": [0, 1, 2, 3, 4]},
    "list of dicts": dicts(),
    "list of dicts of plain numbers": [
        {"move": action["move"].tolist(), "jump": int(action["jump"])} for action in dicts()
    ],
}


@pytest.mark.parametrize("actions", DICT_FORMS.values(), ids=DICT_FORMS)
def test_dicts_may_come_in_any_of_these_forms(make_either, actions):
    assert_same(received(make_either, DICT, actions), dicts())


def tuples(count=5):
    return list(zip(discrete(range(count)), boxes(0, count), strict=True))


TUPLE_FORMS = {
    "batched": (np.arange(5), np.stack(boxes(0))),
    "batched lists": ([0, 1, 2, 3, 4], [box.tolist() for box in boxes(0)]),
    "list of tuples": tuples(),
    "list of lists": [list(action) for action in tuples()],
}


@pytest.mark.parametrize("actions", TUPLE_FORMS.values(), ids=TUPLE_FORMS)
def test_tuples_may_come_in_any_of_these_forms(make_either, actions):
    assert_same(received(make_either, TUPLE, actions), tuples())


def test_a_tuple_is_the_batch_and_a_list_is_one_action_per_environment(make):
    space = spaces.Tuple((DISCRETE, DISCRETE))
    as_tuple = received(make, space, ([1, 2], [3, 4]), count=2)
    assert_same(as_tuple, [(np.int64(1), np.int64(3)), (np.int64(2), np.int64(4))])
    as_list = received(make, space, [[1, 2], [3, 4]], count=2)
    assert_same(as_list, [(np.int64(1), np.int64(2)), (np.int64(3), np.int64(4))])


@pytest.mark.everywhere("batched")
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "list"])
def test_nested_actions_arrive_nested(make, batched):
    bits = np.array([[1, 0, i % 2] for i in range(5)], np.int8)
    expected = [{"a": pair, "b": {"c": bits[i]}} for i, pair in enumerate(tuples())]
    in_one = {"a": (np.arange(5), np.stack(boxes(0))), "b": {"c": bits}}
    assert_same(received(make, DEEP, in_one if batched else expected), expected)


WORDS = ["a", "", "cc", "ü", "e"]


@pytest.mark.parametrize("actions", [WORDS, tuple(WORDS)], ids=["list", "tuple"])
def test_objects_come_as_a_list_or_tuple(make, actions):
    assert_same(received(make, TEXT, actions), WORDS)


@pytest.mark.everywhere("list")
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "list"])
def test_objects_may_be_among_arrays(make, batched):
    expected = [{"text": word, "number": np.int64(i)} for i, word in enumerate(WORDS)]
    actions = {"text": WORDS, "number": np.arange(5)} if batched else expected
    assert_same(received(make, TEXT_AND_NUMBER, actions), expected)


@pytest.mark.everywhere
def test_object_actions_reach_their_environments_at_every_step(make):
    envs = make(takers(TEXT))
    envs.reset(seed=0)
    for step in range(4):
        envs.step([f"{step}, {i}" for i in range(5)])
    expected = tuple([f"{step}, {i}" for step in range(4)] for i in range(5))
    assert envs.get_attr("received") == expected


# --- one environment alone ----------------------------------------------------------------------

BARE = {
    "int": (DISCRETE, 7, np.int64(7)),
    "NumPy int": (DISCRETE, np.int8(7), np.int64(7)),
    "no dimensions": (DISCRETE, np.array(7), np.int64(7)),
    "array": (BOX, boxes(3)[0], boxes(3)[0]),
    "list for an array": (BOX, [0.5, 0.25], np.array([0.5, 0.25], np.float32)),
    "number": (NUMBER, 0.5, np.array(0.5, np.float32)),
    "array of one": (ONE, np.array([0.5]), np.array([0.5], np.float32)),
    "levers": (LEVERS, [2, 3], np.array([2, 3], np.int64)),
    "dict": (DICT, dicts()[3], dicts()[3]),
    "tuple": (TUPLE, tuples()[3], tuples()[3]),
    "text": (TEXT, "word", "word"),
}


@pytest.mark.parametrize(("space", "action", "expected"), BARE.values(), ids=BARE)
def test_one_environment_takes_a_bare_action(make_either, space, action, expected):
    assert_same(received(make_either, space, action, count=1), [expected])


@pytest.mark.parametrize(("space", "action", "expected"), BARE.values(), ids=BARE)
def test_one_environment_takes_a_list_of_one(make_either, space, action, expected):
    assert_same(received(make_either, space, [action], count=1), [expected])


BARE_OF_ANOTHER_SHAPE = {
    "array for a number": (DISCRETE, [[7]]),
    "number for an array": (BOX, 0.5),
    "one for two": (BOX, [0.5]),
    "three for two": (BOX, [0.5, 0.5, 0.5]),
    "one for a batch": (ONE, 0.5),
    "ragged": (BOX, [[0.5, 0.5], [0.5]]),
}


@pytest.mark.parametrize(
    ("space", "action"), BARE_OF_ANOTHER_SHAPE.values(), ids=BARE_OF_ANOTHER_SHAPE
)
def test_one_environment_refuses_a_bare_action_of_another_shape(make_either, space, action):
    envs = make_either(takers(space, count=1))
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"expected .*got "):
        envs.step(action)


@pytest.mark.parametrize("action", [3, [3], np.array(3)], ids=repr)
def test_several_environments_do_not_share_a_bare_action(make_either, action):
    envs = make_either(takers(DISCRETE))
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"expected shape \(5,\), got"):
        envs.step(action)


# --- the form environments get them in ----------------------------------------------------------


@pytest.mark.everywhere
def test_actions_may_be_written_to_by_their_environment(make):
    # EchoEnv writes into every array it received: no other environment, nor the caller, sees it.
    envs = make(takers(DEEP))
    envs.reset(seed=0)
    bits = np.array([[1, 1, 1]] * 5, np.int8)
    actions = {"a": (np.arange(5), np.stack(boxes(1))), "b": {"c": bits}}
    for _ in range(2):
        envs.step(actions)
    assert_same(actions["a"][1], np.stack(boxes(1)))
    assert bits.all()
    for i, got in enumerate(envs.get_attr("received")):
        expected = {"a": (np.int64(i), boxes(1)[i]), "b": {"c": bits[i]}}
        assert_same(got, [expected, expected])


def test_object_actions_may_be_written_to_by_their_environment(make):
    actions = [np.full((2, 2), 0.5, np.float32) for _ in range(5)]
    received(make, SEQUENCE, actions)
    assert_same(actions, [np.full((2, 2), 0.5, np.float32)] * 5)


@pytest.mark.everywhere
def test_an_action_held_by_its_environment_is_not_overwritten(make):
    envs = make([HoldingEnv] * 5)
    envs.reset(seed=0)
    for step in range(3):
        envs.step(np.full((5, 2), step, np.float32))
    for held in envs.get_attr("held"):
        assert [action.tolist() for action in held] == [[0, 0], [1, 1], [2, 2]]


# --- actions outside their space ----------------------------------------------------------------

OUTSIDE = {
    "Discrete": (DISCRETE, [0, 1, 2, 100, -1], discrete([0, 1, 2, 100, -1])),
    "Box": (BOX, [[9, 9]] * 5, [np.array([9, 9], np.float32)] * 5),
    "NaN": (BOX, [[np.nan, 0]] * 5, [np.array([np.nan, 0], np.float32)] * 5),
    "Text": (TEXT, ["!?"] * 5, ["!?"] * 5),
}


@pytest.mark.parametrize(("space", "actions", "expected"), OUTSIDE.values(), ids=OUTSIDE)
def test_values_outside_the_space_are_the_environments_business(
    make_either, space, actions, expected
):
    assert_same(received(make_either, space, actions), expected)


@pytest.mark.parametrize(("space", "actions", "expected"), OUTSIDE.values(), ids=OUTSIDE)
def test_check_actions_refuses_values_outside_the_space(make_either, space, actions, expected):
    envs = make_either(takers(space), check_actions=True)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"environment \d.*expected.*got"):
        envs.step(actions)
    assert envs.get_attr("received") == ([],) * 5
    assert not envs.waiting


@pytest.mark.everywhere
def test_check_actions_names_the_environment(make):
    envs = make(takers(DISCRETE), check_actions=True)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"environment 3.*Discrete\(100\).*100"):
        envs.step([0, 1, 2, 100, -1])


def test_check_actions_lets_all_others_pass(make):
    actions = {"move": np.stack(boxes(0)), "jump": np.arange(5)}
    assert_same(received(make, DICT, actions, check_actions=True), dicts())
    assert_same(received(make, TEXT, ["a", "b", "c", "d", "e"], check_actions=True), [*"abcde"])


F32 = np.float32
EDGES = {
    "Discrete": (FROM_MINUS_TWO, [-3, -2, 2, 3]),
    "Box": (
        spaces.Box(-1, 0.1, (2,), F32),
        [-1, np.nextafter(F32(-1), F32(-2)), F32(0.1), np.nextafter(F32(0.1), F32(1)), -0.0],
    ),
    "Box, no number": (BOX, [np.nan]),
    "Box without bounds": (spaces.Box(-np.inf, np.inf, (2,), F32), [np.inf, -np.inf, np.nan]),
    "Box of bytes": (spaces.Box(0, 200, (2,), np.uint8), [0, 200, 201]),
    "Box of one number": (NUMBER, [1, 2, np.nan]),
    "MultiDiscrete": (LEVERS, [2, 3, -1]),
    "MultiBinary": (BUTTONS, [1, 2]),
}


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize(("space", "values"), EDGES.values(), ids=EDGES)
def test_check_actions_refuses_arrays_just_where_the_space_would(space, values, count):
    with DummyVecEnv(takers(space, count), check_actions=True) as envs:
        envs.reset(seed=0)
        for value in values:
            actions = np.array([space.sample()] * count, space.dtype)
            actions[-1] = value
            if space.contains(actions[-1, ...]):
                envs.step(actions)
                continue
            with pytest.raises(ValueError, match=f"environment {count - 1}: expected"):
                envs.step(actions)


# --- wrong actions ------------------------------------------------------------------------------

WRONG = {
    "too few": (DISCRETE, [0, 1, 2, 3], r"expected shape \(5,\), got shape \(4,\)"),
    "too many": (DISCRETE, np.arange(6), r"expected shape \(5,\), got shape \(6,\)"),
    "none at all": (DISCRETE, [], r"expected shape \(5,\), got shape \(0,\)"),
    "None": (DISCRETE, None, r"expected shape \(5,\), got"),
    "another shape": (DISCRETE, [[0]] * 5, r"expected shape \(5,\), got shape \(5, 1\)"),
    "one row for all": (BOX, [0.5, 0.5], r"expected shape \(5, 2\), got shape \(2,\)"),
    "transposed": (BOX, np.zeros((2, 5)), r"expected shape \(5, 2\), got shape \(2, 5\)"),
    "ragged": (BOX, [[0.5]] + [[0.5, 0.5]] * 4, r"expected .*\(5, 2\).*got"),
    "halves for ints": (DISCRETE, [0, 1, 2.5, 3, 4], "expected .*int64.*got .*float64"),
    "NaN for ints": (DISCRETE, [0, 1, np.nan, 3, 4], "expected .*int64.*got .*float64"),
    "inf for ints": (DISCRETE, [0, 1, np.inf, 3, 4], "expected .*int64.*got .*float64"),
    "300 for bytes": (BYTES, [[0, 300]] * 5, "expected .*uint8.*got .*300"),
    "-1 for bytes": (BYTES, [[0, -1]] * 5, "expected .*uint8.*got .*-1"),
    "-1 for bytes, as int8": (BYTES, np.full((5, 2), -1, np.int8), "expected .*uint8.*got .*-1"),
    "2**64 - 1 for int64": (
        DISCRETE,
        np.full(5, 2**64 - 1, np.uint64),
        "expected .*int64.*got .*18446744073709551615",
    ),
    "beyond float32": (BOX, np.full((5, 2), 1e300), r"expected .*float32.*got .*1e\+300"),
    "int beyond float32": (BOX, np.full((5, 2), 2**24 + 1), "expected .*float32.*got .*16777217"),
    "strings": (DISCRETE, ["0", "1", "2", "3", "4"], "expected .*int64.*got"),
    "objects": (DISCRETE, np.array([0, 1, 2, 3, 4], object), "expected .*int64.*got .*object"),
    "complex": (BOX, np.zeros((5, 2), complex), "expected .*float32.*got .*complex128"),
    "masked": (DISCRETE, np.ma.masked_equal(np.arange(5), 3), "expected no masked values, got 1"),
    "masked in a dict": (
        DICT,
        {"move": np.zeros((5, 2)), "jump": np.ma.masked_less(np.arange(5), 2)},
        r"\['jump'\]: expected no masked values, got 2",
    ),
    "array for a dict": (DICT, np.zeros((5, 3)), r"expected a dict .*move.*got an array"),
    "missing key": (DICT, {"move": np.zeros((5, 2))}, r"expected .*jump.*got .*\['move'\]"),
    "surplus key": (DICT, {**DICT_FORMS["batched"], "x": 1}, r"expected .*jump.*got .*'x'"),
    "too few in a dict": (
        DICT,
        {"move": np.zeros((4, 2)), "jump": np.arange(5)},
        r"\['move'\]: expected shape \(5, 2\), got shape \(4, 2\)",
    ),
    "too few dicts": (DICT, dicts(4), "expected a list of 5 values, got .*4"),
    "one wrong dict": (DICT, [*dicts(4), {"move": boxes(0)[0]}], "expected .*jump.*got"),
    "one that is no dict": (DICT, [*dicts(4), 7], "expected .*dict.*got 7"),
    "too few batches": (TUPLE, (np.arange(5),), "expected a tuple of length 2, got .*length 1"),
    "tuple of actions": (TUPLE, tuple(tuples()), "expected a tuple of length 2, got .*length 5"),
    "too few tuples": (TUPLE, tuples(4), "expected a list of 5 values, got .*4"),
    "too few words": (TEXT, ["a", "b"], "expected a list of 5 values, got .*length 2"),
    "one word": (TEXT, "abcde", "expected .*5 .*got 'abcde'"),
    "words under a key": (TEXT_AND_NUMBER, {"text": ["a"], "number": range(5)}, "expected .*5"),
}


@pytest.mark.parametrize(("space", "actions", "message"), WRONG.values(), ids=WRONG)
def test_wrong_actions_are_refused_with_expected_and_got(make_either, space, actions, message):
    envs = make_either(takers(space))
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.step(actions)
    assert envs.get_attr("received") == ([],) * 5, "nothing should have been sent"


@pytest.mark.parametrize("caller_steps", [False, True], ids=["workers", "caller-steps"])
def test_actions_that_cannot_be_sent_are_refused_and_none_is_sent(caller_steps):
    options = {"context": QUICK_START, "in_series": 2, "caller_steps": caller_steps}
    with SubprocVecEnv(takers(CustomSpace()), **options) as envs:
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=r"environments 2, 3 cannot be pickled"):
            envs.step(["x", "x", threading.Lock(), "x", "x"])
        assert not envs.waiting
        assert envs.get_attr("received") == ([],) * 5
        envs.step(["x"] * 5)
        assert envs.get_attr("received") == (["x"],) * 5


@pytest.mark.everywhere("step_async")
@pytest.mark.parametrize("method", ["step", "step_async"])
def test_after_wrong_actions_it_is_usable_as_before(make_on_all, method):
    envs = make_on_all([ReusingEnv] * 5)
    envs.reset()
    envs.step([1] * 5)
    for wrong in ([1, 2], [0.5] * 5, None):
        with pytest.raises(ValueError, match="expected"):
            getattr(envs, method)(wrong)
        assert not envs.waiting
    assert envs.get_attr("steps_ever") == (1,) * 5
    assert envs.step([1, 2, 3, 4, 5])[0].tolist() == [[1, 2, i] for i in range(1, 6)]


@pytest.mark.everywhere
def test_wrong_actions_do_not_change_the_ones_before(make):
    # What was stored before the wrong part was found must not matter.
    envs = make(takers(DICT))
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="expected"):
        envs.step({"move": np.stack(boxes(1)), "jump": np.arange(4)})
    envs.step(dicts())
    assert_same(list(envs.get_attr("received")), [[action] for action in dicts()])


@pytest.mark.parametrize("space", [DISCRETE, BOX, DICT], ids=repr)
def test_sampled_actions_are_what_step_takes(make_local, space):
    envs = make_local([partial(EchoEnv, PLAIN, space)] * 3)
    envs.reset(seed=0)
    actions = envs.sample_actions(rng=5)
    envs.step(actions)
    assert_same(envs.get_attr("received"), tuple([action] for action in actions))
    assert_same(envs.sample_actions(5), actions)
    assert_same(envs.sample_actions(np.random.default_rng(5)), actions)
    envs.action_space.seed(1)
    own = envs.sample_actions()
    envs.action_space.seed(1)
    assert_same(envs.sample_actions(), own)
    assert all(space.contains(action) for action in own)


def test_one_action_for_several_environments_is_refused_with_a_hint(make_local):
    envs = make_local([partial(EchoEnv, PLAIN, BOX)] * 3)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"envs\.sample_actions\(\) returns one per environment"):
        envs.step(BOX.sample())
    with pytest.raises(ValueError, match="expected shape") as caught:
        envs.step(np.zeros((3, 9), np.float32))
    assert "sample_actions" not in str(caught.value)


def test_gymnasiums_names_of_the_spaces(make_local):
    envs = make_local([partial(EchoEnv, PLAIN, BOX)] * 3)
    assert envs.single_observation_space is envs.observation_space
    assert envs.single_action_space is envs.action_space
    assert envs.autoreset_mode == "reset_obs"
