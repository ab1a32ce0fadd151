"""Tianshou's vector environments: side by side with Tianshou's own, and what only ours can do."""

from __future__ import annotations

import importlib.util
import itertools
import multiprocessing
import os
import re
import runpy
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from example_envs import PLAIN, EchoEnv
from gymnasium import spaces
from interrupts import Instant
from tianshou_envs import Board, Broken, Corridor, Fatal, Holding, Parting, Untyped
from vector_reward_envs import GoalsEnv, Summing

os.environ.setdefault("NUMBA_DISABLE_JIT", "1")  # compiling takes longer than all of these tests
pytest.importorskip("tianshou")

from tianshou import env as theirs
from tianshou.data import Batch

import xuance_envs
from xuance_envs.compat import tianshou as ours
from xuance_envs.errors import ClosedVecEnvError, VecEnvError, WorkerDiedError

pytestmark = [
    # Libraries that Tianshou loads.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tianshou_dqn.py"
PAGE = ROOT / "docs" / "migrating.md"


OURS = {
    "dummy": ours.DummyVectorEnv,
    "subproc": partial(ours.SubprocVectorEnv, context="forkserver"),
    "in series": partial(ours.ShmemVectorEnv, context="forkserver", in_series=3),
    "caller steps": partial(ours.SubprocVectorEnv, context="forkserver", caller_steps=True),
}
kinds = pytest.mark.parametrize("make", OURS.values(), ids=OURS)


def same(one, other):
    """Whether results are the same, dtypes included."""
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype != object:
            np.testing.assert_array_equal(one, other)
            return
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = one.values(), other.values()
    elif not isinstance(one, tuple | list | np.ndarray):
        assert one == other
        return
    for a, b in zip(one, other, strict=True):
        same(a, b)


# --- side by side -------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("kind", ["box", "discrete", "dict", "image"])
def test_steps_and_resets_are_theirs(make, kind, closing):
    env_fns = [partial(Corridor, 3 + i, kind) for i in range(5)]
    mine, other = closing(make(env_fns)), closing(theirs.DummyVectorEnv(env_fns))
    rng = np.random.default_rng(0)
    mine.seed(3), other.seed(3)
    same(mine.reset(), other.reset())
    same(mine.reset(seed=5), other.reset(seed=5))
    same(mine.reset([4, 1], options={"place": 1}), other.reset([4, 1], options={"place": 1}))
    same(mine.reset(2), other.reset(2))
    for ids in (None, [0, 2, 3], np.array([4, 0]), 3, None, [4, 3, 2, 1, 0], None, None):
        count = 5 if ids is None else np.size(ids)
        actions = rng.integers(3, size=count)
        result = mine.step(actions, ids)
        same(result, other.step(actions, ids))
        ended = np.flatnonzero(result[2] | result[3])
        if ended.size:
            envs = Batch(result[4]).env_id[ended]
            same(mine.reset(envs), other.reset(envs))


@kinds
def test_attributes_and_seeds_are_theirs(make, closing):
    env_fns = [partial(Corridor, 3 + i) for i in range(4)]
    mine, other = closing(make(env_fns)), closing(theirs.DummyVectorEnv(env_fns))
    for envs in (mine, other):
        assert len(envs) == envs.env_num == 4
        assert not envs.is_async
        assert envs.get_env_attr("length") == [3, 4, 5, 6]
        assert envs.get_env_attr("length", 1) == [4]
        assert envs.get_env_attr("length", [3, 0]) == [6, 3]
        assert envs.action_space == [spaces.Discrete(3)] * 4
        assert [space.high[0] for space in envs.observation_space] == [3, 4, 5, 6]
        assert envs.spec == [None] * 4
        envs.set_env_attr("length", 9)
        envs.set_env_attr("length", [7], [2, 1])
        assert envs.get_env_attr("length") == [9, [7], [7], 9]
        envs.set_env_attr("length", 9)
        assert envs.seed([4, 5, 6, 7]) == [[4], [5], [6], [7]]
        assert envs.seed(None) == [[None]] * 4
        frames = envs.render()
        assert [frame.shape for frame in frames] == [(2, 2, 3)] * 4


@kinds
def test_wrappers_are_reached_through(make, closing):
    envs = closing(make([lambda: Holding(gymnasium.Wrapper(Corridor()))] * 2))
    assert envs.get_env_attr("length") == ["the wrapper's"] * 2
    assert envs.get_env_attr("kind") == ["box"] * 2
    envs.set_env_attr("test", 1337)
    assert envs.get_env_attr("test", 1) == [1337]


@kinds
def test_environments_without_spaces_are_taken_as_they_are(make, closing):
    envs = closing(make([partial(Untyped, size) for size in (5, 7, 7)]))
    observations, _ = envs.reset()
    assert observations.dtype == object
    assert [each.shape for each in observations] == [(5, 2), (7, 2), (7, 2)]
    observations, rewards, *_ = envs.step(np.array([3, 4]), [1, 2])
    assert observations.shape == (2, 7, 2)
    assert observations[:, 0, 0].tolist() == [3, 4]
    assert rewards.tolist() == [1, 1]


@kinds
def test_one_environment_gets_its_action_and_not_an_array_of_one(make, closing):
    for count in (1, 2):
        envs = closing(make([partial(Untyped, 5)] * count))
        envs.reset()
        for actions in ([3], (3,), np.array([3])):
            envs.step(actions, 0)
            assert envs.get_env_attr("given", 0) == [3]
            assert np.ndim(envs.get_env_attr("given", 0)[0]) == 0


@kinds
def test_actions_of_several_parts_are_one_for_each_environment(make, closing):
    rows = [(0, 1), (0, 2)]
    envs = closing(make([partial(EchoEnv, PLAIN, spaces.Tuple([spaces.Discrete(3)] * 2))] * 2))
    envs.reset()
    for actions in (rows, tuple(rows)):
        envs.step(actions)
        assert [received[-1] for received in envs.get_env_attr("received")] == rows


@kinds
def test_environments_of_several_agents_are_theirs(make, closing):
    mine, other = closing(make([Board] * 3)), closing(theirs.DummyVectorEnv([Board] * 3))
    same(mine.reset(), other.reset())
    same(mine.step([0, 1, 0]), other.step([0, 1, 0]))
    same(mine.step([0], 2), other.step([0], 2))


@kinds
def test_several_rewards_are_taken_as_objects(make, closing):
    env_fns = [partial(Corridor, rewards=2)] * 3
    mine, other = closing(make(env_fns, as_objects=True)), closing(theirs.DummyVectorEnv(env_fns))
    mine.seed(0), other.seed(0)
    mine.reset(), other.reset()
    same(mine.step([0, 1, 0]), other.step([0, 1, 0]))


@kinds
def test_vectors_are_taken_where_they_are_declared(make, closing):
    env_fns = [partial(GoalsEnv, 3, 9)] * 3
    mine, other = closing(make(env_fns)), closing(theirs.DummyVectorEnv(env_fns))
    mine.reset(seed=0), other.reset(seed=0)
    for actions, ids in (([0, 1, 2], None), ([3, 4], [0, 2])):
        found, expected = mine.step(actions, ids), other.step(actions, ids)
        np.testing.assert_array_equal(found[1], expected[1])
        assert found[1].shape == (len(actions), 3)
    with pytest.raises(RuntimeError, match=r"environment 1 has a different reward_space"):
        make([GoalsEnv, lambda: Summing(GoalsEnv())])


@kinds
def test_observations_of_other_shapes_are_named(make):
    env_fns = [partial(Corridor, kind=kind) for kind in ("box", "image")]
    with pytest.raises(RuntimeError, match=r"environment 1 .* as_objects=True"):
        make(env_fns)


@kinds
def test_tianshous_wrappers_wrap_them(make, closing):
    env_fns = [partial(gymnasium.make, "CartPole-v1")] * 3
    mine, other = closing(make(env_fns)), closing(theirs.DummyVectorEnv(env_fns))
    mine.seed(1), other.seed(1)
    assert isinstance(mine, theirs.BaseVectorEnv)
    one, two = theirs.VectorEnvNormObs(mine), theirs.VectorEnvNormObs(other)
    same(one.reset(), two.reset())
    for _ in range(3):
        same(one.step([0, 1, 1]), two.step([0, 1, 1]))


@pytest.mark.parametrize("name", ["DummyVectorEnv", "SubprocVectorEnv", "ShmemVectorEnv"])
def test_they_are_theirs_by_class(name, closing):
    envs = closing(getattr(ours, name)([Corridor]))
    assert isinstance(envs, getattr(theirs, name))


def test_the_line_to_change_is_all_that_changes():
    text = PAGE.read_text(encoding="utf-8").partition("\n## Tianshou\n")[2]
    was, becomes = re.findall(r"^[-+](from .*)$", text.partition("\n## ")[0], re.MULTILINE)
    for line, module in ((was, theirs), (becomes, ours)):
        names: dict[str, type] = {}
        exec(line, names)
        assert names["ShmemVectorEnv"] is module.ShmemVectorEnv
        assert set(ours.__all__) <= set(names)


# --- some at a time -----------------------------------------------------------------------------

ASYNC = {
    "one each": partial(ours.SubprocVectorEnv, context="forkserver"),
    "one worker": partial(ours.SubprocVectorEnv, context="forkserver", in_series=4),
    "two workers": partial(ours.ShmemVectorEnv, context="forkserver", in_series=2),
    "dummy": ours.DummyVectorEnv,
}
waiting = pytest.mark.parametrize("make", ASYNC.values(), ids=ASYNC)


@waiting
def test_every_environment_gets_its_own_actions(make, closing):
    envs = closing(make([partial(Corridor, 10_000)] * 4, wait_num=2))
    assert envs.is_async
    envs.reset()
    rng, sent, places = np.random.default_rng(1), {}, dict.fromkeys(range(4), 0)
    ids = np.arange(4)
    for turn in range(60):
        actions = rng.integers(2, size=len(ids))
        sent.update(zip(ids.tolist(), actions.tolist(), strict=True))
        observations, _, _, _, infos = envs.step(actions, ids)
        ids = Batch(infos).env_id
        assert len(ids) >= 2 or not envs.waiting_id
        assert sorted([*envs.waiting_id, *envs.ready_id]) == [0, 1, 2, 3]
        for observation, info in zip(observations, infos, strict=True):
            env = info["env_id"]
            assert info["given"] == sent[env]
            places[env] += 1
            assert observation.tolist() == [places[env]] * 2
        if turn % 7 == 0:  # some are sent later, also of the same worker
            ids = ids[:1]
        elif turn % 7 == 1:
            ids = np.array(envs.ready_id)
        if turn % 11 == 3:  # others may be stepping
            envs.reset(ids[-1])
            places[int(ids[-1])] = 0
            assert envs.get_env_attr("place", int(ids[-1])) == [0]
    while envs.waiting_id:
        envs.step(None)


def test_the_slow_keep_nobody_waiting(closing):
    seconds = [0.0, 0.0, 0.0, 1.5]
    make = partial(ours.SubprocVectorEnv, context="forkserver", wait_num=3)
    envs = closing(make([partial(Corridor, 99, seconds=each) for each in seconds]))
    envs.reset()
    began = time.monotonic()
    *_, infos = envs.step([0] * 4)
    assert sorted(Batch(infos).env_id) == [0, 1, 2]
    assert envs.waiting_id == [3]
    with pytest.raises(AssertionError, match="stepping now"):
        envs.reset(3)
    with pytest.raises(RuntimeError, match="still stepping"):
        envs.render()
    assert time.monotonic() - began < 1.4
    *_, infos = envs.step(None)
    assert Batch(infos).env_id.tolist() == [3]


def test_after_the_timeout_comes_what_is_ready(closing):
    make = partial(ours.ShmemVectorEnv, context="forkserver", timeout=0.2)
    envs = closing(make([partial(Corridor, 99, seconds=each) for each in (0.0, 1.5)]))
    assert envs.is_async
    envs.reset()
    *_, infos = envs.step([0, 0])
    assert Batch(infos).env_id.tolist() == [0]
    *_, infos = envs.step(None)  # waits for one at least
    assert Batch(infos).env_id.tolist() == [1]
    with pytest.raises(ValueError, match="no environment is stepping"):
        envs.step(None)


# --- what goes wrong ----------------------------------------------------------------------------


@kinds
def test_an_environments_own_error_is_raised(make):
    envs = make([Broken] * 3)
    envs.reset()
    with pytest.raises(ZeroDivisionError, match="broken on purpose"):
        envs.step([0, Broken.END, 0])
    if make is ours.DummyVectorEnv:
        envs.step([0], 0)
        with pytest.raises(ZeroDivisionError):
            envs.step([Broken.END], 1)
        envs.step([0, 0, 0])
    else:
        with pytest.raises(ClosedVecEnvError):
            envs.reset()
    envs.close()
    assert multiprocessing.active_children() == []


@kinds
def test_mistakes_leave_them_usable(make, closing):
    envs = closing(make([Broken] * 3))
    envs.reset()
    with pytest.raises(ValueError, match="actions for 3 environments"):
        envs.step([0, 0])
    with pytest.raises(ValueError, match="actions for 2 environments"):
        envs.step([0, 0, 0], [0, 1])
    with pytest.raises(ValueError, match="must be not-None"):
        envs.step(None)
    with pytest.raises(ValueError, match="from 0 to 2, got 3"):
        envs.reset(3)
    with pytest.raises(ValueError, match="at most once"):
        envs.step([0, 0], [1, 1])
    with pytest.raises(ValueError, match="3 seeds"):
        envs.seed([1])
    if make is ours.DummyVectorEnv:
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            envs.get_env_attr("nothing")
    else:
        assert envs.get_env_attr("nothing") == [None] * 3
    with pytest.raises(TypeError, match="unexpected keyword"):
        envs.reset(nothing=1)
    if make is not ours.DummyVectorEnv:
        with pytest.raises(TypeError, match="cannot be pickled"):
            envs.get_env_attr("lock")
    assert envs.step([0] * 3)[0].shape == (3, 2)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="wait_num: expected 1 to 2"):
        ours.DummyVectorEnv([Corridor] * 2, wait_num=3)
    with pytest.raises(ValueError, match="timeout: expected a positive number"):
        ours.DummyVectorEnv([Corridor], timeout=0)
    with pytest.raises(TypeError, match="nothing"):
        ours.SubprocVectorEnv([Corridor], nothing=1)


