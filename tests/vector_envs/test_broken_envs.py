"""Environments that do not keep to their own side: each is named, with what it should have done."""

from __future__ import annotations

import multiprocessing
from functools import partial

import numpy as np
import pytest
from example_envs import DuckEnv, NamedEnv, ReusingEnv, ScriptedEnv, duck_without, plain_step
from gymnasium import spaces

from xuance_envs.errors import EnvError

BYTES = spaces.Box(0, 255, (2,), np.uint8)
INTS = spaces.Box(-9, 9, (2,), np.int64)
UNSIGNED = spaces.Box(0, 9, (2,), np.uint64)
WIDE = spaces.Box(-9, 9, (2,), np.float64)
PLAIN = spaces.Box(-1, 1, (2,), np.float32)
MATRIX = spaces.Box(-1, 1, (2, 2), np.float32)
NUMBER = spaces.Discrete(9)
BITS = spaces.MultiBinary(2)
FLAGS = spaces.Box(0, 1, (2,), np.bool_)
DICT = spaces.Dict(box=PLAIN, number=NUMBER)
TUPLE = spaces.Tuple((PLAIN, NUMBER))
DEEP = spaces.Dict(pair=TUPLE)

OBSERVATIONS = {
    "wrong shape": (PLAIN, np.zeros(3, np.float32), r"shape \(2,\), got shape \(3,\)"),
    "no dimensions": (PLAIN, np.float32(1), r"shape \(2,\), got .*float32\)"),
    "one dimension too many": (PLAIN, np.zeros((1, 2), np.float32), r"got shape \(1, 2\)"),
    "transposed shape": (MATRIX, np.zeros(4, np.float32), r"shape \(2, 2\), got shape \(4,\)"),
    "ragged": (PLAIN, [[1.0], [1.0, 2.0]], r"expected .*\(2,\).*got"),
    "None": (PLAIN, None, "got"),
    "a string": (PLAIN, "ab", "got"),
    "objects": (PLAIN, np.array([1.0, None]), "dtype float32, got dtype object"),
    "complex": (PLAIN, np.zeros(2, complex), "dtype float32, got dtype complex128"),
    "300 in bytes": (BYTES, np.array([0, 300]), "uint8.*got.*300"),
    "-1 in bytes": (BYTES, np.array([0, -1]), "uint8.*got.*-1"),
    "-1 in bytes, as int8": (BYTES, np.array([0, -1], np.int8), "uint8.*got.*-1"),
    "-1 in unsigned ints": (UNSIGNED, np.array([0, -1]), "uint64.*got.*-1"),
    "unsigned beyond int64": (
        INTS,
        np.array([0, 2**63], np.uint64),
        "int64.*got.*9223372036854775808",
    ),
    "NaN in ints": (INTS, np.array([0, np.nan]), "int64.*got.*float64"),
    "NaN in bytes": (BYTES, np.array([0, np.nan], np.float32), "uint8.*got.*float32"),
    "a half in ints": (INTS, np.array([0, 0.5]), "int64.*got.*0.5"),
    "infinity in ints": (INTS, np.array([0, np.inf]), "int64.*got.*inf"),
    "beyond float32": (PLAIN, np.array([0, 1e300]), r"float32.*got.*1e\+300"),
    "an int that float32 cannot hold": (PLAIN, np.array([0, 2**24 + 1]), "float32.*got.*16777217"),
    "an int that float64 cannot hold": (WIDE, np.array([0, 2**53 + 1]), "float64.*got"),
    "2 in bits": (FLAGS, np.array([0, 2]), "bool.*got.*2"),
    "300 in MultiBinary": (BITS, np.array([0, 300]), "int8.*got.*300"),
    "a half for a number": (NUMBER, 0.5, "int64.*got.*0.5"),
    "NaN for a number": (NUMBER, np.nan, "int64.*got.*NaN"),
    "an array for a number": (NUMBER, np.array([1]), r"shape \(\), got shape \(1,\)"),
    "too big for a number": (NUMBER, 2**63, "int64.*got"),
    "much too big for a number": (NUMBER, 10**30, "int64.*got"),
    "None for a number": (NUMBER, None, "int64.*got"),
    "an array for a dict": (DICT, np.zeros(2), "expected a dict.*box.*got an array"),
    "a key missing": (DICT, {"box": np.zeros(2)}, r"number.*got the keys \['box'\]"),
    "a key too many": (DICT, {"box": 0, "number": 0, "x": 0}, "number.*got the keys.*'x'"),
    "wrong below a key": (DICT, {"box": np.zeros(3), "number": 0}, r"\['box'\].*got shape \(3,\)"),
    "too few in a tuple": (TUPLE, (np.zeros(2),), "expected a tuple of length 2, got .*length 1"),
    "an array for a tuple": (TUPLE, np.zeros(2), "expected a tuple of length 2, got an array"),
    "wrong deep inside": (DEEP, {"pair": (np.zeros(2), 0.5)}, r"\['pair'\]\[1\].*int64.*got.*0.5"),
}

