"""What Gymnasium says of its vector environments, and tests them for, said of ours."""

from __future__ import annotations

import gc
import multiprocessing
import re
import time
import warnings
import weakref
from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from compat_envs import (
    CountingEnv,
    FailingEnv,
    GivenEnv,
    InfoEnv,
    LethalAtRandom,
    LethalEnv,
    ParentEnv,
    SlowEnv,
)
from example_envs import PLAIN, CountedEnv, CustomSpace, EchoEnv, GraphReusingEnv, NamedEnv
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as wrappers

from xuance_envs import WorkerDiedError
from xuance_envs.compat.gymnasium import AsyncVectorEnv, SyncVectorEnv
from xuance_envs.engine.process.common_step import MIN_WORKERS

cartpole = partial(gymnasium.make, "CartPole-v1")
Quick = partial(AsyncVectorEnv, context="forkserver")

KINDS = {"sync": SyncVectorEnv, "async": Quick}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


# --- what they are ------------------------------------------------------------------------------


@kinds
def test_they_are_gymnasiums_and_look_like_them(closing, kind):
    own = closing(gymnasium.vector.SyncVectorEnv([cartpole] * 3))
    envs = closing(kind([cartpole] * 3))
    name = "SyncVectorEnv" if kind is SyncVectorEnv else "AsyncVectorEnv"
    assert isinstance(envs, getattr(gymnasium.vector, name))
    assert repr(envs) == f"{name}(num_envs=3)"
    assert (envs.observation_space, envs.action_space) == (own.observation_space, own.action_space)
    assert envs.single_observation_space == own.single_observation_space
    assert envs.single_action_space == own.single_action_space
    assert envs.metadata == own.metadata
    assert (envs.num_envs, envs.render_mode, envs.spec, envs.closed) == (3, None, None, False)
    assert envs.unwrapped is envs


@kinds
def test_what_environments_of_a_class_share_stays_as_it_was(closing, kind):
    class OwnEnv(InfoEnv):
        metadata: ClassVar = {"render_modes": ["ansi"]}

    envs = closing(kind([partial(OwnEnv, 0)]))
    assert envs.metadata == {"render_modes": ["ansi"], "autoreset_mode": AutoresetMode.NEXT_STEP}
    assert OwnEnv.metadata == {"render_modes": ["ansi"]}


@kinds
@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_mode_may_be_its_value(closing, kind, mode):
    envs = closing(kind([cartpole], autoreset_mode=mode.value))
    assert envs.metadata["autoreset_mode"] is envs.autoreset_mode is mode


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="SomeStep"):
        SyncVectorEnv([cartpole], autoreset_mode="SomeStep")


def test_the_environments_of_the_synchronous_one_can_be_had(closing):
    envs = closing(SyncVectorEnv([cartpole, cartpole]))
    assert [env.spec.id for env in envs.envs] == ["CartPole-v1"] * 2
    assert len(envs.env_fns) == 2


def test_processes_can_be_had_until_they_are_closed(closing):
    envs = closing(Quick([cartpole] * 3, in_series=2))
    processes = envs.processes
    assert [process.is_alive() for process in processes] == [True, True]
    envs.close()
    assert envs.processes == []


@kinds
def test_they_can_be_made_by_gymnasium(closing, kind, monkeypatch):
    monkeypatch.setattr(gymnasium.vector, "SyncVectorEnv", kind)
    envs = closing(
        gymnasium.make_vec(
            "CartPole-v1",
            num_envs=3,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": "SameStep"},
            wrappers=(gymnasium.wrappers.TimeAwareObservation,),
        )
    )
    assert envs.spec.id == "CartPole-v1"
    assert repr(envs).endswith("VectorEnv(CartPole-v1, num_envs=3)")
    assert envs.reset(seed=0)[0].shape == (3, 5)


# --- spaces -------------------------------------------------------------------------------------