def test_closed_is_closed():
    envs = ours.DummyVectorEnv([Corridor])
    envs.close()
    for call in (envs.reset, envs.close, partial(envs.step, [0]), envs.render, envs.seed):
        with pytest.raises(AssertionError, match="after close"):
            call()


def test_another_context_of_python_is_taken(closing):
    context = multiprocessing.get_context("spawn")
    envs = closing(ours.SubprocVectorEnv([Corridor] * 2, context=context, in_series=2))
    assert envs.reset()[0].shape == (2, 2)


def test_what_an_interrupt_left_of_a_step_is_thrown_away(closing, monkeypatch):
    envs = closing(ours.SubprocVectorEnv([Corridor] * 2, context="forkserver"))
    envs.reset()
    stepper = envs._stepper
    finish = stepper._finish_step

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(stepper, "_finish_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        envs.step([0, 0])
    monkeypatch.setattr(stepper, "_finish_step", finish)
    assert envs.step([0, 0])[0].tolist() == [[2, 2], [2, 2]]


class Waiting(Corridor):
    """Waits in each step until it is released."""

    entered, released = threading.Event(), threading.Event()

    def step(self, action):
        self.entered.set()
        assert self.released.wait(20)
        return super().step(action)


def test_two_threads_in_one_are_refused(closing):
    envs = closing(ours.DummyVectorEnv([Waiting] * 2))
    envs.reset()
    results = []
    user = threading.Thread(target=lambda: results.append(envs.step([0], 0)[4][0]["env_id"]))
    user.start()
    assert Waiting.entered.wait(20)
    for use in (envs.reset, envs.seed, envs.render, partial(envs.step, [0], 1)):
        with pytest.raises(VecEnvError, match="another thread is using this"):
            use()
    Waiting.released.set()
    user.join()
    assert results == [0]
    assert envs.step([0], 1)[4][0]["env_id"] == 1


def received(envs, steps):
    """What came of steps, and of what is under way: by environment, its place, in their order."""
    while envs.waiting_id:
        steps.append(envs.step(None))
    places = [
        (info["env_id"], int(observation[0]))
        for observations, *_, infos in steps
        for observation, info in zip(observations, infos, strict=True)
    ]
    return sorted(places)


def test_an_error_leaves_those_in_this_process_usable(closing):
    envs = closing(ours.DummyVectorEnv([Broken] * 2, wait_num=1))
    envs.reset()
    with pytest.raises(ZeroDivisionError):
        envs.step([0, Broken.END])
    assert (envs.waiting_id, envs.ready_id) == ([], [0, 1])
    envs.reset([0, 1])
    assert received(envs, [envs.step([0, 0])]) == [(0, 1), (1, 1)]


@waiting
def test_an_interrupt_at_any_instant_loses_and_repeats_no_step(make, closing):
    envs = closing(make([partial(Corridor, 10**6)] * 4, wait_num=1))
    envs.reset()
    places = [0] * 4
    # In this process a method that was interrupted is called again.
    most = 2 if make is ours.DummyVectorEnv else 1
    for number in itertools.count(1, 5):
        with Instant(number, [os.path.dirname(xuance_envs.__file__)]) as instant:
            envs.step([0] * 4)
        assert sorted([*envs.waiting_id, *envs.ready_id]) == [0, 1, 2, 3]
        rest = received(envs, [])
        before, places = places, envs.get_env_attr("place")
        assert rest == [(env, places[env]) for env, _ in rest], instant.place
        steps = [now - then for now, then in zip(places, before, strict=True)]
        assert 0 <= min(steps) <= max(steps) <= most, instant.place
        for env in range(4):
            assert received(envs, [envs.step([0], env)]) == [(env, places[env] + 1)], instant.place
        places = [place + 1 for place in places]
        assert envs.get_env_attr("place") == places, instant.place
        if not instant.came:
            break
    assert number > 100


def test_a_reset_that_was_interrupted_takes_nothing_from_the_infos_of_the_next(
    closing, monkeypatch
):
    make = partial(ours.SubprocVectorEnv, context="forkserver", wait_num=1)
    envs = closing(make([partial(Corridor, 99, seconds=seconds) for seconds in (0, 1)]))
    envs.step([0, 0])
    assert envs.waiting_id == [1]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(envs._stepper._ledger.in_flight, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.reset(0)
    assert received(envs, []) == [(1, 1)]
    _, (info,) = envs.reset(0, options={"place": 7})
    assert info["began_at"] == 7


def test_what_waits_for_its_worker_waits_for_a_reset_in_it_too(closing):
    make = partial(ours.SubprocVectorEnv, context="forkserver", wait_num=1, in_series=3)
    envs = closing(make([partial(Corridor, 99, seconds=seconds) for seconds in (0, 1, 0, 0, 0, 0)]))
    envs.reset()
    for ids, waiting_id in (([1, 3], [1]), ([0, 3], [1, 0])):
        *_, infos = envs.step([0, 0], ids)
        assert Batch(infos).env_id.tolist() == [3]
        assert envs.waiting_id == waiting_id
    observations, infos = envs.reset([2, 4], options={"place": 7})
    assert observations.tolist() == [[7, 7], [7, 7]]
    assert [info["began_at"] for info in infos] == [7, 7]
    assert received(envs, []) == [(0, 1), (1, 1)]


# --- workers that are lost ----------------------------------------------------------------------

RESTARTED = partial(
    ours.SubprocVectorEnv, context="forkserver", in_series=2, on_worker_failure="restart"
)


def lose(**options):
    """Four environments after two steps, of which the second took the worker of 0 and 1 down."""
    envs = RESTARTED([partial(Fatal, 99)] * 4, **options)
    envs.seed(3)
    envs.reset()
    while len(envs.ready_id) < 4 or envs.waiting_id:
        envs.step(None)
    stepped = envs.step([0] * 4)
    while envs.waiting_id:
        stepped = envs.step(None)
    return envs, stepped, envs.step([Fatal.END], 1)


def test_a_lost_worker_truncates_what_it_stepped(closing):
    envs, _, lost = lose()
    closing(envs)
    observations, rewards, terminated, truncated, infos = lost
    assert observations.tolist() == [[1, 1]]  # what was last known
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0], [False], [True])
    assert (infos[0]["env_id"], infos[0]["worker_restarted"]) == (1, True)