GOOD = {id(DICT): {"box": np.zeros(2), "number": 0}, id(TUPLE): (np.zeros(2), 0)}
GOOD[id(DEEP)] = {"pair": GOOD[id(TUPLE)]}


def good(space):
    """An observation that fits the space."""
    return GOOD.get(id(space), np.zeros(space.shape or (), np.uint8))


def one_of_five(space, steps=None, resets=None):
    """Functions that make five environments, of which the fourth does as told."""
    fine = {"steps": [plain_step(good(space))], "resets": [(good(space), {})]}
    told = {"steps": steps or fine["steps"], "resets": resets or fine["resets"]}
    return [
        partial(ScriptedEnv, **(told if i == 3 else fine), observation_space=space)
        for i in range(5)
    ]


def check_failure(command, message, act):
    with pytest.raises(EnvError, match=rf"environment 3 failed in '{command}': .*{message}") as got:
        act()
    assert (got.value.env_index, got.value.command) == (3, command)


@pytest.mark.parametrize(("space", "wrong", "message"), OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_an_observation_that_does_not_fit_its_space_fails_the_step(
    make_either, space, wrong, message
):
    envs = make_either(
        one_of_five(space, steps=[plain_step(good(space)), (wrong, 0.0, False, False, {})])
    )
    envs.reset()
    envs.step([0] * 5)
    check_failure("step", message, lambda: envs.step([0] * 5))
    assert envs.closed


SOME_OBSERVATIONS = {
    name: OBSERVATIONS[name]
    for name in ("wrong shape", "300 in bytes", "NaN for a number", "an array for a dict")
}


@pytest.mark.parametrize(
    ("space", "wrong", "message"), SOME_OBSERVATIONS.values(), ids=SOME_OBSERVATIONS
)
def test_an_observation_that_does_not_fit_its_space_fails_the_reset(
    make_either, space, wrong, message
):
    envs = make_either(one_of_five(space, resets=[(wrong, {})]))
    check_failure("reset", message, envs.reset)
    assert envs.closed


def test_an_observation_that_does_not_fit_its_space_fails_the_automatic_reset(make):
    steps = [plain_step(terminated=True)]
    resets = [(np.zeros(2), {}), (np.zeros(3), {})]
    envs = make(one_of_five(PLAIN, steps, resets))
    envs.reset()
    check_failure("reset", r"shape \(2,\), got shape \(3,\)", lambda: envs.step([0] * 5))
    assert envs.closed


OBS = np.zeros(2, np.float32)

STEPS = {
    "four values": ((OBS, 0.0, False, {}), r"tuple \(observation, reward, .*got .*length 4"),
    "six values": ((OBS, 0.0, False, False, {}, 1), "got a tuple of length 6"),
    "a list": ([OBS, 0.0, False], "got a list of length 3"),
    "only an observation": (OBS, "got an array"),
    "None": (None, "got None"),
    "a number": (7, "got 7"),
    "reward None": ((OBS, None, False, False, {}), "invalid reward: .*float64, got None"),
    "reward a string": ((OBS, "1", False, False, {}), "invalid reward: .*float64.*got"),
    "reward a list of two": ((OBS, [1, 2], False, False, {}), r"invalid reward: .*shape \(2,\)"),
    "reward complex": ((OBS, 1j, False, False, {}), "invalid reward: .*float64.*got .*complex"),
    "terminated a string": ((OBS, 0.0, "False", False, {}), "terminated: .*bool, got 'False'"),
    "terminated None": ((OBS, 0.0, None, False, {}), "invalid terminated: .*bool, got None"),
    "terminated 2": ((OBS, 0.0, 2, False, {}), "invalid terminated: .*bool.*got"),
    "truncated a string": ((OBS, 0.0, False, "", {}), "invalid truncated: .*bool.*got"),
    "truncated a half": ((OBS, 0.0, False, 0.5, {}), "invalid truncated: .*bool.*got.*0.5"),
    "truncated of two": ((OBS, 0.0, False, [True, False], {}), r"invalid truncated.*shape \(2,\)"),
    "info None": ((OBS, 0.0, False, False, None), "info.* dict.*got.*NoneType"),
    "info a list": ((OBS, 0.0, False, False, ["a"]), "info.* dict.*got.*list"),
    "info an empty list": ((OBS, 0.0, False, False, []), "info.* dict.*got.*list"),
    "info an empty tuple": ((OBS, 0.0, False, False, ()), "info.* dict.*got.*tuple"),
    "info an array": ((OBS, 0.0, False, False, np.zeros(2)), "info.* dict.*got.*ndarray"),
    "info an empty string": ((OBS, 0.0, False, False, ""), "info.* dict.*got.*str"),
}


@pytest.mark.parametrize(("wrong", "message"), STEPS.values(), ids=STEPS)
def test_anything_but_five_good_values_fails_the_step(make_either, wrong, message):
    envs = make_either(one_of_five(PLAIN, steps=[wrong]))
    envs.reset()
    check_failure("step", message, lambda: envs.step([0] * 5))
    assert envs.closed


def test_four_values_come_with_advice(make):
    envs = make(one_of_five(PLAIN, steps=[(OBS, 0.0, False, {})]))
    envs.reset()
    check_failure("step", "library='gym'", lambda: envs.step([0] * 5))


RESETS = {
    "only an observation": (OBS, r"tuple \(observation, info\), got an array"),
    "three values": ((OBS, {}, 1), "got a tuple of length 3"),
    "None": (None, "got None"),
    "info None": ((OBS, None), "info.* dict.*got.*NoneType"),
    "info an empty list": ((OBS, []), "info.* dict.*got.*list"),
}


@pytest.mark.parametrize(("wrong", "message"), RESETS.values(), ids=RESETS)
def test_anything_but_two_good_values_fails_the_reset(make_either, wrong, message):
    envs = make_either(one_of_five(PLAIN, resets=[wrong]))
    check_failure("reset", message, envs.reset)
    assert envs.closed


# --- objects that are no environments -----------------------------------------------------------


NO_ENVIRONMENTS = {
    "None": (lambda: None, "expected an environment, got None"),
    "a class": (lambda: DuckEnv, "expected an environment"),
    "a string": (lambda: "CartPole-v1", "expected an environment, got 'CartPole-v1'"),
    "no step": (partial(duck_without, "step"), r"expected an environment, got .* without step\(\)"),
    "no reset": (
        partial(duck_without, "reset"),
        r"expected an environment, got .* without reset\(\)",
    ),
    "no spaces": (
        partial(duck_without, "observation_space"),
        "observation_space is a gymnasium.Space",
    ),
    "no actions": (partial(duck_without, "action_space"), "action_space is a gymnasium.Space"),
}


@pytest.mark.parametrize(("wrong", "message"), NO_ENVIRONMENTS.values(), ids=NO_ENVIRONMENTS)
def test_something_that_is_no_environment_is_refused(make_either, wrong, message):
    env_fns = [DuckEnv] * 3 + [wrong] + [DuckEnv]
    check_failure("construct", message, lambda: make_either(env_fns))
    assert multiprocessing.active_children() == []


DIFFERENT = {
    "observation_space": partial(ScriptedEnv, observation_space=BYTES),
    "action_space": partial(ScriptedEnv, action_space=NUMBER),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("at", [1, 2, 4])
def test_spaces_that_differ_are_refused_naming_the_environment(make_on_all, name, at):
    env_fns = [ScriptedEnv] * 5
    env_fns[at] = DIFFERENT[name]
    told = rf"environment {at} has a different {name} than environment 0: expected .*got"
    with pytest.raises(RuntimeError, match=told):
        make_on_all(env_fns)
    assert multiprocessing.active_children() == []


def test_an_environment_of_its_own_space_all_alone_in_front_is_told_from_the_rest(make):
    told = r"environment 1 has a different observation_space than environment 0"
    with pytest.raises(RuntimeError, match=told):
        make([DIFFERENT["observation_space"], *[ScriptedEnv] * 4])


def test_two_functions_that_return_the_same_object_are_refused(make_on_all):
    twin = ReusingEnv()
    env_fns = [lambda: twin, lambda: twin, ReusingEnv, ReusingEnv, ReusingEnv]
    with pytest.raises(ValueError, match=r"env_fns\[0\] and env_fns\[1\] returned the same object"):
        make_on_all(env_fns, **make_on_all.backend.together)
    assert multiprocessing.active_children() == []


def test_the_same_function_twice_is_fine(make):
    make_env = partial(NamedEnv, 1)
    assert make([make_env] * 5).get_attr("name") == (1,) * 5
