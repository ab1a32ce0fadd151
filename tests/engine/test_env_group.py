"""A group of environments without anything around it: what it leaves in its arrays, and sends."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from comparing import assert_same
from example_envs import (
    EchoEnv,
    FailingEnv,
    ReusingEnv,
    ScriptedEnv,
    plain_step,
)
from gymnasium import spaces

from xuance_envs.engine.data.step_arrays import StepArrays
from xuance_envs.engine.group.outcome import Autoreset
from xuance_envs.engine.group.recipe import Recipe
from xuance_envs.engine.group.resumable_group import ResumableGroup
from xuance_envs.engine.group.single_env import spaces_of
from xuance_envs.engine.system.interrupts import is_interrupt
from xuance_envs.errors import EnvError

FIRST = 10
"""The index, in an imaginary vector environment, of the group's first environment."""


class Group:
    """A group with arrays that have room for two more environments, one before and one after."""

    def __init__(self, *env_fns, freeze=copy.deepcopy, autoreset=Autoreset.SAME_STEP):
        self.group = ResumableGroup(
            Recipe(env_fns, [{}] * len(env_fns), FIRST, autoreset),
            freeze,
            is_interrupt=is_interrupt,
        )
        self.number = 0
        env = self.group.envs[0]
        count = len(env_fns)
        self.all = StepArrays.allocate(spaces_of(env), count + 2)
        self.mine = self.all.slice(1, count + 1)
        self.group.attach(self.mine)
        self.reset()

    def reset(self, *places):
        count = len(self.group.envs)
        return self.group.reset([(i, None, None) for i in places or range(count)])

    def step(self, *actions):
        self.mine.actions.put(list(actions), slice(None), len(actions))
        self.number += 1
        return self.go_on()

    def go_on(self):
        return self.group.step(number=self.number)

    @property
    def observations(self):
        return self.mine.observations.copy()


def of_lengths(*lengths):
    return Group(*(partial(ReusingEnv, (length,)) for length in lengths))


def test_a_step_leaves_everything_in_the_arrays_and_sends_nothing():
    group = of_lengths(9, 9)
    group.step(5, 6)
    outcome = group.group.step()
    assert not outcome.ended
    assert group.observations.tolist() == [[1, 2, 5], [1, 2, 6]]
    assert group.mine.rewards.tolist() == [2, 2]


def test_an_ordinary_step_sends_nothing():
    group = Group(*[partial(ScriptedEnv, [plain_step(info={"n": 1, "x": 0.5})])] * 2)
    assert group.step(0, 0).rest.layout.keys == ("n", "x"), "columns are told once"
    for _ in range(3):
        assert group.step(0, 0).rest is None


def test_it_keeps_to_its_slice():
    group = of_lengths(1, 2, 1)
    for _ in range(4):
        group.step(5, 6, 7)
        group.reset(1)
    everything = group.all
    for array in (
        *(*everything.observations.parts, *everything.reset_observations.parts),
        *(everything.rewards, everything.terminated, everything.truncated),
        *(everything.infos.kinds.T, everything.reset_infos.kinds.T),
    ):
        if len(array) == 5:
            assert not array[0].any()
            assert not array[-1].any()
    assert not everything.infos.kinds[:, [0, -1]].any()
    assert not everything.reset_infos.kinds[:, [0, -1]].any()


def test_an_end_is_not_told_again():
    group = of_lengths(2, 9)
    assert [group.step(0, 0).ended for _ in range(5)] == [False, True, False, True, False]
    assert not group.mine.terminated.any()


@pytest.mark.parametrize("reward", [np.array([0.5]), np.array([[0.5]]), [0.5]], ids=repr)
def test_a_reward_in_an_array_of_one_is_taken(reward):
    group = Group(partial(ScriptedEnv, [plain_step(reward=reward)]))
    group.step(0)
    assert group.mine.rewards.tolist() == [0.5]


def test_objects_are_frozen_before_the_environment_goes_on():
    frozen = []

    def freeze(value):
        frozen.append(copy.deepcopy(value))
        return f"frozen {len(frozen)}"

    group = Group(partial(EchoEnv, spaces.Text(5), length=1), freeze=freeze)
    frozen.clear()
    outcome = group.step(0)
    assert outcome.ended
    assert outcome.rest.observations == [["frozen 1"]]
    assert outcome.rest.reset_observations == [["frozen 2"]]
    assert all(isinstance(value, str) for value in frozen)