def test_the_others_of_a_lost_worker_are_truncated_when_they_are_stepped(closing):
    envs, *_ = lose()
    closing(envs)
    observations, _, _, truncated, infos = envs.step([0, 0], [2, 0])
    assert truncated.tolist() == [False, True]
    assert observations.tolist() == [[2, 2], [1, 1]]
    assert ["worker_restarted" in info for info in infos] == [False, True]
    envs.reset([0, 1])
    observations, _, _, truncated, _ = envs.step([0] * 4)
    assert observations[:, 0].tolist() == [1, 1, 3, 2]
    assert not truncated.any()


def test_those_that_were_reset_before_are_not_truncated(closing):
    again = []
    for _ in range(2):
        envs, *_ = lose()
        closing(envs)
        resets = envs.reset([0, 1])
        observations, _, _, truncated, infos = envs.step([0] * 4)
        assert observations[:, 0].tolist() == [1, 1, 2, 2]
        assert not truncated.any()
        again.append([info["draw"] for info in [*resets[1], *infos]])
    assert again[0] == again[1]  # the new ones are seeded
    assert len(set(again[0])) == 6


def test_a_worker_may_be_lost_while_others_are_waited_for(closing):
    envs, _, lost = lose(wait_num=1)
    closing(envs)
    assert lost[3].tolist() == [True]
    steps = [envs.step([0, 0, 0], [0, 2, 3])]
    while envs.waiting_id:
        steps.append(envs.step(None))
    ended = {
        info["env_id"]: bool(end)
        for *_, truncated, infos in steps
        for end, info in zip(truncated, infos, strict=True)
    }
    assert ended == {0: True, 2: False, 3: False}
    envs.reset([0, 1])
    assert envs.get_env_attr("place") == [0, 0, 2, 2]