SPACES = [
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary((2, 3)),
    spaces.Box(-1, 1, (2, 2), np.float16),
    spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 9, (2,), np.uint8)]),
    spaces.Dict(a=spaces.Discrete(3), b=spaces.Dict(c=spaces.MultiBinary(2))),
    spaces.Text(5),
    spaces.Sequence(spaces.Box(-1, 1, (2,))),
    spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
    CustomSpace(),
]


DYNAMIC = spaces.Graph | spaces.Sequence


@pytest.mark.parametrize(
    "kind", [SyncVectorEnv, Quick, partial(Quick, shared_memory=False)], ids=[*KINDS, "not shared"]
)
@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_any_space_is_batched_as_gymnasium_does(closing, kind, space):
    functions = [partial(EchoEnv, space, space)] * 3
    if kind is Quick and isinstance(space, (*DYNAMIC.__args__, CustomSpace)):
        error = TypeError if isinstance(space, DYNAMIC) else ValueError
        with pytest.raises(error, match=r"shared.memory"):
            kind(functions)
        return
    own = closing(gymnasium.vector.SyncVectorEnv(functions, autoreset_mode="SameStep"))
    envs = closing(kind(functions, autoreset_mode="SameStep"))
    assert type(envs.observation_space) is type(own.observation_space)
    got, expected = envs.reset(seed=7), own.reset(seed=7)
    assert data_equivalence(got, expected)
    own.action_space.seed(3)
    for _ in range(8):
        actions = own.action_space.sample()
        (*got, infos), (*expected, own_infos) = envs.step(actions), own.step(actions)
        assert got[0] in envs.observation_space
        assert data_equivalence(got, expected)
        for each in (infos, own_infos):  # a space's samples have NumPy's ints, as no env of
            each.update(final_obs=plain(each.get("final_obs")))  # Gymnasium's has
        assert data_equivalence(infos, own_infos)