def test_an_environment_that_changes_how_it_returns_things_is_followed():
    steps = [
        plain_step(np.zeros(2, np.float32)),
        plain_step(np.ones(2)),
        plain_step([2, 2], reward=np.float32(2)),
        plain_step(np.full(2, 3, np.int8), reward=np.array(3), terminated=np.False_),
        plain_step(np.full(2, 4, np.float32), reward=4, truncated=0),
    ]
    group = Group(partial(ScriptedEnv, steps))
    for step in range(5):
        group.step(0)
        assert group.observations.tolist() == [[step, step]]


# --- interrupts ---------------------------------------------------------------------------------


class Interrupted(ReusingEnv):
    """Raises KeyboardInterrupt, once, at the commands it is told to."""

    def __init__(self, *commands, length=9):
        super().__init__((length,))
        self.commands = list(commands)

    def step(self, action):
        self.interrupt("step")
        return super().step(action)

    def reset(self, **arguments):
        self.interrupt("reset" if self.steps_ever else "first reset")
        return super().reset(**arguments)

    def interrupt(self, command):
        if command in self.commands:
            self.commands.remove(command)
            raise KeyboardInterrupt


def test_after_an_interrupt_the_rest_of_the_step_is_taken_up():
    group = Group(ReusingEnv, partial(Interrupted, "step", "step"), ReusingEnv)
    with pytest.raises(KeyboardInterrupt):
        group.step(5, 6, 7)
    with pytest.raises(KeyboardInterrupt):
        group.go_on()
    group.go_on()
    assert group.observations.tolist() == [[1, 1, 5], [1, 1, 6], [1, 1, 7]]
    assert [env.steps_ever for env in group.group.envs] == [1, 1, 1]


def test_after_an_interrupt_in_an_automatic_reset_the_reset_is_taken_up():
    make_env = partial(Interrupted, "reset", length=1)
    group = Group(partial(ReusingEnv, (9,)), make_env, partial(ReusingEnv, (9,)))
    with pytest.raises(KeyboardInterrupt):
        group.step(5, 6, 7)
    outcome = group.go_on()
    assert outcome.ended
    assert group.observations.tolist() == [[1, 1, 5], [1, 1, 6], [1, 1, 7]]
    assert (group.mine.terminated | group.mine.truncated).tolist() == [False, True, False]
    assert group.mine.reset_observations.value(1).tolist() == [2, 0, -1]
    assert [env.steps_ever for env in group.group.envs] == [1, 1, 1]


def test_after_an_interrupt_a_reset_begins_anew():
    group = Group(ReusingEnv, partial(Interrupted, "step"), ReusingEnv)
    with pytest.raises(KeyboardInterrupt):
        group.step(5, 6, 7)
    group.reset()
    group.step(8, 9, 10)
    assert group.observations.tolist() == [[2, 1, 8], [2, 1, 9], [2, 1, 10]]


def test_a_step_that_is_done_is_not_done_again():
    group = Group(*[partial(ReusingEnv, (1, 9))] * 2)
    first = group.step(5, 6)
    assert group.go_on() == first
    assert [env.steps_ever for env in group.group.envs] == [1, 1]
    assert group.mine.reset_observations.copy().tolist() == [[2, 0, -1]] * 2
    group.step(7, 8)
    assert group.observations.tolist() == [[2, 1, 7], [2, 1, 8]]


def test_some_environments_are_stepped_and_the_others_left_alone():
    group = Group(*[partial(ReusingEnv, (9,))] * 3)
    group.step(5, 6, 7)
    group.mine.actions.put([8, 9, 10], slice(None), 3)
    group.group.step(None, 2, [0, 2])
    assert group.observations.tolist() == [[1, 2, 8], [1, 1, 6], [1, 2, 10]]
    assert not np.isnan(group.mine.rewards).any()
    group.group.step([[None, 11, None]], 3, [1])
    assert group.observations.tolist() == [[1, 2, 8], [1, 2, 11], [1, 2, 10]]


def test_a_step_of_all_after_one_of_some_leaves_no_earlier_acting_state():
    group = Group(partial(ReusingEnv, (1, 9)), ReusingEnv)
    group.step(5, 6)
    group.group.step(None, 2, [1])
    assert group.group.acting_state(0).leaves[0].tolist() == [2, 0, -1]
    group.group.step(None, 3)
    assert group.group.acting_state(0).leaves[0].tolist() == [2, 1, 5]