def test_attributes_are_set_in_the_environments_of_a_new_worker_too(closing):
    envs = closing(RESTARTED([partial(Fatal, 99)] * 4))
    envs.set_env_attr("level", 3, [0, 1])
    envs.reset()
    envs.step([Fatal.END], 1)
    assert envs.get_env_attr("level") == [3, 3, None, None]


@pytest.mark.parametrize("options", [{}, {"wait_num": 1}])
def test_a_command_that_loses_its_worker_leaves_the_others_at_theirs(closing, options):
    make = partial(RESTARTED, **options)
    slow = partial(Parting, 99, seconds=0.2)
    envs = closing(make([Parting, Parting, slow, slow]))
    envs.reset()
    steps = [envs.step([0, 0, 0], [1, 2, 3])]
    assert envs.waiting_id == ([2, 3] if options else [])
    with pytest.raises(WorkerDiedError, match="a new worker replaces it"):
        envs.reset(0, parting=True)
    assert received(envs, steps) == [(1, 1), (2, 1), (3, 1)]
    stepped = [envs.step([0], 0)]
    assert received(envs, stepped) == [(0, 0)]
    *_, truncated, infos = stepped[-1]
    assert truncated.tolist() == [True]
    assert infos[0]["worker_restarted"]
    envs.reset([0, 1])
    assert envs.get_env_attr("place") == [0, 0, 1, 1]