def plain(value):
    """A value with Python's ints in place of NumPy's."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        return tuple(plain(part) for part in value)
    return int(value) if isinstance(value, np.integer) else value


@kinds
@pytest.mark.parametrize("count", [1, 2])
def test_actions_that_do_not_fit_are_errors_and_nothing_happens(closing, kind, count):
    envs = closing(kind([GivenEnv] * count))
    envs.reset()
    for action in (0.1, 1, np.float64(0.1), np.array(0.1), None):
        with pytest.raises(TypeError, match="one action per environment"):
            envs.step(action)
    for wrong in (count + 1, count + 2, *range(1, count)):
        for actions in (np.zeros((wrong, 1)), np.zeros(wrong), [0.5] * wrong):
            with pytest.raises(ValueError, match=f"actions for {count} environments?:"):
                envs.step(actions)
    envs.step(np.zeros((count, 1), np.float32))


@kinds
def test_rows_of_another_shape_are_given_on_as_they_are(closing, kind):
    envs, own = closing(kind([GivenEnv] * 3)), gymnasium.vector.SyncVectorEnv([GivenEnv] * 3)
    for each in (envs, own):
        each.reset()
    for actions in (
        *(np.array([0.1, 0.2, 0.3]), [0.1, 0.2, 0.3], np.float32([1, 2, 3]), (1, 2, 3)),
        *(np.ones((3, 2)), [[1, 2], [3, 4], [5, 6]], np.ones((3, 1, 1), np.uint8)),
    ):
        for each in (envs, own):
            each.step(actions)
        assert envs.get_attr("last") == own.get_attr("last"), repr(actions)
    fitting = np.array([[1], [2], [3]], np.float32)
    envs.step(fitting)
    assert [each["given"] for each in envs.get_attr("last")] == [repr(action) for action in fitting]


@kinds
def test_values_that_do_not_fit_are_refused(closing, kind):
    envs = closing(kind([partial(EchoEnv, PLAIN, spaces.Box(0, 255, (1,), np.uint8))] * 2))
    envs.reset()
    for actions in ([[300], [1]], [[0.5], [1]], [["1"], ["2"]], ["1", "2"], [[1], [1, 2]]):
        with pytest.raises(ValueError, match="actions for 2 environments"):
            envs.step(actions)


@kinds
def test_numbers_are_given_on_as_they_are_for_actions_without_axes(closing, kind):
    functions = [partial(GivenEnv, ())] * 2
    envs, own = closing(kind(functions)), gymnasium.vector.SyncVectorEnv(functions)
    for each in (envs, own):
        each.reset()
    for actions in (np.array([0.1, 0.2]), [0.1, 0.2], envs.action_space.sample()):
        for each in (envs, own):
            each.step(actions)
        assert envs.get_attr("last") == own.get_attr("last")
    with pytest.raises(ValueError, match="actions for 2 environments"):
        envs.step([0.1])


@pytest.mark.parametrize("in_series", [1, 2, 4])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_step_over_numbers_can_time_out(closing, in_series, shape):
    envs = closing(Quick([partial(GivenEnv, shape)] * 4, in_series=in_series))
    envs.reset()
    envs.step_async(np.array([0.1, 0.1, 0.3, 0.1]))
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.1)


class AnySpace(CustomSpace):
    """Custom space of any values, batches of values included."""

    def contains(self, value):
        return True


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (AnySpace(), 3),
        (spaces.Sequence(spaces.Sequence(spaces.Discrete(3))), ()),
        (spaces.Sequence(spaces.Dict(a=spaces.Discrete(3)), stack=True), {"a": np.array([1, 2])}),
    ],
    ids=["any", "nested", "stacked"],
)
@kinds
def test_a_batch_of_one_action_is_not_taken_for_the_action(closing, kind, space, action):
    envs = closing(kind([partial(EchoEnv, PLAIN, space)]))
    envs.reset()
    for batch in ((action,), [action]):
        envs.step(batch)
        assert data_equivalence(envs.get_attr("received")[0][-1], action)


def box(high, shape=(5,)):
    return spaces.Box(0, high, shape)


@kinds
def test_spaces_that_differ_are_refused_unless_asked_for(closing, kind):
    functions = [partial(EchoEnv, box(high)) for high in (1, 2, 3)]
    with pytest.raises(RuntimeError, match="observation_mode='different'"):
        kind(functions)
    envs = closing(kind(functions, observation_mode="different"))
    assert envs.single_observation_space == box(1)
    assert envs.observation_space.high[:, 0].tolist() == [1, 2, 3]
    assert envs.reset(seed=0)[0] in envs.observation_space


@kinds
def test_the_space_of_all_can_be_given(closing, kind):
    functions = [partial(EchoEnv, box(high)) for high in (1, 2)]
    batch = box(4, (2, 5))
    alone = closing(kind(functions, observation_mode=batch))
    assert (alone.observation_space, alone.single_observation_space) == (batch, box(1))
    pair = closing(kind(functions, observation_mode=(batch, box(4))))
    assert (pair.observation_space, pair.single_observation_space) == (batch, box(4))
    assert pair.reset(seed=0)[0].shape == (2, 5)


@kinds
@pytest.mark.parametrize("mode", ["same", "different", (box(4, (2, 3)), box(4, (3,)))])
def test_spaces_that_do_not_go_together_are_refused(kind, mode):
    functions = [partial(EchoEnv, box(1, (3,))), partial(EchoEnv, spaces.Discrete(5))]
    with pytest.raises((RuntimeError, AssertionError, TypeError)):
        kind(functions, observation_mode=mode)
    assert multiprocessing.active_children() == []


@kinds
def test_actions_that_differ_are_refused(kind):
    functions = [partial(EchoEnv, box(1), spaces.Discrete(n)) for n in (2, 3)]
    with pytest.raises(RuntimeError, match="action space"):
        kind(functions)


@kinds
@pytest.mark.parametrize(
    ("mode", "error"), [("other", ValueError), ((1, 2), TypeError), ((box(1),), ValueError)]
)
def test_unknown_observation_modes_are_refused(kind, mode, error):
    with pytest.raises(error, match="observation_mode"):
        kind([cartpole], observation_mode=mode)


# --- what is returned ---------------------------------------------------------------------------


@kinds
def test_observations_belong_to_the_caller(closing, kind):
    envs = closing(kind([cartpole] * 2))
    first, _ = envs.reset(seed=0)
    kept = first.copy()
    second, rewards, *_ = envs.step([0, 1])
    assert np.array_equal(first, kept)
    first[:] = 0
    assert not np.shares_memory(first, second)
    envs.step([0, 1])
    assert rewards.tolist() == [1, 1]


@kinds
def test_without_copies_the_next_step_overwrites(closing, kind):
    envs = closing(kind([cartpole] * 2, copy=False))
    first, _ = envs.reset(seed=0)
    second, *_ = envs.step([0, 1])
    assert np.array_equal(first, second)
    first[0] = 0
    assert second[0].tolist() == [0] * 4


@kinds
def test_seeds_count_up_and_stay(closing, kind):
    envs = closing(kind([cartpole] * 3))
    envs.reset(seed=42)
    assert envs.np_random_seed == (42, 43, 44)
    envs.reset()
    assert envs.np_random_seed == (42, 43, 44)
    assert len({generator.random() for generator in envs.np_random}) == 3
    envs.reset(seed=[5, None, 7])
    assert envs.np_random_seed == (5, 43, 7)
    with pytest.raises(ValueError, match=re.escape("num_envs=3 but got length=2")):
        envs.reset(seed=[1, 2])


@kinds
def test_bad_masks_are_refused(closing, kind):
    envs = closing(kind([cartpole] * 2))
    envs.reset(seed=0)
    for mask, error in (
        ([True, False], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([[True, False]]), ValueError),
        (np.array([False, False]), ValueError),
    ):
        with pytest.raises(error, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})
    envs.step([0, 1])


def test_a_mask_is_left_in_the_callers_options(closing):
    envs = closing(SyncVectorEnv([InfoEnv] * 2))
    envs.reset()
    options = {"reset_mask": np.array([False, True]), "level": 3}
    _, infos = envs.reset(options=options)
    assert set(options) == {"reset_mask", "level"}
    assert infos["options"].tolist() == [None, "{'level': 3}"]


# --- states and errors --------------------------------------------------------------------------


def test_calls_wait_for_each_other(closing):
    envs = closing(Quick([cartpole] * 2))
    for name in ("reset", "step", "call"):
        with pytest.raises(NoAsyncCallError, match=f"`{name}_wait` without any prior call"):
            getattr(envs, f"{name}_wait")()
    starts = {
        "reset": envs.reset_async,
        "step": partial(envs.step_async, [0, 1]),
        "call": partial(envs.call_async, "gravity"),
    }
    for pending, start in starts.items():
        start()
        for what, other in starts.items():
            message = f"`{what}_async` while waiting for a pending call to `{pending}`"
            with pytest.raises(AlreadyPendingCallError, match=message):
                other()
        with pytest.raises(AlreadyPendingCallError, match="`set_attr`"):
            envs.set_attr("gravity", 1)
        getattr(envs, f"{pending}_wait")()
    assert envs.call("gravity") == (9.8, 9.8)


@kinds
def test_nothing_works_after_close(kind):
    envs = kind([cartpole] * 2)
    envs.close()
    envs.close()
    assert envs.closed
    for act in (envs.reset, partial(envs.step, [0, 1])):
        with pytest.raises(ClosedEnvironmentError):
            act()


@pytest.mark.parametrize("what", ["reset", "step", "call"])
def test_waiting_has_an_end(what):
    envs = Quick([partial(SlowEnv, 0.4)] * 2, in_series=1)
    envs.reset()
    {
        "reset": envs.reset_async,
        "step": partial(envs.step_async, [0, 0]),
        "call": partial(envs.call_async, "sleep"),
    }[what]()
    with pytest.raises(multiprocessing.TimeoutError, match=f"`{what}_wait` has timed out after"):
        getattr(envs, f"{what}_wait")(timeout=0.05)
    start = time.monotonic()
    envs.close(terminate=True)
    assert time.monotonic() - start < 10
    assert multiprocessing.active_children() == []


def test_what_took_too_long_is_waited_for_by_the_next(closing):
    envs = closing(Quick([partial(SlowEnv, 0.3)] * 2, in_series=1))
    envs.reset()
    envs.step_async([0, 0])
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.01)
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    assert envs.get_attr("name") == (0.3, 0.3)
    assert envs.step([0, 0])[1].tolist() == [1, 1]


NEXT = {
    "step": partial(AsyncVectorEnv.step, actions=[0, 0]),
    "mask": partial(AsyncVectorEnv.reset, options={"reset_mask": np.array([True, False])}),
    "call": partial(AsyncVectorEnv.call, name="render"),
    "set_attr": partial(AsyncVectorEnv.set_attr, name="name", values=0.3),
    "save_state": AsyncVectorEnv.save_state,
}


def time_out(envs, name, *args, **kwargs):
    getattr(envs, f"{name}_async")(*args, **kwargs)
    with pytest.raises(multiprocessing.TimeoutError):
        getattr(envs, f"{name}_wait")(timeout=0)


@pytest.mark.parametrize("act", NEXT.values(), ids=NEXT)
def test_what_took_too_long_is_done_in_every_environment_before_the_next(closing, act):
    envs = closing(Quick([partial(CountingEnv, 0.3)] * 2, in_series=1, caller_steps=True))
    envs.reset()
    time_out(envs, "reset")
    act(envs)
    assert envs.get_attr("resets") == ((3, 2) if act is NEXT["mask"] else (2, 2))
    time_out(envs, "call", "nap")
    act(envs)
    assert envs.get_attr("naps") == (1, 1)
    time_out(envs, "step", [0, 0])
    act(envs)


class SlowCountedEnv(CountedEnv):
    def step(self, action):
        time.sleep(0.3)
        return super().step(action)


def test_a_reset_of_some_after_a_step_that_took_too_long_shows_the_episode_of_others(closing):
    functions = [partial(CountedEnv, 0, 1), partial(SlowCountedEnv, 1, 9)]
    envs = closing(Quick(functions, autoreset_mode=AutoresetMode.SAME_STEP))
    envs.reset()
    time_out(envs, "step", [0, 0])
    observations, _ = envs.reset(options={"reset_mask": np.array([False, True])})
    assert observations.tolist() == [[2, 1, 0]] * 2


@pytest.mark.parametrize("act", NEXT.values(), ids=NEXT)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_next_raises_the_error_of_what_took_too_long(closing, act):
    envs = closing(Quick([partial(CountingEnv, 0.3)] * 2, in_series=1))
    envs.reset()
    time_out(envs, "call", "nap", 0)
    with pytest.raises(ZeroDivisionError):
        act(envs)
    act(envs)
    time_out(envs, "reset", options={"fail": True})
    with pytest.raises(ZeroDivisionError):
        act(envs)


def test_a_wait_with_a_time_limit_sees_the_end_of_a_step_that_one_write_starts(closing):
    envs = closing(Quick([partial(EchoEnv, PLAIN)] * MIN_WORKERS, in_series=1))
    envs.reset()
    for count in range(1, 4):
        envs.step_async([0] * MIN_WORKERS)
        assert envs.step_wait(timeout=20)[4]["steps"].tolist() == [count] * MIN_WORKERS


@pytest.mark.parametrize("terminate", [False, True])
def test_closing_while_something_is_pending_is_told(terminate):
    envs = Quick([cartpole] * 2)
    envs.reset_async()
    with pytest.warns(UserWarning, match="`close` while waiting for a pending call to `reset`"):
        envs.close(terminate=terminate)
    assert multiprocessing.active_children() == []


def test_an_error_in_the_synchronous_one_leaves_it_usable(closing):
    envs = closing(SyncVectorEnv([FailingEnv] * 2))
    envs.reset()
    with pytest.raises(ZeroDivisionError, match="action 3") as caught:
        envs.step([0, 3])
    assert caught.traceback[-1].name == "step", "it is the environment's own exception"
    assert envs.step([0, 0])[1].tolist() == [0, 0]
    with pytest.raises(ZeroDivisionError, match="odd"):
        envs.reset(seed=1)


class TextEnv(CountedEnv):
    """Environment whose observations are objects."""

    def __init__(self, number, length):
        super().__init__(number, length)
        self.observation_space = spaces.Text(9)

    def observe(self):
        return "x".join(map(str, (self.resets, self.steps, self.count)))


@pytest.mark.parametrize("context", ["forkserver", "thread"])
def test_a_reset_of_some_leaves_the_objects_that_others_observe(closing, context):
    functions = [partial(TextEnv, 0, 2), partial(TextEnv, 1, 9)]
    own = closing(gymnasium.vector.SyncVectorEnv(functions, autoreset_mode="SameStep"))
    kind = partial(AsyncVectorEnv, context=context, in_series=2)
    envs = closing(kind(functions, autoreset_mode="SameStep"))
    for each in (envs, own):
        each.reset()
        each.step([0, 0])
        each.step([0, 0])
        observations, _ = each.reset(options={"reset_mask": np.array([False, True])})
        assert observations == ("2x2x0", "2x2x0")


@kinds
def test_objects_that_the_caller_changes_are_not_returned_again(closing, kind):
    functions = [GraphReusingEnv] * 2
    envs = closing(kind(functions, **{} if kind is SyncVectorEnv else {"shared_memory": False}))
    envs.reset()
    (graph, _), *_ = envs.step([0, 0])
    graph.nodes[...] = 7
    (graph, _), _ = envs.reset(options={"reset_mask": np.array([False, True])})
    assert (graph.nodes == 1).all()


class RaisingEnv(CountedEnv):
    def step(self, action):
        if action:
            raise ZeroDivisionError
        return super().step(action)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_reset_of_some_after_an_error_shows_the_episode_that_others_are_in(closing, mode):
    seen = []
    for kind in (SyncVectorEnv, gymnasium.vector.SyncVectorEnv):
        envs = closing(kind([partial(RaisingEnv, 0, 2)] * 2, autoreset_mode=mode))
        envs.reset()
        envs.step([0, 0])
        with pytest.raises(ZeroDivisionError):
            envs.step([0, 1])
        seen.append(envs.reset(options={"reset_mask": np.array([False, True])})[0].tolist())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("command", ["reset", "step"])
def test_an_error_in_a_worker_is_raised_and_told_as_gymnasium_does(command):
    envs = Quick([FailingEnv] * 3, in_series=1)
    envs.reset()
    act = partial(envs.reset, seed=0) if command == "reset" else partial(envs.step, [0, 2, 0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ZeroDivisionError, match="odd" if command == "reset" else "action 2"):
            act()
    told = [str(warning.message) for warning in caught]
    assert len(told) == 3
    assert "error from Worker-1 - Shutting it down" in told[0]
    assert "ZeroDivisionError" in told[1]
    assert "Raising the last exception back to the main process." in told[2]
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()
    envs.close()
    assert multiprocessing.active_children() == []


def test_an_error_in_a_constructor_is_the_callers(closing):
    for kind in (SyncVectorEnv, Quick):
        with pytest.raises(ZeroDivisionError):
            kind([cartpole, partial(divmod, 1, 0)])
    assert multiprocessing.active_children() == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reserved_names_are_not_called(closing):
    envs = closing(Quick([cartpole] * 2))
    with pytest.raises(ValueError, match="use `reset` directly"):
        envs.call("reset")


def test_a_worker_lost_in_a_step_beside_a_reset_names_the_stepping_environment(closing):
    env_fns = [lambda: gymnasium.wrappers.TimeLimit(LethalEnv(), 1), LethalEnv]
    envs = closing(Quick(env_fns, in_series=2, autoreset_mode=AutoresetMode.NEXT_STEP))
    envs.reset()
    envs.step([0, 0])
    with pytest.raises(WorkerDiedError) as caught:
        envs.step([0, 1])
    assert caught.value.env_index == 1


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_lost_worker_is_replaced_if_asked_for(closing, mode):
    envs = closing(
        Quick([LethalEnv] * 2, in_series=1, autoreset_mode=mode, on_worker_failure="restart")
    )
    envs.reset(seed=0)
    envs.step([0, 0])
    obs, rewards, terminated, truncated, infos = envs.step([0, 1])
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == (
        [1, 0],
        [False, False],
        [False, True],
    )
    if mode is AutoresetMode.SAME_STEP:
        assert obs[:, 0].tolist() == [2, 0]
        assert infos["final_obs"][1].tolist() == [1, 1]
        assert infos["final_info"]["worker_restarted"].tolist() == [False, True]
    else:
        assert obs[:, 0].tolist() == [2, 1], "the last one that is known"
        assert infos["worker_restarted"].tolist() == [False, True]
    if mode is AutoresetMode.DISABLED:
        envs.reset(options={"reset_mask": truncated})
    assert envs.step([0, 0])[0][:, 0].tolist() == [3, 0 if mode is AutoresetMode.NEXT_STEP else 1]


def test_attributes_are_set_in_the_environments_of_a_new_worker_too(closing):
    envs = closing(Quick([LethalEnv] * 2, in_series=1, on_worker_failure="restart"))
    envs.set_attr("level", [3, 4])
    envs.reset(seed=0)
    envs.step([0, 1])
    assert envs.get_attr("level") == (3, 4)


def test_without_resets_in_steps_the_replacing_environments_are_seeded(closing):
    starts = []
    for _ in range(2):
        envs = closing(
            Quick(
                [LethalAtRandom] * 2,
                in_series=1,
                autoreset_mode=AutoresetMode.DISABLED,
                on_worker_failure="restart",
            )
        )
        envs.reset(seed=5)
        *_, truncated, infos = envs.step([0, 1])
        assert infos["worker_restarted"].tolist() == truncated.tolist() == [False, True]
        observations, _ = envs.reset(options={"reset_mask": truncated})
        starts.append(observations[1].tolist())
    assert starts[0] == starts[1]


@kinds
def test_it_is_closed_when_collected(kind):
    envs = kind([cartpole] * 2)
    watched = weakref.ref(envs)
    del envs
    gc.collect()
    assert watched() is None
    assert multiprocessing.active_children() == []


# --- processes ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:context='fork' copies this process")
@pytest.mark.parametrize("context", [None, "spawn", "fork", "forkserver"])
def test_workers_start_in_any_way(closing, context):
    envs = closing(AsyncVectorEnv([cartpole] * 2, context=context))
    assert envs.reset(seed=0)[0].shape == (2, 4)


def test_environments_registered_by_the_caller_are_known_to_workers(closing):
    gymnasium.register("OfThisTest-v0", lambda: NamedEnv(3))
    try:
        envs = closing(
            AsyncVectorEnv([partial(gymnasium.make, "OfThisTest-v0")] * 2, context="spawn")
        )
        assert envs.get_attr("name") == (3, 3)
    finally:
        del gymnasium.registry["OfThisTest-v0"]


@pytest.mark.parametrize("env_id", ["OfThisTest-v0", "CartPole-v1"])
def test_ids_registered_for_gymnasiums_classes_are_known_to_workers(closing, env_id, monkeypatch):
    entry_point = gymnasium.spec("CartPole-v1").entry_point
    spec = EnvSpec(env_id, entry_point=entry_point, max_episode_steps=3)
    monkeypatch.setitem(gymnasium.registry, env_id, spec)
    envs = closing(AsyncVectorEnv([partial(gymnasium.make, env_id)] * 2, context="spawn"))
    assert [spec.max_episode_steps for spec in envs.get_attr("spec")] == [3, 3]


def test_environments_may_have_children(closing):
    closing(Quick([ParentEnv] * 2, daemon=False)).reset()


@pytest.mark.parametrize(("limit", "workers"), [(1, 1), (2, 2), (9, 4), (np.int64(3), 2)])
def test_max_concurrency_is_the_number_of_workers(closing, limit, workers):
    envs = closing(Quick([cartpole] * 4, max_concurrency=limit))
    assert len(envs.processes) == workers
    envs.reset(seed=0)
    envs.step([0, 1, 0, 1])


@pytest.mark.parametrize("limit", [0, -1, 2.5, 2.0, "2"])
def test_bad_limits_are_refused(limit):
    with pytest.raises(ValueError, match="`max_concurrency` must be"):
        AsyncVectorEnv([cartpole], max_concurrency=limit)
    with pytest.raises(TypeError, match="in_series"):
        AsyncVectorEnv([cartpole], max_concurrency=1, in_series=1)
    with pytest.raises(ValueError, match="at least one function"):
        AsyncVectorEnv([], max_concurrency=1)


def test_a_custom_worker_is_gymnasiums_business(closing):
    from gymnasium.vector.async_vector_env import _async_worker

    envs = closing(AsyncVectorEnv([cartpole] * 2, worker=_async_worker, context="fork"))
    own = closing(gymnasium.vector.SyncVectorEnv([cartpole] * 2))
    assert data_equivalence(envs.reset(seed=0), own.reset(seed=0))
    assert data_equivalence(envs.step(np.array([0, 1])), own.step(np.array([0, 1])))
    envs.set_attr("gravity", [1.0, 2.0])
    assert envs.call("gravity") == (1.0, 2.0)
    assert len(envs.processes) == 2
    with pytest.raises(TypeError, match="in_series"):
        AsyncVectorEnv([cartpole], worker=_async_worker, in_series=1)


# --- wrappers -----------------------------------------------------------------------------------

WRAPPERS = {
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "ClipReward": partial(wrappers.ClipReward, min_reward=0.2, max_reward=0.5),
    "FlattenObservation": wrappers.FlattenObservation,
    "DictInfoToList": wrappers.DictInfoToList,
    "TransformObservation": partial(
        wrappers.VectorizeTransformObservation,
        wrapper=gymnasium.wrappers.TransformObservation,
        func=lambda obs: obs + 1,
        observation_space=None,
    ),
}


@kinds
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_gymnasiums_wrappers_do_the_same(closing, kind, wrapper):
    envs, own = (
        closing(wrapper(each([cartpole] * 3))) for each in (kind, gymnasium.vector.SyncVectorEnv)
    )
    assert data_equivalence(envs.reset(seed=3), own.reset(seed=3))
    own.action_space.seed(0)
    for _ in range(60):
        actions = own.action_space.sample()
        (*got, infos), (*expected, expected_infos) = envs.step(actions), own.step(actions)
        assert data_equivalence(got, expected)
        for each in (infos, expected_infos):
            for info in each if isinstance(each, list) else [each]:
                info.get("episode", {}).pop("t", None)  # seconds
        assert data_equivalence(infos, expected_infos)