def test_after_an_interrupt_the_rest_of_some_is_taken_up():
    make_env = partial(Interrupted, "step")
    group = Group(ReusingEnv, make_env, ReusingEnv, ReusingEnv)
    group.mine.actions.put([5, 6, 7, 8], slice(None), 4)
    with pytest.raises(KeyboardInterrupt):
        group.group.step(None, 1, [1, 3])
    group.group.step(None, 1, [1, 3])
    assert [env.steps_ever for env in group.group.envs] == [0, 1, 0, 1]


class InterruptedArray:
    """An observation that raises KeyboardInterrupt when it is stored for the first time."""

    def __init__(self, values):
        self.values = values
        self.stored = False

    def __array__(self, dtype=None, copy=None):
        if not self.stored:
            self.stored = True
            raise KeyboardInterrupt
        return np.array(self.values, dtype)


class InterruptedAfterStep(ReusingEnv):
    def step(self, action):
        observation, *rest = super().step(action)
        return InterruptedArray(observation.tolist()), *rest


@pytest.mark.parametrize("places", [None, [1, 3]])
def test_after_an_interrupt_between_step_and_storing_nothing_is_stepped_again(places):
    group = Group(ReusingEnv, InterruptedAfterStep, ReusingEnv, ReusingEnv)
    group.mine.actions.put([5, 6, 7, 8], slice(None), 4)
    with pytest.raises(KeyboardInterrupt):
        group.group.step(None, 1, places)
    assert [env.steps_ever for env in group.group.envs] == [places is None, 1, 0, 0]
    group.group.step(None, 1, places)
    rows = np.array([[1, 1, 5], [1, 1, 6], [1, 1, 7], [1, 1, 8]])
    stepped = [0, 1, 2, 3] if places is None else places
    assert group.observations[stepped].tolist() == rows[stepped].tolist()
    assert [env.steps_ever for env in group.group.envs] == [i in stepped for i in range(4)]
    assert not np.isnan(group.mine.rewards).any()


def test_an_interrupt_before_a_step_has_begun_leaves_nothing_of_the_last_one():
    group = Group(partial(ReusingEnv, (1, 9)), ReusingEnv)
    group.step(5, 6)
    begin, group.group._begin = group.group._begin, raising_once(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        group.step(7, 8)
    group.group._begin = begin
    assert not group.go_on().ended
    assert group.observations.tolist() == [[2, 1, 7], [1, 2, 8]]
    assert not (group.mine.terminated | group.mine.truncated).any()


def raising_once(error):
    def raise_it(*_):
        raise error

    return raise_it


# --- the next step resets -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        lambda group: group.call([0, 1], "method", (), {}),
        lambda group: group.get_attr([0, 1], "steps_ever"),
        lambda group: group.set_attr([0, 1], "fresh", [1, 2]),
        lambda group: group.apply([0, 1], repr, [(), ()]),
        lambda group: group.render([0, 1], None),
    ],
    ids=["call", "get_attr", "set_attr", "apply", "render"],
)
def test_no_command_cancels_a_reset_that_is_pending(command):
    kind = partial(FailingEnv, "never")  # whose episodes have two steps
    group = Group(kind, kind, autoreset=Autoreset.NEXT_STEP)
    ends = []
    for _ in range(7):
        group.step(5, 6)
        command(group.group)
        ends.append((group.mine.terminated | group.mine.truncated).tolist())
    assert ends == [[False] * 2, [True] * 2, [False] * 2] * 2 + [[False] * 2]


def test_an_interrupt_in_a_pending_reset_loses_neither_it_nor_its_observation():
    lengths = partial(Interrupted, "reset", length=1)
    group = Group(lengths, partial(ReusingEnv, (9,)), autoreset=Autoreset.NEXT_STEP)
    group.step(5, 6)
    with pytest.raises(KeyboardInterrupt):
        group.step(7, 8)
    group.go_on()
    assert group.observations.tolist() == [[2, 0, -1], [1, 2, 8]]
    group.step(9, 10)
    assert group.observations.tolist() == [[2, 1, 9], [1, 3, 10]]