# --- elsewhere ----------------------------------------------------------------------------------


def test_ray_steps_them_too():
    ray_actors = pytest.importorskip("ray") and importlib.import_module("ray_actors")
    env_fns = [partial(gymnasium.make, "CartPole-v1")] * 4
    with ray_actors.local_cluster():
        other = theirs.DummyVectorEnv(env_fns)
        mine = ours.RayVectorEnv(env_fns, in_series=2, num_cpus_per_worker=0.01)
        for ids in (None, [3, 0], [1], None):
            mine.seed(1), other.seed(1)
            same(mine.reset(), other.reset())
            actions = np.ones(4 if ids is None else len(ids), int)
            same(mine.step(actions, ids), other.step(actions, ids))
        mine.close()


# --- Tianshou's own algorithms ------------------------------------------------------------------

algorithms = pytest.mark.skipif(
    importlib.util.find_spec("tianshou.algorithm") is None, reason="written for Tianshou 2"
)


def assert_same_weights(one, other):
    mine, others = one.policy.state_dict(), other.policy.state_dict()
    assert mine.keys() == others.keys()
    for name, weights in mine.items():
        assert (weights == others[name]).all(), name


@algorithms
def test_dqn_learns_the_same():
    learn = runpy.run_path(str(EXAMPLE))["learn"]
    make = partial(ours.SubprocVectorEnv, context="forkserver")
    mine, other = (learn(each, 1, 128, 4, 1)[0] for each in (make, theirs.DummyVectorEnv))
    assert_same_weights(mine, other)


@algorithms
def test_ppo_learns_the_same():
    make = partial(ours.SubprocVectorEnv, context="forkserver")
    mine, other = (ppo_in(each) for each in (make, theirs.DummyVectorEnv))
    assert_same_weights(mine, other)


def ppo_in(make):
    import torch
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, CollectStats, VectorReplayBuffer
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    torch.manual_seed(0)
    np.random.seed(0)
    envs = make([partial(gymnasium.make, "CartPole-v1")] * 4)
    envs.seed(0)
    net = Net(state_shape=4, hidden_sizes=(16,))
    actor = DiscreteActor(preprocess_net=net, action_shape=2)
    algorithm = PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=spaces.Discrete(2)),
        critic=DiscreteCritic(preprocess_net=net),
        optim=AdamOptimizerFactory(lr=1e-2),
    )
    collector = Collector[CollectStats](algorithm, envs, VectorReplayBuffer(1000, 4))
    collector.reset()
    algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=200,
            collection_step_num_env_steps=None,
            collection_step_num_episodes=6,
            update_step_num_repetitions=2,
            batch_size=64,
        )
    )
    envs.close()
    return algorithm
