"""The contract: call, get_attr, set_attr and render, of all environments or of some."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from comparing import assert_same
from example_envs import (
    DuckEnv,
    NamedEnv,
    ReusingEnv,
    ScriptedEnv,
    XuanceAtariEnv,
    XuanceEnv,
    wrapped,
)

from xuance_envs.errors import EnvError
from xuance_envs.vector_envs.dummy_vec_env import DummyVecEnv

NAMED = [partial(NamedEnv, i) for i in range(5)]


WRAPPED = [partial(wrapped, i) for i in range(5)]


@pytest.mark.everywhere
@pytest.mark.spawned
def test_call_gives_what_each_method_returned(make_on_all):
    envs = make_on_all(NAMED)
    assert envs.call("describe", "I am") == tuple(f"I am {i}." for i in range(5))


def test_call_passes_arguments_by_keyword(make):
    envs = make(NAMED)
    assert envs.call("describe", greeting="I am", mark="!")[2] == "I am 2!"


def test_call_gives_results_in_the_order_of_env_ids(make):
    envs = make(NAMED)
    assert envs.call("describe", "", env_ids=[4, 0, 3]) == (" 4.", " 0.", " 3.")
    assert envs.call("describe", "", env_ids=np.array([1])) == (" 1.",)
    assert envs.call("describe", "", env_ids=[]) == ()


@pytest.mark.everywhere
def test_call_reaches_through_wrappers(make_on_all):
    envs = make_on_all(WRAPPED)
    assert envs.call("describe", "I am")[3] == "I am 3."
    assert envs.call("describe_layer")[3] == "wrapper of 3"


def test_call_may_reset_an_environment_behind_the_back(make):
    envs = make([partial(ReusingEnv, (9,))] * 5)
    envs.reset()
    envs.step([0] * 5)
    obs, info = envs.call("reset", env_ids=[2])[0]
    assert obs.tolist() == [2, 0, -1]
    assert info["step"] == 0
    assert envs.step([0] * 5)[0][:, 1].tolist() == [2, 2, 1, 2, 2]


def test_get_attr_gives_each_ones_value(make_on_all):
    envs = make_on_all(NAMED)
    assert envs.get_attr("name") == (0, 1, 2, 3, 4)
    assert type(envs.get_attr("name")) is tuple


@pytest.mark.everywhere
def test_get_attr_gives_values_in_the_order_of_env_ids(make):
    envs = make(NAMED)
    assert envs.get_attr("name", env_ids=[3, 1, 4]) == (3, 1, 4)
    assert envs.get_attr("name", [0]) == (0,)


def test_get_attr_reaches_through_wrappers(make):
    envs = make(WRAPPED)
    assert envs.get_attr("name") == (0, 1, 2, 3, 4)
    assert envs.get_attr("layer") == ("wrapper",) * 5
    assert envs.get_attr("_max_episode_steps") == (50,) * 5


@pytest.mark.everywhere
def test_get_attr_takes_values_of_any_kind(make):
    value = {"array": np.arange(3), "nested": [(1.0, None)], 3: "text"}
    envs = make([partial(NamedEnv, value)] * 5)
    for got in envs.get_attr("name"):
        assert_same(got, value)


@pytest.mark.parametrize("value", ["all", 3, None, {"a": 1}, np.arange(5)], ids=repr)
def test_set_attr_gives_a_single_value_to_all(make, value):
    envs = make(NAMED)
    assert envs.set_attr("name", value) is None
    for got in envs.get_attr("name"):
        assert_same(got, value)


@pytest.mark.parametrize("kind", [list, tuple])
def test_set_attr_gives_each_its_own_of_a_list_or_tuple(make_on_all, kind):
    envs = make_on_all(NAMED)
    envs.set_attr("name", kind("abcde"))
    assert envs.get_attr("name") == tuple("abcde")


@pytest.mark.everywhere
def test_set_attr_goes_by_env_ids(make):
    envs = make(NAMED)
    envs.set_attr("name", ["four", "zero"], env_ids=[4, 0])
    envs.set_attr("name", "same", [2, 3])
    assert envs.get_attr("name") == ("zero", 1, "same", "same", "four")


def test_set_attr_takes_a_list_as_a_value_when_it_is_in_a_list(make):
    envs = make(NAMED)
    envs.set_attr("name", [[1, 2], [3]], env_ids=[0, 1])
    assert envs.get_attr("name", [0, 1]) == ([1, 2], [3])


@pytest.mark.parametrize(("values", "env_ids"), [("abcd", None), ("abcdef", None), ("abc", [0, 1])])
def test_set_attr_refuses_a_wrong_number_of_values_and_sets_none(make, values, env_ids):
    envs = make(NAMED)
    wanted = 5 if env_ids is None else 2
    with pytest.raises(ValueError, match=rf"expected {wanted} values.*got {len(values)}"):
        envs.set_attr("name", list(values), env_ids=env_ids)
    assert envs.get_attr("name") == (0, 1, 2, 3, 4)


@pytest.mark.everywhere
def test_set_attr_sets_what_the_environment_itself_uses(make_on_all):
    """Not an attribute of a wrapper that nobody reads."""
    envs = make_on_all(WRAPPED)
    envs.set_attr("name", [f"new {i}" for i in range(5)])
    envs.set_attr("layer", "renamed")
    assert envs.call("describe", "I am")[1] == "I am new 1."
    assert envs.call("describe_layer")[1] == "renamed of new 1"


def test_set_attr_of_a_new_attribute_sets_it_on_the_environment_itself(make):
    envs = make(WRAPPED)
    envs.set_attr("brand_new", 1)
    assert envs.get_attr("brand_new") == (1,) * 5
    assert [env.brand_new for env in envs.get_attr("unwrapped")] == [1] * 5


@pytest.mark.everywhere("call")
@pytest.mark.parametrize("ask", ["call", "get_attr"])
def test_a_missing_attribute_is_an_attribute_error_naming_it_and_the_environment(make_on_all, ask):
    envs = make_on_all([*NAMED[:3], ScriptedEnv, NAMED[4]])
    with pytest.raises(AttributeError, match=r"environment 3 .*'describe'"):
        getattr(envs, ask)("describe", *(["I am"] if ask == "call" else []))


@pytest.mark.parametrize("ask", ["call", "get_attr"])
def test_after_a_missing_attribute_it_is_usable_as_before(make, ask):
    envs = make(NAMED)
    envs.reset()
    for _ in range(2):
        with pytest.raises(AttributeError, match=r"environment 0 .*'no_such_thing'"):
            getattr(envs, ask)("no_such_thing")
        assert envs.get_attr("name") == (0, 1, 2, 3, 4)
        assert envs.call("describe", "I am", env_ids=[1, 4]) == ("I am 1.", "I am 4.")
        assert envs.step([0] * 5)[0].tolist() == [[1, 1]] * 5
        assert not envs.closed


@pytest.mark.parametrize("env_ids", [[5], [-1], 3, ["0"], [0.0]], ids=repr)
@pytest.mark.parametrize(
    "ask",
    [
        lambda envs, ids: envs.call("describe", "", env_ids=ids),
        lambda envs, ids: envs.get_attr("name", ids),
        lambda envs, ids: envs.set_attr("name", 7, ids),
        lambda envs, ids: envs.render(env_ids=ids),
    ],
    ids=["call", "get_attr", "set_attr", "render"],
)
def test_env_ids_that_are_none_are_refused(make_either, ask, env_ids):
    envs = make_either(NAMED)
    with pytest.raises(ValueError, match="env_ids: expected"):
        ask(envs, env_ids)
    assert envs.get_attr("name") == (0, 1, 2, 3, 4)


CANNOT_BE_SENT = {
    "set_attr": lambda envs, lock: envs.set_attr("name", [1, 2, lock, 4, 5]),
    "call": lambda envs, lock: envs.call("describe", lock),
    "the last only": lambda envs, lock: envs.set_attr(
        "name", [1, 2, 3, lock], env_ids=[3, 2, 1, 0]
    ),
}


@pytest.mark.everywhere("the last only")
@pytest.mark.parametrize("ask", CANNOT_BE_SENT.values(), ids=CANNOT_BE_SENT)
def test_after_something_that_cannot_be_sent_every_answer_is_to_its_own_question(make, ask):
    envs = make(NAMED)
    envs.reset()
    with suppress(TypeError):  # within this process nothing has to be sent
        ask(envs, threading.Lock())
    envs.set_attr("name", [*"abcde"])
    assert envs.get_attr("name") == tuple("abcde")
    assert envs.call("describe", "I am")[4] == "I am e."
    assert envs.step([0] * 5)[0].tolist() == [[1, 1]] * 5
    assert envs.get_attr("render_mode") == ("rgb_array",) * 5


@pytest.mark.everywhere
def test_values_may_be_larger_than_any_pipe_holds(make):
    envs = make(NAMED)
    values = [np.full(300_000, i) for i in range(5)]
    envs.set_attr("name", values)
    assert_same(list(envs.get_attr("name")), values)
    envs.call("__init__", values[3])
    assert_same(list(envs.get_attr("name")), [values[3]] * 5)


@pytest.mark.everywhere
def test_after_an_answer_that_cannot_be_sent_it_is_usable_as_before(make):
    envs = make(NAMED)
    envs.reset()
    with suppress(TypeError):  # within this process nothing has to be sent
        assert len(envs.call("make_lock")) == 5
    assert not envs.closed
    assert envs.get_attr("name") == (0, 1, 2, 3, 4)
    assert envs.step([0] * 5)[0].tolist() == [[1, 1]] * 5


# --- render -------------------------------------------------------------------------------------


def test_render_gives_a_list_of_frames(make_on_all):
    envs = make_on_all(NAMED)
    frames = envs.render()
    assert type(frames) is list
    assert_same(frames, [np.full((2, 2, 3), i, np.uint8) for i in range(5)])


@pytest.mark.everywhere
def test_render_goes_by_env_ids(make):
    envs = make(NAMED)
    assert [frame[0, 0, 0] for frame in envs.render(env_ids=[4, 1])] == [4, 1]
    assert envs.render(env_ids=[]) == []


@pytest.mark.everywhere
def test_render_passes_the_mode_where_it_is_taken(make):
    envs = make([DuckEnv] * 5)
    assert envs.render("rgb_array") == ["rendered as rgb_array"] * 5
    assert envs.render("ansi", env_ids=[2]) == ["rendered as ansi"]
    assert envs.render() == ["rendered as human"] * 5


@pytest.mark.parametrize("make_env", [XuanceEnv, XuanceAtariEnv])
def test_render_passes_the_mode_by_place_to_xuances_environments(make, make_env):
    assert make([make_env] * 5).render("rgb_array") == ["rendered as rgb_array"] * 5


@pytest.mark.parametrize("make_env", [XuanceEnv, XuanceAtariEnv])
def test_render_without_a_mode_works_too_where_the_environment_insists_on_one(make, make_env):
    assert len(make([make_env] * 5).render()) == 5


def test_render_does_not_pass_the_mode_where_it_is_not_taken(make):
    assert [frame[0, 0, 0] for frame in make(NAMED).render("rgb_array")] == [0, 1, 2, 3, 4]


def test_looking_at_environments_does_not_touch_what_the_step_returned(make):
    envs = make([partial(ReusingEnv, (1,))] * 5, copy=False)
    envs.reset()
    obs, rewards, terminated, truncated, infos = envs.step([5] * 5)
    envs.get_attr("steps_ever")
    envs.call("__str__")
    envs.set_attr("anything", 1)
    assert obs.tolist() == [[1, 1, 5]] * 5
    assert rewards.tolist() == [1] * 5
    assert (terminated | truncated).all()
    assert infos[3]["reset_obs"].tolist() == [2, 0, -1]


@pytest.mark.parametrize("how", ["set_attr", "call"])
def test_a_step_that_is_replaced_is_the_one_that_is_called(make, how):
    envs = make([partial(NamedEnv, i) for i in range(5)])
    envs.reset()
    envs.step([0] * 5)
    step = partial(replaced_step, np.full(2, 7, np.float32))
    if how == "set_attr":
        envs.set_attr("step", step)
    else:
        envs.call("__setattr__", "step", step)
    assert envs.step([0] * 5)[1].tolist() == [3] * 5


def replaced_step(observation, action):
    return observation, 3.0, False, False, {}


def test_what_cannot_be_copied_is_given_as_it_is_in_this_process():
    lock, items = threading.Lock(), [7]
    with DummyVecEnv([NamedEnv, NamedEnv]) as envs:
        envs.set_attr("name", {"lock": lock, "items": items})
        first, second = envs.get_attr("name")
        assert first["lock"] is second["lock"] is lock
        assert first["items"] is not second["items"]


# --- names that environments give to things of their own ----------------------------------------


class Delegating:
    """Passes on what it has not, as older wrappers do."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def broken_wrapper(self):
        raise AttributeError("no wind")


class Broken(ReusingEnv):
    @property
    def broken(self):
        return self.not_there_yet


@pytest.mark.parametrize(
    ("name", "message"), [("broken", "not_there_yet"), ("broken_wrapper", "no wind")]
)
@pytest.mark.parametrize("ask", ["get_attr", "call"])
def test_an_error_within_a_property_is_told_as_it_is(make, name, message, ask):
    envs = make([lambda: Delegating(Broken())] * 5)
    with pytest.raises(EnvError, match=message) as caught:
        getattr(envs, ask)(name)
    assert (caught.value.env_index, caught.value.command) == (0, ask)
    assert type(caught.value.__cause__) is AttributeError


def test_set_attr_sets_what_is_there_and_not_the_wrapper_that_passes_it_on(make):
    envs = make([lambda: Delegating(NamedEnv())] * 5)
    envs.set_attr("name", [*"abcde"])
    assert envs.call("describe", "I am")[1] == "I am b."