# --- the environments ---------------------------------------------------------------------------


def test_a_failed_call_leaves_what_is_being_done_to_the_next_command():
    group = Group(ReusingEnv, partial(FailingEnv, "call"))
    with pytest.raises(EnvError, match="environment 11 failed in 'call'"):
        group.group.call([1], "method", (), {})
    group.group.envs[1].command = "step"
    with pytest.raises(EnvError, match="environment 11 failed in 'step'"):
        group.step(0, 0)


def test_all_environments_are_closed_though_one_fails_to():
    closed = []

    class Closing(ReusingEnv):
        def close(self):
            closed.append(self)
            if len(closed) == 2:
                raise ValueError("no")

    group = Group(Closing, Closing, Closing)
    with pytest.raises(EnvError, match="environment 11 failed in 'close'"):
        group.group.close()
    assert len(closed) == 3
    group.group.close()
    assert len(closed) == 3


class PassesNothingOn:
    """A wrapper that has what takes to be stepped, and nothing else."""

    def __init__(self, env):
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reset, self.step = env.reset, env.step


class Painted(EchoEnv):
    """An environment that can be rendered, and says whether it has been closed."""

    metadata = {"render_fps": 7}  # noqa: RUF012  # as Gymnasium's
    render_mode = "ansi"
    is_open = True

    def render(self):
        return "a picture"

    def close(self):
        self.is_open = False


def test_a_wrapper_need_not_pass_on_what_environments_have():
    env = Painted(spaces.Discrete(3))
    group = Group(lambda: PassesNothingOn(env)).group
    (_, description), *_ = group.describe()
    assert description.metadata == {"render_fps": 7}
    assert description.render_mode == "ansi"
    assert group.render([0], None) == ["a picture"]
    group.close()
    assert not env.is_open


def test_the_description_is_a_copy():
    group = Group(partial(EchoEnv, spaces.Box(-1, 1, (2,))))
    ((_, description),) = group.group.describe()
    space = description.observation_space
    space.seed(0)
    expected = copy.deepcopy(group.group.envs[0].observation_space).sample()
    space.sample()
    assert_same(group.group.envs[0].observation_space.sample(), expected)


# --- when environments whose episode ended are reset ----------------------------------------------


def in_mode(autoreset, *lengths):
    return Group(
        *(partial(ReusingEnv, (length,)) for length in lengths),
        autoreset=autoreset,
    )


def flags(group):
    return (group.mine.terminated | group.mine.truncated).tolist(), group.mine.pending.tolist()


def test_the_next_step_resets_and_ignores_the_action():
    group = in_mode(Autoreset.NEXT_STEP, 9, 1)
    assert not group.step(5, 6).ended, "no reset has taken place"
    assert flags(group) == ([False, True], [False, True])
    assert group.observations.tolist() == [[1, 1, 5], [1, 1, 6]]
    group.step(5, 6)
    assert flags(group) == ([False, False], [False, False])
    assert group.observations.tolist() == [[1, 2, 5], [2, 0, -1]]
    assert group.mine.rewards.tolist() == [2, 0]
    group.step(5, 6)
    assert group.observations.tolist() == [[1, 3, 5], [2, 1, 6]]


def test_a_failing_reset_in_the_next_step_is_reported_as_a_reset():
    def fail(env, **_):
        raise ZeroDivisionError

    group = in_mode(Autoreset.NEXT_STEP, 1)
    group.step(0)
    group.group.envs[0].reset = partial(fail, group.group.envs[0])
    with pytest.raises(EnvError, match="'reset'"):
        group.step(0)


def test_a_failing_step_beside_a_reset_is_reported_as_a_step():
    env_fns = partial(ReusingEnv, (1,)), partial(FailingEnv, "never")
    group = Group(*env_fns, autoreset=Autoreset.NEXT_STEP)
    group.step(0, 0)
    group.group.envs[1].command = "step"
    with pytest.raises(EnvError, match="environment 11 failed in 'step'"):
        group.step(0, 0)


def test_apply_gives_a_function_arguments_for_each_environment():
    group = of_lengths(9, 9)
    add = lambda env, a, b: (env.action_space.n, a + b)  # noqa: E731
    count = group.group.envs[0].action_space.n
    assert group.group.apply([1, 0], add, [(1, 2), (3, 4)]) == [(count, 3), (count, 7)]
