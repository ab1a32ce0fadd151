"""States of environments: the same in every backend, whatever it was saved in."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from backends import DUMMY, QUICK_START, REMOTE, WORKERS, Maker
from comparing import assert_same, in_form, row
from example_envs import GraphReusingEnv
from interrupts import Instant
from stateful_envs import MAKERS, Collector, Counting, Heavy, WithFile, of_length, scaled_by

import xuance_envs
from xuance_envs import (
    AlreadySteppingError,
    ClosedVecEnvError,
    DummyVecEnv,
    EnvError,
    EnvStates,
    Gym_Env,
    StateError,
    StateMismatchError,
    SubprocVecEnv,
    VecEnv,
    register_state,
)
from xuance_envs.engine.group.group_states import GroupStates

N = 5
PACKAGE = Path(xuance_envs.__file__).parent


def actions_for(env: Any, steps: int, seed: int = 3) -> list[list[Any]]:
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    return [[space.sample() for _ in range(env.num_envs)] for _ in range(steps)]


def played(envs: VecEnv, actions: list[list[Any]]) -> list[Any]:
    out = []
    for each in actions:
        obs, rewards, terminated, truncated, infos = envs.step(each)
        out.append((obs, rewards, terminated, truncated, list(infos), envs.exact_rewards))
    return out


def buffers(envs: VecEnv) -> list[Any]:
    flags = [envs.buf_dones.copy(), envs.buf_truncations.copy()]
    infos = [dict(info) for info in envs.buf_infos]
    return [envs.buf_obs, envs.buf_rews.copy(), *flags, infos, envs.exact_rewards]


def other_backend(maker: Maker, fns: list[Any]) -> VecEnv:
    """One with the same environments, split otherwise."""
    if maker.backend is DUMMY:
        return SubprocVecEnv(fns, in_series=3, context=QUICK_START)
    if maker.backend is WORKERS:
        return DummyVecEnv(fns)
    return SubprocVecEnv(fns, in_series=4, context=QUICK_START, caller_steps=True)


@pytest.mark.everywhere("slotted", "black jack")
@pytest.mark.parametrize("name", MAKERS)
def test_a_state_goes_on_in_any_backend(make: Maker, name: str) -> None:
    fns = [MAKERS[name]] * N
    envs = make(fns)
    space = envs.observation_space
    envs.reset(seed=1)
    actions = actions_for(envs, 60)
    played(envs, actions[:23])
    state = envs.save_state()
    was = buffers(envs)
    expected = played(envs, actions[23:])
    assert sum(step[2].any() or step[3].any() for step in expected) >= 3

    def go_on(others: VecEnv, state: EnvStates) -> None:
        obs, infos = others.load_state(state)
        assert_same(buffers(others), was)
        for i, info in enumerate(was[4]):
            first = info.get("reset_obs", row(space, was[0], i))
            assert_same(row(space, obs, i), in_form(space, first))
            shown = {k: v for k, v in info.items() if k not in ("reset_obs", "reset_info")}
            assert_same(dict(infos[i]), info.get("reset_info", shown))
        others.load_state(others.save_state())
        assert_same(played(others, actions[23:]), expected)

    go_on(envs, state)
    if make.backend is not REMOTE:  # whose states stay where they are
        with other_backend(make, fns) as others:
            others.reset(seed=55)
            played(others, actions[:4])
            go_on(others, EnvStates.from_bytes(state.to_bytes(), trusted=True))


@pytest.mark.everywhere
def test_some_environments_are_saved_and_loaded(make: Maker) -> None:
    envs = make([Collector] * N)
    envs.reset(seed=1)
    actions = actions_for(envs, 40)
    played(envs, actions[:9])
    state = envs.save_state([4, 1])
    before = played(envs, actions[9:20])
    obs, infos = envs.load_state(state[[1, 0]], env_ids=[1, 4])
    assert (len(obs), len(infos)) == (2, 2)
    again = played(envs, actions[9:20])
    for step, other in zip(before, again, strict=True):
        for part in range(4):
            assert_same(step[part][[1, 4]], other[part][[1, 4]])
    envs.load_state(state[0], env_ids=[2])
    after = played(envs, [[each[4]] * N for each in actions[9:20]])
    moved = [step[0][2] for step in after]
    assert_same(moved, [step[0][4] for step in before])


@pytest.mark.everywhere
def test_a_partial_reset_just_before_is_part_of_it(make: Maker) -> None:
    envs = make([lambda k=k: of_length(3 + k % 2) for k in range(N)])
    envs.reset(seed=1)
    actions = actions_for(envs, 30)
    played(envs, actions[:3])  # some have ended, some not
    shown = [dict(info) for info in envs.buf_infos]
    obs_before = envs.buf_obs
    _, reset_infos = envs.reset(env_ids=[1, 2])
    reset_obs = envs.buf_obs
    state = envs.save_state()
    was = buffers(envs)
    expected = played(envs, actions[3:])
    obs, infos = envs.load_state(state)
    assert_same(buffers(envs), was)
    for i in range(N):
        if i in (1, 2):
            assert_same(obs[i], reset_obs[i])
            assert_same(dict(infos[i]), dict(reset_infos[i - 1]))
        else:
            assert_same(obs[i], shown[i].get("reset_obs", obs_before[i]))
            assert infos[i]["name" if "reset_obs" in shown[i] else "trail"] is not None
    assert_same(played(envs, actions[3:]), expected)


@pytest.mark.everywhere
def test_clones_go_on_as_their_source(make: Maker) -> None:
    envs = make([Collector] * N)
    envs.reset(seed=1)
    actions = actions_for(envs, 40)
    played(envs, actions[:8])
    was = buffers(envs)
    obs, infos = envs.clone_state(3, range(N))
    assert_same(list(obs), [obs[3]] * N)
    assert_same([dict(info) for info in infos], [dict(infos[3])] * N)
    assert_same([part[0] for part in buffers(envs)], [part[3] for part in was])
    for step in played(envs, [[each[0]] * N for each in actions[8:]]):
        for part in step:
            assert_same(list(part), [part[0]] * N)


@pytest.mark.everywhere
def test_states_of_any_size_are_saved_loaded_and_cloned(make: Maker) -> None:
    envs = make([partial(Heavy, number) for number in range(N)])
    envs.reset(seed=1)
    actions = actions_for(envs, 20)
    played(envs, actions[:4])
    state = envs.save_state()
    assert state.nbytes > N << 19
    expected = played(envs, actions[4:])
    envs.load_state(state)
    assert_same(played(envs, actions[4:]), expected)
    envs.load_state(state)
    order = [4, 4, 3, 0, 4]
    envs.clone_state(order, range(N))
    found = played(envs, [[each[i] for i in order] for each in actions[4:]])
    for step, other in zip(expected, found, strict=True):
        for part in range(4):
            assert_same(other[part], step[part][order])


@pytest.mark.everywhere
def test_environments_change_places(make: Maker) -> None:
    envs = make([Collector] * N)
    envs.reset(seed=1)
    actions = actions_for(envs, 40)
    played(envs, actions[:8])
    state = envs.save_state()
    order = [4, 3, 2, 1, 0]
    expected = played(envs, actions[8:])
    envs.load_state(state)
    envs.clone_state(order, range(N))
    found = played(envs, [[each[i] for i in order] for each in actions[8:]])
    for step, other in zip(expected, found, strict=True):
        for part in range(4):
            assert_same(other[part], step[part][order])


@pytest.mark.everywhere
def test_forks_draw_their_own_and_the_source_stays(make: Maker) -> None:
    envs = make([Collector] * N)
    envs.reset(seed=1)
    actions = [[1] * N] * 20
    state = envs.save_state()
    alone = [step[4][0]["drawn"] for step in played(envs, actions)]
    envs.load_state(state)
    envs.clone_state(0, [1, 2, 4], fork_rng=True)
    streams = np.array([[info["drawn"] for info in step[4]] for step in played(envs, actions)]).T
    assert_same([int(n) for n in streams[0]], [int(n) for n in alone])
    assert len({tuple(stream) for stream in streams}) == N
    envs.load_state(state)
    envs.clone_state(0, [4], fork_rng=True)
    again = [step[4][4]["drawn"] for step in played(envs, actions)]
    assert_same([int(n) for n in again], [int(n) for n in streams[4]])  # of source and index


@pytest.mark.everywhere
def test_in_the_middle_of_a_step_it_is_refused(make: Maker) -> None:
    envs = make([Collector] * N)
    envs.reset(seed=1)
    state = envs.save_state()
    asked = [
        envs.save_state,
        lambda: envs.load_state(state),
        lambda: envs.clone_state(0, 1),
    ]
    envs.step_async([0] * N)
    for ask in asked:
        with pytest.raises(AlreadySteppingError, match="_state was called while a step is pending"):
            ask()
    envs.step_wait()
    envs.async_reset(seed=1)
    for ask in asked:
        with pytest.raises(AlreadySteppingError, match="is outstanding: receive it with recv"):
            ask()
    envs.recv(min_envs=N)
    envs.load_state(state)
    envs.close()
    for ask in asked:
        with pytest.raises(ClosedVecEnvError):
            ask()


@pytest.mark.everywhere
def test_with_first_ready_loaded_environments_count_as_received(make: Maker) -> None:
    envs = make([Collector] * N)
    envs.async_reset(seed=1)
    batch = envs.recv(min_envs=N)
    envs.send([1] * N, batch.env_ids)
    envs.recv(min_envs=N)
    state = envs.save_state()

    def go() -> list[Any]:
        found = []
        for _ in range(9):
            envs.send([2] * N, range(N))
            batch = envs.recv(min_envs=N)
            found.append((*batch[:4], [dict(info) for info in batch.infos]))
        return found

    expected = go()
    envs.load_state(state)
    assert_same(go(), expected)


@pytest.mark.parametrize("copies", [True, False])
def test_what_was_returned_stays_as_it_was(make: Maker, copies: bool) -> None:
    envs = make([Collector] * N, copy=copies)
    envs.reset(seed=1)
    actions = actions_for(envs, 20)
    played(envs, actions[:7])
    state = envs.save_state()
    was = buffers(envs)
    obs, _ = envs.load_state(state)
    kept = obs.copy()
    held = envs.buf_obs, envs.buf_obs.copy()
    assert_same(buffers(envs), was)
    envs.step(actions[8])
    assert_same(obs, kept)
    assert_same(*held)
    envs.load_state(state)
    assert_same(buffers(envs), was)


class Told(GraphReusingEnv):
    """Has a list in its infos."""

    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments)[0], {"list": [0]}

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        return *result, {"list": [1]}


def spoil(obs: Any, infos: Any) -> None:
    """Change everything that was returned."""
    for graph in (*obs, *[info["reset_obs"] for info in infos if "reset_obs" in info]):
        graph.nodes[...] = -1
    for info in infos:
        info["list"].append(2)
        info.get("reset_info", info)["list"].append(2)


def test_what_is_done_to_returned_objects_is_in_no_state(make: Maker) -> None:
    """The third step ends an episode, so the last reset observations are acted on."""
    envs = make([Told] * 2)
    with DummyVecEnv([Told] * 2) as reference:
        reference.reset()
        obs, infos = envs.reset()
        for _ in range(4):
            for _ in range(2):
                spoil(obs, infos)
                obs, infos = envs.load_state(envs.save_state())
                expected, expected_infos = reference.load_state(reference.save_state())
                assert_same((obs, list(infos)), (expected, list(expected_infos)))
            obs, *_, infos = envs.step([0, 0])
            reference.step([0, 0])


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.everywhere
def test_what_cannot_be_saved_is_named(make: Maker) -> None:
    envs = make([Collector, Collector, WithFile, Collector, Collector])
    envs.reset(seed=1)
    with pytest.raises(
        StateError, match=r"environment 2 .*WithFile\.file.*TextIOWrapper"
    ) as caught:
        envs.save_state()
    assert (caught.value.env_index, caught.value.command) == (2, "save_state")
    assert "register_state" in str(caught.value)
    envs.step([0] * N)
    envs.save_state([0, 1, 3, 4])


MISMATCHES = {
    "id": (lambda: gymnasium.make("CartPole-v1"), lambda: gymnasium.make("CartPole-v0")),
    "kwargs": (
        lambda: gymnasium.make("CartPole-v1"),
        lambda: gymnasium.make("CartPole-v1", sutton_barto_reward=True),
    ),
    "wrappers": (lambda: gymnasium.make("CartPole-v1"), lambda: Gym_Env("CartPole-v1")),
    "observation space": (Collector, lambda: wide(Collector())),
}


def wide(env: Collector) -> Collector:
    env.observation_space = gymnasium.spaces.Box(-2e9, 2e9, (3,))
    return env


@pytest.mark.parametrize("what", MISMATCHES)
@pytest.mark.filterwarnings("ignore:.*out of date.*", "ignore:.*precision lowered.*")
def test_an_environment_that_is_not_alike_is_refused(make: Maker, what: str) -> None:
    one, other = MISMATCHES[what]
    with DummyVecEnv([one] * 2) as source:
        source.reset(seed=1)
        state = source.save_state()
    envs = make([other] * 2)
    envs.reset(seed=2)
    before = envs.save_state()
    with pytest.raises(StateMismatchError) as caught:
        envs.load_state(state)
    assert caught.value.what == what
    assert caught.value.saved != caught.value.here
    assert repr(caught.value.saved) in str(caught.value) or str(caught.value.saved) in str(
        caught.value
    )
    assert envs.save_state() == before


@pytest.mark.everywhere
def test_one_mismatch_in_one_group_changes_nothing_in_any(make: Maker) -> None:
    like, unlike = MISMATCHES["kwargs"]
    envs = make([like] * 4 + [unlike])
    envs.reset(seed=1)
    before = envs.save_state()
    with pytest.raises(StateMismatchError, match="environment 4") as caught:
        envs.clone_state(0, range(5))
    assert caught.value.what == "kwargs"
    assert caught.value.saved != caught.value.here
    found = played(envs, [[1] * 5] * 9)
    envs.load_state(before)
    assert_same(played(envs, [[1] * 5] * 9), found)
    envs.clone_state(0, range(4))


def test_what_a_function_closes_over_goes_along(make: Maker) -> None:
    envs = make([lambda: scaled_by(2)] * 4 + [lambda: scaled_by(3)])
    envs.reset(seed=1)
    envs.clone_state(0, range(5))
    assert list(envs.step([1] * 5)[1]) == [2.0] * 5


def test_what_a_class_holds_has_to_be_the_same(make: Maker) -> None:
    envs = make([lambda: Counting(gymnasium.make("CartPole-v1"))])
    envs.reset(seed=1)
    state = envs.save_state()
    envs.step([0])
    with pytest.raises(StateMismatchError, match=r"Counting\.total: \d+ when") as caught:
        envs.load_state(state)
    assert caught.value.what == "class attribute: Counting.total"


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda e, s: e.load_state(s), ValueError, "expected states of 4 environments, got 2"),
        (lambda e, s: e.load_state(b"state"), TypeError, "expected an EnvStates, got bytes"),
        (lambda e, s: e.save_state([4]), ValueError, "from 0 to 3, got 4"),
        (lambda e, s: e.clone_state(0, [1, 1]), ValueError, "dst_ids: .* at most once"),
        (lambda e, s: e.clone_state([0, 1], [1, 2, 3]), ValueError, r"or one per target \(3\)"),
        (lambda e, s: e.clone_state(9, 0), ValueError, "src_ids: .*from 0 to 3, got 9"),
        (lambda e, s: e.clone_state(1.5, 0), ValueError, "src_ids: expected a sequence of ints"),
        (lambda e, s: e.clone_state(True, 0), ValueError, "src_ids: expected a sequence of ints"),
    ],
)
def test_wrong_arguments(make: Maker, ask: Any, error: Any, text: str) -> None:
    envs = make([Collector] * 4)
    envs.reset(seed=1)
    with pytest.raises(error, match=text):
        ask(envs, envs.save_state([0, 1]))
    envs.step([0] * 4)


class Raising(Collector):
    def __env_state__(self) -> Any:
        raise KeyError("not now")


@pytest.mark.everywhere
def test_an_error_in_saving_leaves_it_usable(make: Maker) -> None:
    envs = make([Raising])
    envs.reset(seed=1)
    with pytest.raises(EnvError, match="failed in 'save_state': KeyError: 'not now'"):
        envs.save_state()


MALFORMED = {
    "nothing": None,
    "an info that is no dict": ([np.zeros(2, np.float32)], ("number", 1), False, {}),
    "another number of leaves": ([], {}, False, {}),
    "another shape": ([np.zeros(3, np.float32)], {}, False, {}),
    "another dtype": ([np.zeros(2)], {}, False, {}),
    "no array": (["far"], {}, False, {}),
    "no moment of a reset": ([np.zeros(2, np.float32)], {}, "never", {}),
}


@pytest.mark.parametrize("seen", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_a_stranger_wrote_is_refused_before_anything_is_touched(
    seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DummyVecEnv([lambda: Gym_Env("MountainCar-v0")] * 2) as envs:
        envs.reset(seed=1)
        with monkeypatch.context() as patch:
            patch.setattr(GroupStates, "_pack_acting_state", lambda states, i: seen)
            data = envs.save_state().to_bytes()
        was = buffers(envs), played_from(envs)
        with pytest.raises(StateError, match="expected"):
            envs.load_state(EnvStates.from_bytes(data))
        assert_same((buffers(envs), played_from(envs)), was)


def test_what_a_stranger_wrote_for_a_generator_is_refused_before_anything_is_touched() -> None:
    with DummyVecEnv([lambda: Gym_Env("MountainCar-v0")] * 2) as envs:
        envs.reset(seed=1)
        space = envs.envs[1].unwrapped.action_space
        before, space._np_random = space._np_random, "a number"
        data = envs.save_state().to_bytes()
        space._np_random = before
        was = buffers(envs), played_from(envs)
        with pytest.raises(StateError, match=r"environment 1 .*expected a NumPy generator"):
            envs.load_state(EnvStates.from_bytes(data))
        assert_same((buffers(envs), played_from(envs)), was)


def played_from(envs: Any) -> Any:
    """What it plays from here, where it is again thereafter."""
    state = envs.save_state()
    result = played(envs, [[1] * 2] * 3)
    envs.load_state(state)
    return result


class Library:
    """A class of a library that keeps its state from Python."""

    def __init__(self) -> None:
        self.level, self.hidden = 0, lambda: None


class UsingLibrary(Collector):
    def __init__(self) -> None:
        super().__init__()
        self.library = Library()

    def step(self, action: Any) -> Any:
        self.library.level += 1
        result = super().step(action)
        return result[0], float(self.library.level), *result[2:]


def test_registered_classes_are_known_in_workers(make: Maker) -> None:
    register_state(
        Library,
        lambda library: library.level,
        lambda library, level: vars(library).update(level=level),
    )
    envs = make([UsingLibrary] * N)
    envs.reset(seed=1)
    envs.step([0] * N)
    envs.clone_state(0, range(N))  # in workers that have been told of nothing yet, too
    state = envs.save_state()
    expected = played(envs, [[1] * N] * 9)
    envs.load_state(state)
    assert_same(played(envs, [[1] * N] * 9), expected)
    assert expected[-1][1][0] == 10


@pytest.mark.everywhere("load")
@pytest.mark.parametrize("what", ["save", "load", "clone"])
def test_an_interrupt_leaves_it_usable(make: Maker, what: str) -> None:
    envs = make([Collector] * 3)
    envs.reset(seed=1)
    played(envs, actions_for(envs, 9))
    state = envs.save_state()
    expected = played(envs, [[1] * 3] * 3)
    asked = {
        "save": envs.save_state,
        "load": lambda: envs.load_state(state),
        "clone": lambda: envs.clone_state(0, 2),
    }
    number, came = 0, True
    while came:
        with Instant(number, [str(PACKAGE)]) as instant:
            asked[what]()
        came, number = instant.came, number + number // 4 + 3
        envs.load_state(state)
        assert_same(played(envs, [[1] * 3] * 3), expected)


def test_an_interrupted_load_changes_all_environments_or_none() -> None:
    with DummyVecEnv([Collector] * 3) as envs:
        envs.reset(seed=1)
        states, after = [], []
        for steps in (4, 9):
            played(envs, actions_for(envs, steps))
            states.append(envs.save_state())
            after.append(envs.step([1] * 3)[0])
        number, came = 0, True
        while came:
            envs.load_state(states[0])
            with Instant(number, [str(PACKAGE)]) as instant:
                envs.load_state(states[1])
            came, number = instant.came, number + 40
            found = envs.step([1] * 3)[0]
            assert any(np.array_equal(found, each) for each in after)


def test_states_survive_pickling() -> None:
    with DummyVecEnv([Collector] * 2) as envs:
        envs.reset(seed=1)
        state = envs.save_state()
        assert pickle.loads(pickle.dumps(state)) == state
